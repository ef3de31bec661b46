/** A site that is reached over ssh: a real OpenSSH server on this machine, behind which people have another home. */
import { chownSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
import type { ClusterUser } from '../cluster/user.ts';
import { type SshServer, startSshServer } from '../slurm/ssh/server.ts';
import { type Home, temporaryHome } from './support.ts';

export interface RemoteSite {
  /** Where commands are typed; the site is `site_file` there. */
  laptop: Home;
  /** Home on the login node; the same site, as it is there, is `site_file` too. */
  there: Home;
  site_file: string;
  server: SshServer;
  dispose(): Promise<void>;
}

/**
 * @param options.as who logs in, where the tests run as root; @param options.install_dir where hpcserve is there
 */
export async function openRemoteSite({
  as,
  install_dir = packageRoot,
}: {
  as?: ClusterUser;
  install_dir?: string;
} = {}): Promise<RemoteSite> {
  const laptop = temporaryHome();
  const there = temporaryHome();
  if (as) chownSync(there.folder, as.uid, as.gid);
  const server = await startSshServer({ HOME: there.folder }, as?.name);
  const { port, user, identity_file, known_hosts_file } = server;
  const site = {
    name: 'far',
    kind: 'slurm',
    state_dir: join(there.folder, 'state'),
    runtime: { install_dir, node_path: process.execPath },
  };
  const ssh = { host: '127.0.0.1', port, user, identity_file, known_hosts_file };
  const site_file = 'far.yaml';
  writeFileSync(join(there.folder, site_file), JSON.stringify(site));
  writeFileSync(join(laptop.folder, site_file), JSON.stringify({ ...site, slurm: { ssh } }));
  return {
    laptop,
    there,
    site_file: `./${site_file}`,
    server,
    dispose: async () => {
      await server.stop();
      for (const home of [laptop, there]) home.dispose();
    },
  };
}

/** A site that is reached over ssh: a real OpenSSH server on this machine, behind which people have another home. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../host/package-root.ts';
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

export async function openRemoteSite(): Promise<RemoteSite> {
  const laptop = temporaryHome();
  const there = temporaryHome();
  const server = await startSshServer({ HOME: there.folder });
  const { port, user, identity_file, known_hosts_file } = server;
  const site = {
    name: 'far',
    kind: 'slurm',
    state_dir: join(there.folder, 'state'),
    runtime: { install_dir: packageRoot, node_path: process.execPath },
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

/** A site whose login node is reached over ssh: where it is, and hpcserve as it is installed there. */
import { posix } from 'node:path';
import { version } from '../../host/version.ts';
import { SshConnection } from '../../slurm/ssh/connection.ts';
import { targetOf } from '../../slurm/ssh/target.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { expandSitePath } from '../../spec/site-paths.ts';
import type { CliContext } from '../context.ts';
import { askAtTerminal } from './ask-at-terminal.ts';

export interface RemoteSite {
  connection: SshConnection;
  /** Words that start hpcserve there. */
  program: string[];
  /** Folder there for what this machine brings. */
  folder: string;
}

/** Where hpcserve is installed there unless the site config says so. */
const install_dir_usual = '~/hpcserve';

/** @throws E_SSH_…, E_REMOTE_PROGRAM where hpcserve is not there or of another version */
export async function openRemoteSite(context: CliContext, site: SiteConfig): Promise<RemoteSite> {
  const connection = await connectTo(context, site);
  try {
    const home = (await connection.exec(['sh', '-c', 'printf %s "$HOME"'])).stdout;
    const program = await findProgram(connection, site, home);
    const folder = posix.join(home, '.hpcserve', 'remote', site.name);
    await connection.exec(['mkdir', '-p', '-m', '700', folder]);
    return { connection, program, folder };
  } catch (error) {
    connection.close();
    throw error;
  }
}

export async function connectTo(context: CliContext, site: SiteConfig): Promise<SshConnection> {
  const { environment, signal, tty } = context;
  const settings = site.slurm!.ssh!;
  const expand = (path: string | undefined): string | undefined =>
    path === undefined ? undefined : expandSitePath(path, environment);
  const agent = environment.SSH_AUTH_SOCK;
  return SshConnection.open(
    await targetOf({
      ...settings,
      known_hosts_file: expand(settings.known_hosts_file),
      identity_file: expand(settings.identity_file),
      config_file: expand(settings.config_file),
    }),
    {
      signal,
      ...(agent === undefined ? {} : { agent_socket: agent }),
      ...(tty.stdin && tty.stderr ? { ask: askAtTerminal(signal) } : {}),
    },
  );
}

async function findProgram(
  connection: SshConnection,
  { runtime }: SiteConfig,
  home: string,
): Promise<string[]> {
  const there = (path: string): string => (path.startsWith('~/') ? posix.join(home, path.slice(2)) : path);
  const folder = there(runtime.install_dir ?? install_dir_usual);
  const script = posix.join(folder, 'cli', 'hpcserve.mjs');
  const ways =
    runtime.node_path === undefined
      ? [[posix.join(folder, 'bin', 'hpcserve')], ['node', script]]
      : [[there(runtime.node_path), script]];
  let said = '';
  for (const way of ways) {
    const { code, stdout, stderr } = await connection.exec([...way, '--version']);
    const found = stdout.trim();
    if (code === 0 && found === version) return way;
    if (code === 0)
      throw new HpcserveError('E_REMOTE_PROGRAM', {
        what: `hpcserve ${found} is installed on ${connection.target.host}, this is ${version}`,
        because: `the two speak to each other by their commands; ${way.join(' ')} was asked`,
        details: { there: found, here: version },
      });
    said ||= stderr.trim();
  }
  throw new HpcserveError('E_REMOTE_PROGRAM', {
    what: `hpcserve is not installed on ${connection.target.host} in ${folder}`,
    because: said === '' ? 'nothing answered there' : said.split('\n'),
  });
}

/** A folder on a network filesystem: of an OpenSSH server, mounted by sshfs, for everybody on this machine. */
import { execFileSync } from 'node:child_process';
import { accessSync, chmodSync, chownSync, constants, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type SshServer, startSshServer } from '../slurm/ssh/server.ts';
import { installPrograms } from './install.ts';
import type { ClusterUser } from './user.ts';

/** Why sshfs cannot mount here; empty where it can. */
export async function sshfsLacking(): Promise<string> {
  if (process.getuid?.() !== 0) return 'needs root';
  try {
    accessSync('/dev/fuse', constants.R_OK | constants.W_OK);
  } catch {
    return '/dev/fuse is not there';
  }
  const ready = await installPrograms(['sshfs', 'fusermount3'], ['sshfs', 'fuse3']);
  return ready.ready ? '' : ready.missing;
}

/** Of sshfs, for a folder of this server. */
export function sshfsArguments(
  server: SshServer,
  folder: string,
  mount: string,
  options: readonly string[] = [],
): string[] {
  return [
    ...['-p', String(server.port), '-o', `IdentityFile=${server.identity_file}`],
    ...['-o', `UserKnownHostsFile=${server.known_hosts_file}`, '-o', 'HostKeyAlgorithms=ssh-ed25519'],
    ...options,
    ...[`${server.user}@127.0.0.1:${folder}`, mount],
  ];
}

/** A network folder of one user, whose connection can be interrupted. */
export class NetworkFolder {
  readonly path: string;
  readonly #server: SshServer;
  readonly #base: string;

  private constructor(server: SshServer, base: string) {
    this.#server = server;
    this.#base = base;
    this.path = join(base, 'mount');
  }

  /** `sshfsLacking` is asked before. */
  static async make(user: ClusterUser): Promise<NetworkFolder> {
    const server = await startSshServer({}, user.name);
    const base = mkdtempSync(join(tmpdir(), 'hpcserve-network-'));
    chmodSync(base, 0o755);
    for (const name of ['data', 'mount']) mkdirSync(join(base, name));
    chownSync(join(base, 'data'), user.uid, user.gid);
    chmodSync(join(base, 'data'), 0o700);
    const made = new NetworkFolder(server, base);
    const shared = ['-o', 'allow_other', '-o', 'default_permissions'];
    execFileSync('sshfs', sshfsArguments(server, join(base, 'data'), made.path, shared));
    return made;
  }

  /** Nothing is answered from here on: who asks, waits. */
  interrupt(): void {
    this.#server.signalConnections('SIGSTOP');
  }

  resume(): void {
    this.#server.signalConnections('SIGCONT');
  }

  async dispose(): Promise<void> {
    this.resume();
    execFileSync('fusermount3', ['-u', '-z', this.path]);
    await this.#server.stop();
    rmSync(this.#base, { recursive: true, force: true });
  }
}

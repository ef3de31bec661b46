/** A real OpenSSH server on loopback, with keys and configuration of its own. */
import { execFileSync, spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { findProgram, installPrograms } from '../../cluster/install.ts';
import { freePort } from '../../free-port.ts';

export interface SshServer {
  port: number;
  folder: string;
  user: string;
  /** A private key that it lets in, without a passphrase. */
  identity_file: string;
  /** Private key of an authority whose certificates for users it accepts. */
  authority_file: string;
  /** A known_hosts file that names it. */
  known_hosts_file: string;
  /** Ends the processes of all connections, as a network that breaks would. */
  dropConnections(): void;
  /** Stops and continues them (SIGSTOP, SIGCONT), as a network does that is away for a while. */
  signalConnections(signal: NodeJS.Signals): void;
  stop(): Promise<void>;
}

/** @param setEnv what sessions find in their environment; @param user who logs in, where the server runs as root */
export async function startSshServer(
  setEnv: Readonly<Record<string, string>> = {},
  user = userInfo().username,
): Promise<SshServer> {
  const ready = await installPrograms(
    ['sshd', 'ssh-keygen', 'ssh-agent', 'ssh-add'],
    ['openssh-server', 'openssh-client'],
  );
  if (!ready.ready) throw new Error(`an OpenSSH server is needed for these tests: ${ready.missing}`);
  // sshd wants this folder as root; nothing of the system's own server is used.
  if (process.getuid?.() === 0) mkdirSync('/run/sshd', { recursive: true, mode: 0o755 });
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-sshd-'));
  // The user who logs in reads authorized_keys there.
  chmodSync(folder, 0o755);
  const path = (name: string): string => join(folder, name);
  const keygen = (name: string, type: string): void => {
    execFileSync('ssh-keygen', ['-q', '-t', type, '-N', '', '-C', 'test', '-f', path(name)]);
  };
  keygen('host_ed25519', 'ed25519');
  keygen('host_rsa', 'rsa');
  keygen('id', 'ed25519');
  keygen('authority', 'ed25519');
  writeFileSync(path('authorized_keys'), readFileSync(path('id.pub')), { mode: 0o644 });
  const port = await freePort();
  writeFileSync(path('sshd_config'), configText(port, path, setEnv));
  const known = readFileSync(path('host_ed25519.pub'), 'utf8').split(' ').slice(0, 2).join(' ');
  writeFileSync(path('known_hosts'), `[127.0.0.1]:${port} ${known}\n`);
  const daemon = spawn(findProgram('sshd')!, ['-D', '-e', '-f', path('sshd_config')], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let words = '';
  daemon.stderr.setEncoding('utf8').on('data', (text: string) => {
    words += text;
  });
  for (let tries = 0; !(await answers(port)); tries++) {
    if (tries > 100 || daemon.exitCode !== null) throw new Error(`sshd did not start:\n${words}`);
    await sleep(50);
  }
  return {
    port,
    folder,
    user,
    identity_file: path('id'),
    authority_file: path('authority'),
    known_hosts_file: path('known_hosts'),
    dropConnections: () => signalChildren(daemon.pid!, 'SIGKILL'),
    signalConnections: (signal) => signalChildren(daemon.pid!, signal),
    stop: async () => {
      signalChildren(daemon.pid!, 'SIGKILL');
      const ended = new Promise((resolve) => daemon.once('exit', resolve));
      daemon.kill('SIGTERM');
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** @param path of a file of the server, by its name */
function configText(
  port: number,
  path: (name: string) => string,
  setEnv: Readonly<Record<string, string>>,
): string {
  return [
    `Port ${port}`,
    'ListenAddress 127.0.0.1',
    `HostKey ${path('host_ed25519')}`,
    `HostKey ${path('host_rsa')}`,
    `AuthorizedKeysFile ${path('authorized_keys')}`,
    `TrustedUserCAKeys ${path('authority.pub')}`,
    `PidFile ${path('pid')}`,
    'StrictModes no',
    // A user without a password counts as locked where PAM does not say otherwise.
    `UsePAM ${process.getuid?.() === 0 ? 'yes' : 'no'}`,
    'PermitRootLogin yes',
    'PasswordAuthentication no',
    'KbdInteractiveAuthentication no',
    'Subsystem sftp internal-sftp',
    ...Object.entries(setEnv).map(([name, value]) => `SetEnv ${name}=${value}`),
    '',
  ].join('\n');
}

/** A child may end by itself, with its parent, before its turn comes. */
function signalChildren(parent: number, signal: NodeJS.Signals): void {
  for (const pid of childrenOf(parent))
    try {
      process.kill(pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
}

function childrenOf(parent: number): number[] {
  const file = `/proc/${parent}/task/${parent}/children`;
  if (!existsSync(file)) return [];
  const own = readFileSync(file, 'utf8').trim().split(' ').filter(Boolean).map(Number);
  return own.flatMap((pid) => [...childrenOf(pid), pid]);
}

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}

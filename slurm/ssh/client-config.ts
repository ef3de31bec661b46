/**
 * What ~/.ssh/config says of a host: asked of `ssh -G`, so that Include, Match and patterns mean what they mean to ssh.
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { homeFolder, noEntry } from '../../host/own-user.ts';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface ClientConfig {
  host: string;
  port: number;
  user: string;
  /** In the order in which ssh would try them; many of them are not there. */
  identity_files: string[];
  certificate_files: string[];
  /** Hosts to go through, nearest first, each as [user@]host[:port]. */
  proxy_jump: string[];
  known_hosts_files: string[];
}

/** Longest time for an answer: `Match exec` may run a command. */
const answer_ms = 10_000;

/**
 * @param host as a person would type it after `ssh`
 * @param config_file instead of ~/.ssh/config and the system's
 * @returns undefined where there is no ssh on this machine
 * @throws E_SSH_TARGET where the file has an error, or asks for what is not done here; E_USER_UNKNOWN where ssh(1)
 * refuses to run for a user without an entry
 */
export async function readClientConfig(
  host: string,
  config_file?: string,
): Promise<ClientConfig | undefined> {
  const argv = [...(config_file === undefined ? [] : ['-F', config_file]), '-G', '--', host];
  const answer = await new Promise<string | undefined>((resolve, reject) => {
    execFile('ssh', argv, { timeout: answer_ms }, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      if (error.code === 'ENOENT') return resolve(undefined);
      if (/^No user exists for uid/m.test(stderr)) return reject(sshWithoutEntry(host));
      reject(
        new HpcserveError('E_SSH_TARGET', {
          what: `ssh cannot read its configuration for ${host}`,
          because: stderr.trim() === '' ? error.message : stderr.trim().split('\n'),
          try: `see what is wrong with: ssh -G ${host}`,
        }),
      );
    });
  });
  return answer === undefined ? undefined : parseClientConfig(host, answer);
}

/** ssh(1) does nothing at all for a user without an entry, and what its configuration says of a host is not guessed. */
function sshWithoutEntry(host: string): HpcserveError {
  return new HpcserveError('E_USER_UNKNOWN', {
    what: `ssh does not say how ${host} is reached`,
    because: noEntry(process.getuid!()),
    try: 'run where `id -un` prints your name, or give the container your entry of /etc/passwd',
  });
}

/** @throws E_SSH_TARGET for a ProxyCommand */
function parseClientConfig(host: string, output: string): ClientConfig {
  const values = new Map<string, string[]>();
  for (const line of output.split('\n')) {
    const [, name, value] = /^(\S+) (.*)$/.exec(line) ?? [];
    if (name !== undefined) values.set(name, [...(values.get(name) ?? []), value!.trim()]);
  }
  const one = (name: string): string | undefined => {
    const value = values.get(name)?.[0];
    return value === 'none' ? undefined : value;
  };
  const files = (name: string): string[] =>
    (values.get(name) ?? []).filter((file) => file !== 'none').map(expandHome);
  const command = one('proxycommand');
  if (command !== undefined)
    throw new HpcserveError('E_SSH_TARGET', {
      what: `${host} is reached by a ProxyCommand, which hpcserve does not run`,
      because: `~/.ssh/config says: ProxyCommand ${command}`,
      try: 'use ProxyJump there, or name the hosts in slurm.ssh.proxy_jump',
    });
  return {
    host: one('hostname') ?? host,
    port: Number(one('port') ?? 22),
    user: one('user') ?? '',
    identity_files: files('identityfile'),
    certificate_files: files('certificatefile'),
    proxy_jump: (one('proxyjump') ?? '').split(',').filter((jump) => jump !== ''),
    known_hosts_files: (one('userknownhostsfile') ?? '').split(/\s+/).filter(Boolean).map(expandHome),
  };
}

function expandHome(path: string): string {
  return path.startsWith('~/') ? join(homeFolder(), path.slice(2)) : path;
}

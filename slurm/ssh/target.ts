/** Where to connect, and how to prove who one is. */
import { join } from 'node:path';
import { homeFolder, ownUserName } from '../../host/own-user.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { readClientConfig } from './client-config.ts';

export interface SshTarget {
  host: string;
  port: number;
  user: string;
  /** Private keys; beside those of the agent and the usual ones in ~/.ssh. */
  identity_files: string[];
  /** Beside those that lie beside their keys. */
  certificate_files: string[];
  /** Hosts to go through, nearest first. */
  jumps: SshHop[];
  known_hosts_file: string;
}

interface SshHop {
  host: string;
  port: number;
  user: string;
}

type Jump = SshHop & { identity_files: string[]; certificate_files: string[] };

/** As `slurm.ssh` of a site config has it, with paths expanded. What is absent is taken from ~/.ssh/config. */
export interface SshSettings {
  host: string;
  user?: string | undefined;
  port?: number | undefined;
  identity_file?: string | undefined;
  proxy_jump: string[];
  known_hosts_file?: string | undefined;
  /** Instead of ~/.ssh/config. */
  config_file?: string | undefined;
}

/** Hosts that lead to hosts that lead to hosts: more than so many are a circle. */
const hops_max = 8;

/** @throws E_SSH_TARGET for a jump host that is not [user@]host[:port], E_USER_UNKNOWN, and as `readClientConfig` */
export async function targetOf(settings: SshSettings): Promise<SshTarget> {
  const config = await readClientConfig(settings.host, settings.config_file);
  const user = settings.user ?? (config?.user || ownNameAt(settings.host));
  const named = settings.proxy_jump.length > 0 ? settings.proxy_jump : (config?.proxy_jump ?? []);
  const jumps = await jumpsOf(named, user, settings.config_file);
  const [known_hosts = join(homeFolder(), '.ssh', 'known_hosts')] = config?.known_hosts_files ?? [];
  const files = [
    ...(settings.identity_file === undefined ? [] : [settings.identity_file]),
    ...(config?.identity_files ?? []),
    ...jumps.flatMap(({ identity_files }) => identity_files),
  ];
  return {
    host: config?.host ?? settings.host,
    port: settings.port ?? config?.port ?? 22,
    user,
    identity_files: [...new Set(files)],
    certificate_files: [
      ...new Set([
        ...(config?.certificate_files ?? []),
        ...jumps.flatMap(({ certificate_files }) => certificate_files),
      ]),
    ],
    jumps: jumps.map(({ host, port, user }) => ({ host, port, user })),
    known_hosts_file: settings.known_hosts_file ?? known_hosts,
  };
}

function ownNameAt(host: string): string {
  return ownUserName(`${host} by ssh`, 'set slurm.ssh.user in the site config, or User in ~/.ssh/config');
}

/** The named hosts as ssh knows them; the way to the first of them may lead through others. */
async function jumpsOf(
  named: readonly string[],
  user: string,
  config_file: string | undefined,
): Promise<Jump[]> {
  const jumps: Jump[] = [];
  const pending = [...named];
  for (let first = true; pending.length > 0; ) {
    const text = pending.pop()!;
    first = pending.length === 0;
    const jump = jumpOf(text);
    const config = await readClientConfig(jump.host, config_file);
    jumps.unshift({
      host: config?.host ?? jump.host,
      port: jump.port ?? config?.port ?? 22,
      user: jump.user ?? (config?.user || user),
      identity_files: config?.identity_files ?? [],
      certificate_files: config?.certificate_files ?? [],
    });
    if (first) pending.push(...(config?.proxy_jump ?? []));
    if (jumps.length > hops_max)
      throw new HpcserveError('E_SSH_TARGET', {
        what: `the way to the login node leads through more than ${hops_max} hosts`,
        because: `ProxyJump of ~/.ssh/config goes from ${jumps[1]!.host} to ${jumps[0]!.host} and on`,
      });
  }
  return jumps;
}

function jumpOf(text: string): { host: string; port?: number; user?: string } {
  const parts = /^(?:ssh:\/\/)?(?:([^@\s]+)@)?([^@:\s]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?$/.exec(text);
  const port = parts?.[3] === undefined ? undefined : Number(parts[3]);
  if (parts === null || (port !== undefined && (port < 1 || port > 65_535)))
    throw new HpcserveError('E_SSH_TARGET', {
      what: `slurm.ssh.proxy_jump: "${text}" names no host`,
      because: 'a jump host is written [user@]host[:port]',
    });
  return {
    host: parts[2]!.replace(/^\[|\]$/g, ''),
    port,
    user: parts[1],
  };
}

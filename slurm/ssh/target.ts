/** Where to connect, and how to prove who one is. */
import { userInfo } from 'node:os';
import { HpcserveError } from '../../spec/errors/error.ts';

export interface SshTarget {
  host: string;
  port: number;
  user: string;
  /** Private key; beside those of the agent and the usual ones in ~/.ssh. */
  identity_file?: string;
  /** Hosts to go through, nearest first. */
  jumps: { host: string; port: number; user: string }[];
  known_hosts_file: string;
}

/** As `slurm.ssh` of a site config has it, with paths expanded. */
export interface SshSettings {
  host: string;
  user?: string | undefined;
  port: number;
  identity_file?: string | undefined;
  proxy_jump: string[];
  known_hosts_file: string;
}

/** @throws E_SSH_TARGET for a jump host that is not [user@]host[:port] */
export function targetOf(settings: SshSettings): SshTarget {
  const user = settings.user ?? userInfo().username;
  return {
    host: settings.host,
    port: settings.port,
    user,
    ...(settings.identity_file === undefined ? {} : { identity_file: settings.identity_file }),
    jumps: settings.proxy_jump.map((text) => jumpOf(text, user)),
    known_hosts_file: settings.known_hosts_file,
  };
}

function jumpOf(text: string, user: string): SshTarget['jumps'][number] {
  const parts = /^(?:([^@\s]+)@)?([^@:\s]+|\[[0-9a-fA-F:.]+\])(?::(\d{1,5}))?$/.exec(text);
  const port = Number(parts?.[3] ?? 22);
  if (parts === null || port < 1 || port > 65_535)
    throw new HpcserveError('E_SSH_TARGET', {
      what: `slurm.ssh.proxy_jump: "${text}" names no host`,
      because: 'a jump host is written [user@]host[:port]',
    });
  return { host: parts[2]!.replace(/^\[|\]$/g, ''), port, user: parts[1] ?? user };
}

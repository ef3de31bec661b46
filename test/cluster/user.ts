/** The ordinary user who submits jobs on the test cluster: jobs must never need root. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { findProgram } from './install.ts';

export interface ClusterUser {
  name: string;
  uid: number;
  gid: number;
  home: string;
}

/** The name of the user that is made where the cluster runs as root. */
const defaultClusterUser = 'hpcuser';

/**
 * As root: the user `name`, made with useradd if missing. Otherwise: ourselves, the only user slurmd could start jobs
 * for.
 */
export function ensureClusterUser(name = defaultClusterUser): ClusterUser {
  if (process.getuid?.() !== 0) {
    const me = userInfo();
    return { name: me.username, uid: me.uid, gid: me.gid, home: me.homedir };
  }
  const known = lookUp(name);
  if (known !== undefined) return known;
  execFileSync(findProgram('useradd') ?? 'useradd', ['--create-home', '--shell', '/bin/bash', name], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const made = lookUp(name);
  if (made === undefined) throw new Error(`useradd made no user ${name}`);
  return made;
}

function lookUp(name: string): ClusterUser | undefined {
  for (const line of readFileSync('/etc/passwd', 'utf8').split('\n')) {
    const [user, , uid, gid, , home] = line.split(':');
    if (user === name && uid !== undefined && gid !== undefined && home !== undefined)
      return { name, uid: Number(uid), gid: Number(gid), home };
  }
  return undefined;
}

/** `argv` so that it runs as `user` in place of this process (no shell, no parent in between). */
export function argvAsUser(user: ClusterUser, argv: readonly string[]): string[] {
  if (process.getuid?.() !== 0 || user.uid === 0) return [...argv];
  return [
    findProgram('setpriv') ?? 'setpriv',
    `--reuid=${user.uid}`,
    `--regid=${user.gid}`,
    '--init-groups',
    '--',
    ...argv,
  ];
}

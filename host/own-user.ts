/**
 * Who this process is for the system. An entry of the user database (passwd(5), a directory service) may be missing: in
 * a container that was given a uid alone, or while the directory is away. Then there still is a uid, and mostly a name.
 */
import { readFileSync } from 'node:fs';
import { type UserInfo, userInfo } from 'node:os';
import { HpcserveError } from '../spec/errors/error.ts';

export interface OwnUser {
  uid: number;
  /** For labels and lists; a service that goes by it asks `ownUserName`. */
  name: string;
  /** Who says so: the user database, USER or LOGNAME of the environment, or nobody (the uid as text). */
  named_by: 'system' | 'environment' | 'uid';
}

type Environment = Readonly<Record<string, string | undefined>>;

export function ownUser(environment: Environment = process.env): OwnUser {
  const uid = process.getuid!();
  const entry = ownEntry();
  if (entry !== undefined) return { uid, name: entry.username, named_by: 'system' };
  const said = [environment.LOGNAME, environment.USER].find((name) => name && mayBeOurs(name, uid));
  return said === undefined
    ? { uid, name: String(uid), named_by: 'uid' }
    : { uid, name: said, named_by: 'environment' };
}

/** The name where a uid does not do. @throws E_USER_UNKNOWN where nobody says it */
export function ownUserName(what: string, advice: string, environment: Environment = process.env): string {
  const { uid, name, named_by } = ownUser(environment);
  if (named_by !== 'uid') return name;
  throw new HpcserveError('E_USER_UNKNOWN', {
    what: `${what} needs your user name, which is not known`,
    because: [noEntry(uid), 'neither USER nor LOGNAME says a name of yours'],
    try: [advice, 'or set USER'],
  });
}

/** The home folder: $HOME, else as the user database has it. @throws E_USER_UNKNOWN where neither says it */
export function homeFolder(environment: Environment = process.env): string {
  if (environment.HOME) return environment.HOME;
  const home = ownEntry()?.homedir;
  if (home) return home;
  throw new HpcserveError('E_USER_UNKNOWN', {
    what: 'your home folder is not known',
    because: ['HOME is not set', noEntry(process.getuid!())],
    try: 'set HOME to a folder that you may write to',
  });
}

/** In words, for errors: why the system has no name for a uid. */
export function noEntry(uid: number): string {
  return `this machine has no entry for uid ${uid}: a container without its users, or a user directory that is away`;
}

function ownEntry(): UserInfo<string> | undefined {
  try {
    return userInfo();
  } catch (error) {
    const { code, syscall } = error as NodeJS.ErrnoException;
    if (code === 'ERR_SYSTEM_ERROR' && syscall === 'uv_os_get_passwd') return undefined;
    throw error;
  }
}

/** Environments are handed on, also to other users (`setpriv`, `docker run --user`): a name of another is not ours. */
function mayBeOurs(name: string, uid: number): boolean {
  if (!/^[^\s:/]+$/.test(name)) return false;
  const owner = localUsers().get(name);
  return owner === undefined || owner === uid;
}

/** Uids by name in the file of this machine; a directory service cannot be asked without asking for an entry. */
function localUsers(): ReadonlyMap<string, number> {
  try {
    const lines = readFileSync('/etc/passwd', 'utf8').split('\n');
    return new Map(lines.map((line) => line.split(':')).map(([name = '', , uid]) => [name, Number(uid)]));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return new Map();
    throw error;
  }
}

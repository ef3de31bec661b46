/** What lies at the path of a folder lock, and what can be said at once of who left it there. */
import { randomBytes } from 'node:crypto';
import {
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { isOutOfRoom, systemCode } from '../spec/errors/system-error.ts';
import { bootId, isAlive, pidNamespace } from './process-identity.ts';

const holderSchema = z.object({
  pid: z.int(),
  start_ticks: z.number(),
  boot_id: z.string(),
  /** Locks of former releases do not say it. */
  pid_namespace: z.string().optional(),
  host: z.string(),
  command: z.string(),
  since_ms: z.number().optional(),
  job_id: z.string().optional(),
});

/** The process that holds a lock, as it says so itself. */
export type LockHolder = z.infer<typeof holderSchema>;

/** A lock that somebody has, or that somebody left behind. */
export interface LockState {
  /** Different after each heartbeat. */
  sign: string;
  /** What is in the folder of the lock; undefined: it is the file of a former release. */
  entries: readonly string[] | undefined;
  /** Undefined where it cannot be read, or not yet. */
  holder: LockHolder | undefined;
}

/** How often a lock is listed again whose entry has another name before it is opened: a heartbeat came between. */
const looks_max = 3;
/**
 * After so long without a heartbeat a lock of another host looks abandoned to those who only look; see `holderOf`, ms.
 */
const unseen_ms = 60_000;

/** `<token>.<count of heartbeats>` */
const entryPattern = /^([0-9a-f]{24})\.(\d+)$/;

/** @returns undefined where nobody has the lock */
export function readLock(path: string): LockState | undefined {
  for (let look = 1; ; look++) {
    let entries: string[];
    try {
      entries = readdirSync(path).sort();
    } catch (error) {
      if (isGone(error)) return undefined;
      if (systemCode(error) === 'ENOTDIR') return readFormerLock(path);
      throw error;
    }
    if (entries.length === 0) return undefined;
    const entry = entries.find((name) => entryPattern.test(name));
    const text = entry === undefined ? undefined : readIfThere(join(path, entry));
    if (entry === undefined || text !== undefined || look === looks_max)
      return { sign: entries.join('/'), entries, holder: parseHolder(text) };
  }
}

/**
 * A former release's lock is a file, and its heartbeat writes to the file or replaces it. Where that stands still, or
 * its process of this host is gone, it is removed like any other; so nothing blocks for ever after an upgrade.
 */
function readFormerLock(path: string): LockState | undefined {
  try {
    const { ino, mtimeMs } = statSync(path);
    const text = readFileSync(path, 'utf8');
    return { sign: `${ino} ${mtimeMs} ${text}`, entries: undefined, holder: parseHolder(text) };
  } catch (error) {
    // It is what should be a folder above it that is a file: then nobody can have the lock.
    if (isGone(error) || systemCode(error) === 'ENOTDIR') return undefined;
    // Meanwhile somebody took it over, and it is a folder.
    if (systemCode(error) === 'EISDIR') return readLock(path);
    throw error;
  }
}

/**
 * Whether the holder lives, where this can be known at once: it is of this host. Undefined where only its heartbeat
 * tells: on another host, in a container with processes of its own, or on this host's name before another boot, for a
 * name stands for one machine only where somebody takes care of it.
 */
export function livesHere(holder: LockHolder | undefined): boolean | undefined {
  if (holder?.host !== hostname() || holder.boot_id !== bootId()) return undefined;
  if (holder.pid_namespace !== undefined && holder.pid_namespace !== pidNamespace()) return undefined;
  return isAlive(holder);
}

/** What NFS and FUSE call an entry that was removed while somebody on that host had it open. */
const removedPattern = /^\.(nfs|fuse_hidden)/;

/**
 * Whether the holder's entry was removed and only the filesystem's remains of it lie there. They go when the last
 * reader closes them, but sshfs forgets some for ever.
 */
export function wasRemoved({ entries }: LockState): boolean {
  return entries?.every((name) => removedPattern.test(name)) === true;
}

/**
 * Removes what a dead holder left, exactly as it was seen: whose heartbeat has gone on meanwhile is not touched,
 * however old the list of a cache was by which it seemed to stand still.
 * @returns false where it had gone on
 */
export function removeDead(path: string, { entries }: LockState): boolean {
  if (entries === undefined) return removeEntry(path);
  // The holder's first. What a filesystem keeps of open files goes after it.
  const [holder, ...others] = [...entries].sort(
    (a, b) => Number(entryPattern.test(b)) - Number(entryPattern.test(a)),
  );
  if (!removeEntry(join(path, holder!))) return false;
  for (const name of others) removeEntry(join(path, name));
  removeIfEmpty(path);
  return true;
}

/**
 * @returns false where nothing has that name; on a shared filesystem its server says so, no cache. ESTALE is another
 * thing: the system has asked again by name already, so the filesystem itself is away.
 */
export function renameEntry(from: string, to: string): boolean {
  try {
    renameSync(from, to);
    return true;
  } catch (error) {
    if (systemCode(error) === 'ENOENT') return false;
    throw error;
  }
}

/** @returns false where it is not there, is in use, or a folder has its name by now: sshfs says EPERM of that */
export function removeEntry(path: string): boolean {
  try {
    unlinkSync(path);
    return true;
  } catch (error) {
    const code = systemCode(error);
    if (isGone(error) || code === 'EISDIR' || code === 'EBUSY') return false;
    if (code === 'EPERM' && statSync(path, { throwIfNoEntry: false })?.isDirectory()) return false;
    throw error;
  }
}

/** Leaves a folder in which somebody else's entry is by now. sshfs has no other name for that than EPERM. */
export function removeIfEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch (error) {
    if (
      isGone(error) ||
      ['ENOTEMPTY', 'EEXIST', 'EPERM', 'EBUSY', 'ENOTDIR'].includes(systemCode(error) ?? '')
    )
      return;
    throw error;
  }
}

/**
 * Who holds a lock, as far as one look tells; undefined where nobody does, or the holder is gone. Of another host it is
 * a guess, by the age of the last heartbeat on the filesystem's clock. It serves those who show it or who start
 * something that takes the lock itself. Taking a lock never goes by a clock.
 */
export function holderOf(path: string): LockHolder | undefined {
  const state = readLock(path);
  const here = livesHere(state?.holder);
  if (here !== undefined) return here ? state!.holder : undefined;
  return state === undefined || (ageByFilesystemClock(path) ?? 0) > unseen_ms ? undefined : state.holder;
}

/**
 * The last change of a file or folder against that of a file made now beside it. Undefined where it is gone, or where
 * there is no room for another: then nobody can take it over either.
 */
function ageByFilesystemClock(path: string): number | undefined {
  const probe = join(dirname(path), `.${randomBytes(6).toString('hex')}.now`);
  try {
    const modified = statSync(path).mtimeMs;
    writeFileSync(probe, '', { flag: 'wx', mode: 0o600 });
    return statSync(probe).mtimeMs - modified;
  } catch (error) {
    if (isGone(error) || isOutOfRoom(error)) return undefined;
    throw error;
  } finally {
    rmSync(probe, { force: true });
  }
}

function parseHolder(text: string | undefined): LockHolder | undefined {
  if (text === undefined) return undefined;
  try {
    return holderSchema.safeParse(JSON.parse(text)).data;
  } catch (error) {
    // Cut off: its owner ended while it wrote. Then its standing still tells.
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (isGone(error)) return undefined;
    throw error;
  }
}

/** Also where a file server has forgotten what a cache still names. */
export function isGone(error: unknown): boolean {
  const code = systemCode(error);
  return code === 'ENOENT' || code === 'ESTALE';
}

/**
 * A lock on a folder that login nodes share: a file created with O_EXCL (atomic also on NFS since v3),
 * holding who has it, with a heartbeat in its modification time. A lock is stale when its owner is a dead
 * process of this host, or when another host's heartbeat is older than `stale_ms` by the clock of the
 * filesystem itself (hosts' clocks may differ).
 */
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { HpcserveError } from '../spec/errors/error.ts';
import { isOutOfRoom } from '../spec/errors/system-error.ts';
import { identityOf, isAlive, type ProcessIdentity } from './process-identity.ts';
import { waitUntil } from './wait-until.ts';

interface LockOwner extends ProcessIdentity {
  host: string;
  nonce: string;
  command: string;
}

export interface FolderLockOptions {
  /** What the holder does, shown to those who wait. */
  command: string;
  /** How long to wait for another holder, ms. */
  timeout_ms: number;
  /** Time between heartbeats, ms. */
  heartbeat_ms?: number;
  /**
   * Age of a heartbeat from another host after which its lock may be taken over, ms; several heartbeats.
   * Lower: quicker recovery after a login node died; higher: safer on filesystems that stall.
   */
  stale_ms?: number;
  signal?: AbortSignal;
}

export class FolderLock {
  readonly #path: string;
  readonly #nonce: string;
  readonly #timer: NodeJS.Timeout;

  private constructor(path: string, nonce: string, heartbeatMs: number) {
    this.#path = path;
    this.#nonce = nonce;
    this.#timer = setInterval(() => this.#heartbeat(), heartbeatMs);
    this.#timer.unref();
  }

  /** @throws HpcserveError E_DEPLOYMENT_LOCKED with the owner when it stays taken. */
  static async acquire(path: string, options: FolderLockOptions): Promise<FolderLock> {
    const heartbeatMs = options.heartbeat_ms ?? 5_000;
    const staleMs = options.stale_ms ?? stale_ms_default;
    const identity = identityOf(process.pid)!;
    const owner: LockOwner = {
      ...identity,
      host: hostname(),
      nonce: randomBytes(12).toString('hex'),
      command: options.command,
    };
    const taken = await waitUntil(
      () => {
        if (createLock(path, owner)) return true;
        return takeOverIfStale(path, staleMs) && createLock(path, owner) ? true : undefined;
      },
      {
        timeout_ms: options.timeout_ms,
        interval_ms: 200,
        ...(options.signal ? { signal: options.signal } : {}),
      },
    );
    if (!taken) {
      const holder = readOwner(path);
      throw new HpcserveError('E_DEPLOYMENT_LOCKED', {
        what: 'another hpcserve command is changing this deployment',
        because: holder
          ? `\`${holder.command}\` on ${holder.host}, process ${holder.pid}, holds ${path}`
          : `${path} is taken`,
      });
    }
    return new FolderLock(path, owner.nonce, heartbeatMs);
  }

  /**
   * Looks again that the lock is still ours: done before every effect that must not happen twice, since a
   * process that was stopped for a minute may have been taken for dead.
   */
  assertHeld(): void {
    if (readOwner(this.#path)?.nonce === this.#nonce) return;
    throw new HpcserveError('E_DEPLOYMENT_LOCKED', {
      what: 'the lock of this deployment was lost',
      because: `${this.#path} is no longer ours: this process paused so long that another took over`,
      try: 'run the command again',
    });
  }

  release(): void {
    clearInterval(this.#timer);
    if (readOwner(this.#path)?.nonce === this.#nonce) rmSync(this.#path, { force: true });
  }

  #heartbeat(): void {
    try {
      if (readOwner(this.#path)?.nonce === this.#nonce) touch(this.#path);
    } catch (error) {
      // The folder may be gone or the filesystem away for a while; assertHeld() reports it before any effect.
      if (typeof (error as NodeJS.ErrnoException).code !== 'string') throw error;
    }
  }
}

/** Age of a heartbeat from another host after which its lock may be taken over, unless told otherwise, ms. */
const stale_ms_default = 60_000;

/** Who holds a lock now; undefined where nobody does, or its owner is gone. */
export function holderOf(path: string): (ProcessIdentity & { host: string }) | undefined {
  if (!existsSync(path) || isStale(path, stale_ms_default)) return undefined;
  return readOwner(path);
}

function createLock(path: string, owner: LockOwner): boolean {
  let descriptor: number;
  try {
    descriptor = openSync(path, 'wx', 0o600);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
  try {
    writeSync(descriptor, JSON.stringify(owner));
    fsyncSync(descriptor);
  } catch (error) {
    // On a full disk: a lock that names nobody would block everybody until it is stale.
    rmSync(path, { force: true });
    throw error;
  } finally {
    closeSync(descriptor);
  }
  return true;
}

/**
 * Removes a stale lock. Two that find the same lock stale must not remove one another's new lock, so the
 * removal itself is guarded by a second O_EXCL file and looks again under it.
 * @returns whether the lock was removed.
 */
function takeOverIfStale(path: string, staleMs: number): boolean {
  if (!isStale(path, staleMs)) return false;
  const guard = `${path}.takeover`;
  try {
    closeSync(openSync(guard, 'wx', 0o600));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    const age = ageByFilesystemClock(guard);
    // Its owner died in the few microseconds between two system calls.
    if (age !== undefined && age > staleMs) rmSync(guard, { force: true });
    return false;
  }
  try {
    if (!isStale(path, staleMs)) return false;
    const grave = `${path}.${randomBytes(6).toString('hex')}.stale`;
    renameSync(path, grave);
    rmSync(grave, { force: true });
    return true;
  } finally {
    rmSync(guard, { force: true });
  }
}

function isStale(path: string, staleMs: number): boolean {
  const owner = readOwner(path);
  if (owner && owner.host === hostname() && sameBootOrDead(owner)) return !isAlive(owner);
  // Of another host; or empty or cut: its owner is between creating and writing, or died there.
  const age = ageByFilesystemClock(path);
  return age !== undefined && age > staleMs;
}

/** On the same host name a different boot id may be another container; then only its heartbeat counts. */
function sameBootOrDead(owner: LockOwner): boolean {
  return owner.boot_id === identityOf(process.pid)!.boot_id;
}

function readOwner(path: string): LockOwner | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as LockOwner;
  } catch (error) {
    if (error instanceof SyntaxError || (error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

/**
 * Modification time of a file against that of one written now beside it; undefined where it is gone, or where there is
 * no room for another: then nobody can take it over either.
 */
function ageByFilesystemClock(path: string): number | undefined {
  const probe = join(dirname(path), `.${randomBytes(6).toString('hex')}.now`);
  try {
    const modified = statSync(path).mtimeMs;
    writeFileSync(probe, '', { flag: 'wx', mode: 0o600 });
    return statSync(probe).mtimeMs - modified;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT' || isOutOfRoom(error)) return undefined;
    throw error;
  } finally {
    rmSync(probe, { force: true });
  }
}

/** Writes the same bytes again: that sets the modification time by the clock of the file server, utimes by ours. */
function touch(path: string): void {
  const owner = readFileSync(path);
  const descriptor = openSync(path, 'r+');
  try {
    writeSync(descriptor, owner, 0, owner.length, 0);
  } finally {
    closeSync(descriptor);
  }
}

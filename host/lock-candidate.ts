import { randomBytes } from 'node:crypto';
import { chmodSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { systemCode } from '../spec/errors/system-error.ts';
import { isGone, type LockHolder, livesHere, readLock, removeDead, renameEntry } from './lock-state.ts';
import { identityOf, pidNamespace } from './process-identity.ts';
import { spokenOf } from './temporary-name.ts';

/** What one of another host left beside a lock is removed after so long, ms. */
const leftover_ms = 86_400_000;
/** For so long sshfs may say that it is not permitted, which is all it says of a folder that is not empty, ms. */
const refused_max_ms = 30_000;

const suffix = '.taking';

/** One who wants a folder lock: the folder that is to become the lock, made beside it and renamed into its place. */
export class LockCandidate {
  readonly #path: string;
  readonly #holder: LockHolder;
  readonly #shared: boolean;
  #token = '';
  /** The folder, where there is one. */
  #folder: string | undefined;
  #refused_ms: number | undefined;

  /** @param options as `FolderLockOptions` has them */
  constructor(
    path: string,
    { command, job_id, shared = false }: { command: string; job_id?: string | undefined; shared?: boolean },
  ) {
    this.#path = path;
    this.#shared = shared;
    this.#holder = {
      ...identityOf(process.pid)!,
      pid_namespace: pidNamespace(),
      host: hostname(),
      command,
      since_ms: Date.now(),
      job_id,
    };
  }

  get token(): string {
    return this.#token;
  }

  /** Heartbeats that the lock has had when it was taken. */
  get count(): number {
    return 1;
  }

  /**
   * Takes the lock where nobody has it. The first heartbeat is part of it: it says that this entry is the one in the
   * lock, whatever the answer to the rename was (NFS may send a request twice) and whoever cleared the folder away
   * before.
   */
  take(): boolean {
    const folder = this.#folder ?? this.#make();
    try {
      renameSync(folder, this.#path);
    } catch (error) {
      if (this.#isTaken(error)) return false;
      if (!isGone(error)) throw spokenOf(this.#path, folder, error);
    }
    this.#folder = undefined;
    if (!renameEntry(join(this.#path, `${this.#token}.0`), join(this.#path, `${this.#token}.1`)))
      return false;
    this.#removeLeftovers();
    return true;
  }

  discard(): void {
    if (this.#folder !== undefined) rmSync(this.#folder, { recursive: true, force: true });
  }

  /** With another token each time: an entry's name is never used again. */
  #make(): string {
    this.#token = randomBytes(12).toString('hex');
    const folder = join(dirname(this.#path), `${this.#prefix}${this.#token}${suffix}`);
    try {
      const mode = this.#shared ? statSync(dirname(this.#path)).mode & 0o7777 : 0o700;
      mkdirSync(folder, { mode });
      this.#folder = folder;
      const entry = join(folder, `${this.#token}.0`);
      writeFileSync(entry, JSON.stringify(this.#holder), { mode: mode & 0o666, flush: true });
      // The umask of this process may be narrower than that of whoever made the folder around it.
      if (this.#shared) {
        chmodSync(entry, mode & 0o666);
        chmodSync(folder, mode);
      }
    } catch (error) {
      throw spokenOf(this.#path, folder, error);
    }
    return folder;
  }

  get #prefix(): string {
    return `.${basename(this.#path)}.`;
  }

  #isTaken(error: unknown): boolean {
    const code = systemCode(error);
    // A file is a lock of a former release.
    if (code === 'ENOTEMPTY' || code === 'EEXIST' || code === 'ENOTDIR') return true;
    // Whether the lock is there tells nothing: its holder may have let it go since.
    if (code !== 'EPERM') return false;
    this.#refused_ms ??= performance.now();
    return performance.now() - this.#refused_ms < refused_max_ms;
  }

  /** Of those that were killed while they took it. */
  #removeLeftovers(): void {
    const beside = dirname(this.#path);
    for (const name of readdirSync(beside)) {
      if (!name.startsWith(this.#prefix) || !name.endsWith(suffix)) continue;
      const folder = join(beside, name);
      const left = readLock(folder);
      if (left === undefined || livesHere(left.holder) !== false) {
        const made = statSync(folder, { throwIfNoEntry: false });
        if (made === undefined || statSync(this.#path).mtimeMs - made.mtimeMs < leftover_ms) continue;
      }
      if (left === undefined) rmSync(folder, { recursive: true, force: true });
      else removeDead(folder, left);
    }
  }
}

import { rename } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { systemCode, systemMessage } from '../spec/errors/system-error.ts';
import { every } from './every.ts';
import { LockCandidate } from './lock-candidate.ts';
import {
  type LockHolder,
  type LockState,
  livesHere,
  readLock,
  removeDead,
  removeEntry,
  removeIfEmpty,
  renameEntry,
  wasRemoved,
} from './lock-state.ts';

export type { LockHolder } from './lock-state.ts';

export interface LockTimes {
  /** Between two heartbeats. Lower: others see sooner that the holder lives; higher: less for the metadata server. */
  heartbeat_ms: number;
  /**
   * A holder of another host whose count stands still for so long is dead: several heartbeats, and longer than its
   * event loop or its host is ever busy. Lower: others go on sooner after a host died; higher: fewer that only slept
   * are taken over, which costs them their work but is safe.
   */
  stale_ms: number;
}

/** Around a few steps that belong together: most are over before the first heartbeat, and whoever waits has time. */
export const briefLock: LockTimes = { heartbeat_ms: 5_000, stale_ms: 30_000 };
/** For as long as a process serves: another is to take its place soon after its host died. */
export const lastingLock: LockTimes = { heartbeat_ms: 2_000, stale_ms: 15_000 };

/** Why somebody has no lock. */
export type LockTrouble =
  /** `holder` is undefined where it does not say who it is. */
  | { kind: 'taken'; path: string; holder: LockHolder | undefined }
  | { kind: 'lost'; path: string; holder: LockHolder | undefined };

export interface FolderLockOptions {
  /** What the holder does, shown to those who wait. */
  command: string;
  /** The Slurm job that it runs in. */
  job_id?: string | undefined;
  /**
   * How long to wait for a holder that lives. One of another host that shows no life is waited for until it is judged,
   * ms.
   */
  timeout_ms: number;
  times: LockTimes;
  /** Who may write the folder around the lock may take over from a dead holder. Else its owner alone may. */
  shared?: boolean;
  /** Told once, after `notice_ms`, when another has the lock and this process waits for it. */
  onWait?: (trouble: LockTrouble) => void;
  /** The error of who cannot have the lock, or has lost it. */
  error: (trouble: LockTrouble) => Error;
  /** Told when a heartbeat finds that another has taken over: this process must stop writing. */
  onLost?: (reason: string) => void;
  signal?: AbortSignal | undefined;
}

/** Between two looks of who waits. Lower: taken over sooner; higher: less for the metadata server. */
const look_ms = 200;
/** Most locks are given back sooner than a person wonders, ms. Lower: words about nothing; higher: silence. */
const notice_ms = 500;
/**
 * A longer time between two looks says nothing of the holder: this process stood still, or the filesystem did for both.
 */
const own_pause_ms = 1_000;
/**
 * What was found dead and cannot be removed for so long is held after all: something has it open, or a cache is that
 * old.
 */
const remove_max_ms = 30_000;

/**
 * A lock on a folder that several hosts share: one holder at a time, also on NFS, Lustre and what FUSE brings, and
 * however wrong the hosts' clocks are. The lock is a folder with one entry, whose name says who has it and counts
 * heartbeats:
 *
 *   lock/                          nobody has it where this is absent or empty
 *     8a3f…c2.17                   <token>.<heartbeats>; in it, as JSON: host, process, boot, command
 *
 *   take     make .lock.<token>.taking/ with <token>.0 in it, and rename it to lock/: a folder replaces an empty one,
 *            never one with an entry (rename(2): ENOTEMPTY or EEXIST). Of many that try, the server lets one.
 *   hold     rename <token>.17 to <token>.18 every few seconds.
 *   assert   the same at once, before an effect: ENOENT says that another has taken over.
 *   release  remove the entry, then the folder, which stays if another's entry is in it by now.
 *   break    who has seen <token>.17 stand still for `stale_ms` removes <token>.17, then takes the lock like anybody.
 *
 * Each step names what it changes, down to the count, and the file server carries it out whole or not at all. So
 * nothing that a process saw before it stood still, or that a cache showed it, can do harm when it acts on it: a holder
 * that has counted on since is not removed (ENOENT), two that find the same holder dead remove the same entry once, and
 * only one of them gets its folder into the empty place. A holder of this host (same boot, same process namespace)
 * needs no waiting: its process is there or not, and a zombie is not. docs/architecture.md#locks compares other
 * protocols.
 *
 * What no lock file can do: a process that is stopped after `assertHeld` and before its effect. Effects that must not
 * happen twice even then are looked up first (the comment of a Slurm job).
 */
export class FolderLock {
  readonly #path: string;
  readonly #token: string;
  readonly #options: FolderLockOptions;
  readonly #stop: () => void;
  #count: number;
  #beating = false;
  #over = false;

  private constructor(path: string, { token, count }: LockCandidate, options: FolderLockOptions) {
    this.#path = path;
    this.#token = token;
    this.#count = count;
    this.#options = options;
    this.#stop = every(options.times.heartbeat_ms, () => void this.#beat());
  }

  /**
   * @throws what `options.error` makes of it where another holds the lock for longer than `timeout_ms`; the system's
   * errors
   */
  static async acquire(path: string, options: FolderLockOptions): Promise<FolderLock> {
    const { timeout_ms, times, signal } = options;
    const begin_ms = performance.now();
    const deadline_ms = begin_ms + timeout_ms;
    let { onWait } = options;
    const watch = new HolderWatch(times.stale_ms);
    const candidate = new LockCandidate(path, options);
    try {
      for (;;) {
        signal?.throwIfAborted();
        const state = watch.look(path);
        if (state === 'free') {
          if (candidate.take()) return new FolderLock(path, candidate, options);
        } else if (state !== 'unknown' && performance.now() >= deadline_ms)
          throw options.error({ kind: 'taken', path, holder: state.holder });
        if (state !== 'free' && performance.now() - begin_ms >= notice_ms) {
          onWait?.({ kind: 'taken', path, holder: readLock(path)?.holder });
          onWait = undefined;
        }
        await sleep(look_ms, undefined, signal ? { signal } : {});
      }
    } finally {
      candidate.discard();
    }
  }

  /**
   * Asks the file server whether the lock is still ours: done before every effect that must not happen twice, since a
   * process that was stopped for a while may have been taken for dead.
   */
  assertHeld(): void {
    if (!this.#over && this.#advance()) return;
    throw this.#options.error({ kind: 'lost', path: this.#path, holder: readLock(this.#path)?.holder });
  }

  release(): void {
    this.#end();
    // A heartbeat may be on its way.
    if (removeEntry(this.#entry(this.#count)) || removeEntry(this.#entry(this.#count + 1)))
      removeIfEmpty(this.#path);
  }

  #end(): void {
    this.#over = true;
    this.#stop();
  }

  /**
   * @returns whether the lock is ours. One count further is ours, too: a heartbeat on its way may have come first, or
   * NFS has sent the request twice and heard the answer to the second.
   */
  #advance(): boolean {
    for (const count of [this.#count, this.#count + 1]) {
      if (!renameEntry(this.#entry(count), this.#entry(count + 1))) continue;
      this.#count = count + 1;
      return true;
    }
    return false;
  }

  /** Asynchronous: a shared filesystem may take its time, and answers must not wait for it. */
  async #beat(): Promise<void> {
    if (this.#beating) return;
    this.#beating = true;
    const count = this.#count;
    try {
      await rename(this.#entry(count), this.#entry(count + 1));
      this.#count = Math.max(this.#count, count + 1);
    } catch (error) {
      if (systemCode(error) !== 'ENOENT') this.#warn(error);
      else if (!this.#over && this.#count === count) this.#lookFurther();
    } finally {
      this.#beating = false;
    }
  }

  /** The count that is expected is not there: it may be one further. */
  #lookFurther(): void {
    try {
      if (!this.#advance()) this.#lost();
    } catch (error) {
      this.#warn(error);
    }
  }

  /** The filesystem may be away for a while; a takeover meanwhile is seen at the next heartbeat. */
  #warn(error: unknown): void {
    process.emitWarning(`the heartbeat of ${this.#path} could not be written: ${systemMessage(error)}`);
  }

  #lost(): void {
    // First: where the filesystem cannot say it now, the next heartbeat asks again.
    const holder = readLock(this.#path)?.holder;
    this.#end();
    this.#options.onLost?.(
      holder ? `pid ${holder.pid} on ${holder.host} took ${this.#path}` : `${this.#path} was removed`,
    );
  }

  #entry(count: number): string {
    return join(this.#path, `${this.#token}.${count}`);
  }
}

/** Watches the holder of a lock, and removes it once it is certainly dead. */
class HolderWatch {
  readonly #stale_ms: number;
  #sign: string | undefined;
  #still_ms = 0;
  #looked_ms = 0;
  /** A heartbeat was seen, or that one holder came after another. */
  #moved = false;

  constructor(stale_ms: number) {
    this.#stale_ms = stale_ms;
  }

  /** @returns who holds it, as far as that one lives; `unknown` where that is not sure yet */
  look(path: string): 'free' | 'unknown' | LockState {
    const state = readLock(path);
    if (state === undefined) return 'free';
    const here = livesHere(state.holder);
    if (here === true) return state;
    const isOver = here === false || wasRemoved(state) || this.#standsStill_ms(state) >= this.#stale_ms;
    // Where it is not there any more it has gone on, or somebody else was first: the next look tells.
    if (isOver && removeDead(path, state)) return 'free';
    return this.#moved || this.#still_ms > this.#stale_ms + remove_max_ms ? state : 'unknown';
  }

  #standsStill_ms({ sign }: LockState): number {
    const now_ms = performance.now();
    const waited_ms = now_ms - this.#looked_ms;
    this.#looked_ms = now_ms;
    if (this.#sign !== sign) {
      this.#moved = this.#sign !== undefined;
      this.#sign = sign;
      this.#still_ms = 0;
    } else this.#still_ms += Math.min(waited_ms, own_pause_ms);
    return this.#still_ms;
  }
}

import { type LoadLeg, type LoadProgress, loadLegs } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import type { OpenModelFile } from './open-model-file.ts';
import type { Unit } from './pieces.ts';
import type { LoadShare } from './unit-loader.ts';

/** A unit takes milliseconds, seconds from a slow disk: after this long without a byte, the file hangs. */
const stall_ms = 60_000;
/**
 * After so long without a byte peers are asked for what the file was to bring. Lower: a file that hangs costs less;
 * higher: one that is only slow is read to its end.
 */
const hang_ms = 5000;
/** How long a caller that helps waits for others once no unit is left to take. */
const wait_ms = 2;
/** A load that was given up and has a thread in a read after so long hangs: a unit takes milliseconds. */
const leaving_ms_max = 1000;

/** Peers that bring a part of a load. */
export interface Fetching {
  /** Who has what is not known yet; the file is not read before, but this is short. */
  readonly asking: boolean;
  /** They still have something on its way, and it comes on. */
  readonly pending: boolean;
  /** Units of the load that nobody has brought, once nobody is at them. */
  readonly left: readonly Unit[];
  /**
   * The file's threads have nothing left to take: takes back what the file would bring sooner.
   * @param loaded_bytes of the load, from the file and from peers
   */
  hurry(loaded_bytes: number): void;
  /** Whether what the file has not brought could come from peers; which of them have it is not known. */
  readonly canRecall: boolean;
  /**
   * The file's threads take nothing more, and may hang: what they have not placed is theirs no more, and peers are
   * asked for it.
   * @returns undefined where somebody still writes to its places: to be asked again
   */
  recall(load: LoadWork): { work: LoadWork; fetching: Fetching } | undefined;
  /** What is on its way is no longer waited for. */
  stop(): void;
  /** Who brought how much, and what went wrong. */
  close(): PeerPart[];
}

/** What a node's memory had of a load. */
export interface PeerPart {
  node: string;
  bytes: number;
  /** Why no more came from there. */
  trouble?: string;
}

interface Begun {
  source: OpenModelFile;
  work: LoadWork;
  /** Sets threads to work. */
  start(work: LoadWork): LoadShare;
  fetching: Fetching | undefined;
  onProgress(progress: LoadProgress): void;
  /** The filesystem refused a read past the page cache. */
  onDirectRefused(): void;
  /** It was given up, and a thread of it does not come back. */
  onHang(): void;
}

/** What threads of a load do that was given up. One that hangs may still write to the places of the tensors. */
type LettingGo = 'gone' | 'leaving' | 'hanging';

/** One load under way: looked after by the thread that began it, between other things that it does. */
export class TensorLoading {
  readonly #source: OpenModelFile;
  readonly #start: Begun['start'];
  #fetching: Fetching | undefined;
  readonly #onProgress: (progress: LoadProgress) => void;
  readonly #onDirectRefused: () => void;
  readonly #onHang: () => void;
  readonly #bytes_total: number;
  readonly #started = performance.now();
  #work: LoadWork;
  /** Absent until the file is read. */
  #share: LoadShare | undefined;
  #counters: LoadCounters;
  /** Of the file's threads, where these hung and peers were asked for the rest. */
  #hanging: LoadCounters | undefined;
  /** Of the file and of peers, before what no peer could bring was begun. */
  #bytes_before = 0;
  #bytes = -1;
  #moved_at = performance.now();
  #peers: PeerPart[] = [];
  /** Of counters that are used no more. */
  #legs_before: readonly LoadLeg[] = [];
  #direct_errno = 0;
  /** What no peer could bring was begun. */
  #rest = false;
  /** Since when it is given up. */
  #given_up_ms: number | undefined;
  #areEnded = false;
  #state: LettingGo = 'leaving';

  constructor({ source, work, start, fetching, onProgress, onDirectRefused, onHang }: Begun) {
    this.#onDirectRefused = onDirectRefused;
    this.#onHang = onHang;
    this.#source = source;
    this.#work = work;
    this.#start = start;
    this.#fetching = fetching;
    if (!fetching) this.#share = start(work);
    this.#onProgress = onProgress;
    this.#counters = new LoadCounters(work.counters);
    this.#bytes_total = work.units.reduce(
      (sum, unit) => unit.reduce((part, { bytes }) => part + bytes, sum),
      0,
    );
  }

  /** Once it is over: what came from the memory of other nodes. */
  get peers(): readonly PeerPart[] {
    return this.#peers;
  }

  /** Whether bytes came past the page cache, or what was against it; undefined: they were not to. */
  get past_cache(): string | undefined {
    const { direct, direct_refused } = this.#source;
    const errno = this.#direct_errno || this.#counters.direct_errno;
    if (direct_refused !== undefined || errno > 0)
      return `through the page cache, which cannot keep it: its filesystem refuses direct reads (${direct_refused ?? `errno ${errno}`})`;
    return direct ? 'past the page cache, which could not keep it' : undefined;
  }

  /** What its threads did so far, by part of the way. */
  get legs(): LoadLeg[] {
    const all = [...this.#legs_before, ...this.#counters.legs];
    return loadLegs.flatMap((leg) => {
      const same = all.filter((one) => one.leg === leg);
      const sum = (of: 'bytes' | 'thread_ms'): number => same.reduce((total, one) => total + one[of], 0);
      return same.length === 0 ? [] : [{ leg, bytes: sum('bytes'), thread_ms: sum('thread_ms') }];
    });
  }

  /**
   * @param help takes one unit, and waits a little where there is none to take
   * @param from what it takes units: those `in_memory` keep the caller waiting for no disk or filesystem
   * @returns whether every byte is in its place
   * @throws HpcserveError E_MODEL_WEIGHTS: some are no numbers; E_POOL_LOAD: the file cannot be read, is shorter than
   *   it was, or has changed; then the places of the tensors hold nothing of use, and no thread writes to them any more
   *   unless `details.still_writing` is true
   */
  advance(help: boolean, from: 'any' | 'in_memory' = 'any'): boolean {
    const counters = this.#counters;
    const { units } = this.#work;
    if (!this.#share && this.#fetching?.asking) {
      if (help) counters.wait(counters.active, wait_ms);
      return false;
    }
    this.#share ??= this.#start(this.#work);
    if (help && !this.#share.step(from) && this.#isUnderWay) counters.wait(counters.active, wait_ms);
    this.#report();
    if (counters.failed) this.#fetching?.stop();
    else if (!counters.left(units.length)) this.#fetching?.hurry(counters.bytes);
    if (this.#isUnderWay) {
      this.#checkStall();
      return false;
    }
    // Threads may have ended since.
    this.#report();
    if (!counters.failed && this.#loadRest()) return false;
    this.#endShares();
    if (counters.direct_errno > 0) this.#onDirectRefused();
    try {
      const failure = counters.failure;
      if (failure) {
        const { code = 'E_POOL_LOAD', ...words } = failure;
        throw new HpcserveError(code, words);
      }
      this.#source.check();
      return true;
    } finally {
      // A thread that hangs still has the file in its hands: see `letGo`.
      if (this.#active === 0) this.#close();
    }
  }

  /** Nothing of it has the file any more; false where it is over: it is to be let go of. */
  get isClosed(): boolean {
    return this.#state === 'gone';
  }

  /** Threads that are at a unit now, those included that hang. */
  get #active(): number {
    return this.#counters.active + (this.#hanging?.active ?? 0);
  }

  get #isUnderWay(): boolean {
    const counters = this.#counters;
    if (counters.left(this.#work.units.length) || counters.active > 0) return true;
    if (this.#fetching?.pending === true) return true;
    // What peers do not have either may still come from the file.
    return (this.#hanging?.active ?? 0) > 0 && this.#fetching!.left.length > 0;
  }

  /** @throws HpcserveError E_POOL_LOAD: the file hangs */
  #checkStall(): void {
    const silent_ms = performance.now() - this.#moved_at;
    if (silent_ms > hang_ms) this.#recall();
    if (silent_ms <= stall_ms) return;
    if (!this.#counters.left(this.#work.units.length) && this.#active === 0) {
      // The file is not at fault: it has not been asked for the rest yet.
      this.#fetching?.stop();
      this.#moved_at = performance.now();
      return;
    }
    const still_writing = !this.#giveUp();
    throw new HpcserveError('E_POOL_LOAD', {
      what: `${this.#work.path} is not read on`,
      because: `no byte came in ${stall_ms / 1000} s: its disk or filesystem hangs`,
      details: { still_writing },
    });
  }

  /** The file's threads hang: peers are asked for what those were to bring, as far as none of it is being written. */
  #recall(): void {
    if (this.#hanging || this.#rest || this.#counters.active === 0) return;
    if (!this.#fetching?.canRecall || this.#fetching.pending) return;
    // Even where they come back, they take nothing more: what is left then is read anew.
    this.#counters.stop();
    const counters = new LoadCounters();
    const again = this.#fetching.recall({ ...this.#work, counters: counters.shared });
    if (!again) return;
    counters.stop();
    this.#hanging = this.#counters;
    this.#fetching = again.fetching;
    this.#goOn(again.work);
    this.#onHang();
  }

  /** @returns whether all threads have let go of it: if not, they may still write to the places of the tensors */
  cancel(): boolean {
    return this.#giveUp();
  }

  /** Gives it up, and waits for nobody: it is asked again until its threads are gone. */
  letGo(): LettingGo {
    // Whoever is told of the load only now enters, too, and leaves again without a unit: the count is not asked again.
    if (this.#state === 'gone') return this.#state;
    this.#counters.stop();
    this.#fetching?.stop();
    this.#given_up_ms ??= performance.now();
    if (this.#active === 0) {
      this.#endShares();
      this.#close();
    } else if (this.#state === 'leaving' && performance.now() - this.#given_up_ms >= leaving_ms_max) {
      // A thread that hangs in a read still has the file in its hands.
      this.#state = 'hanging';
      this.#endShares();
      this.#onHang();
    }
    return this.#state;
  }

  /** What no peer could bring is read from the file. @returns whether there is any */
  #loadRest(): boolean {
    // What peers were asked for anew is theirs no more.
    if (this.#hanging) this.#fetching!.stop();
    if (this.#hanging && this.#fetching!.pending) return true;
    const units = this.#rest ? [] : (this.#fetching?.left ?? []);
    this.#rest = true;
    if (units.length === 0) return false;
    this.#share?.end();
    this.#goOn({ ...this.#work, shared: undefined, units, counters: new LoadCounters().shared });
    this.#share = this.#start(this.#work);
    return true;
  }

  /** From now on it is about these units, with counters of their own. */
  #goOn(work: LoadWork): void {
    this.#bytes_before += this.#counters.bytes;
    this.#legs_before = this.legs;
    this.#direct_errno = this.#counters.direct_errno;
    this.#work = work;
    this.#counters = new LoadCounters(work.counters);
  }

  #close(): void {
    this.#state = 'gone';
    this.#source.close();
  }

  #endPeers(): void {
    this.#peers = this.#fetching?.close() ?? [];
  }

  /** @returns whether all threads have let go of it */
  #giveUp(): boolean {
    while (this.letGo() === 'leaving') this.#counters.wait(this.#counters.active, wait_ms);
    return this.#state === 'gone';
  }

  #endShares(): void {
    if (this.#areEnded) return;
    this.#areEnded = true;
    this.#share?.end();
    this.#endPeers();
  }

  #report(): void {
    const bytes_loaded = this.#bytes_before + this.#counters.bytes;
    if (bytes_loaded === this.#bytes) return;
    this.#bytes = bytes_loaded;
    this.#moved_at = performance.now();
    this.#onProgress({
      // A group that was recalled comes as a whole, also what the file had brought of it.
      bytes_loaded: Math.min(bytes_loaded, this.#bytes_total),
      bytes_total: this.#bytes_total,
      elapsed_ms: this.#moved_at - this.#started,
      legs: this.legs,
    });
  }
}

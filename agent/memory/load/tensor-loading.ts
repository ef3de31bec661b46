import { type LoadLeg, type LoadProgress, loadLegs } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import { LoadCounters, type LoadWork } from './load-work.ts';
import type { OpenModelFile } from './open-model-file.ts';
import type { Unit } from './pieces.ts';
import type { LoadShare } from './unit-loader.ts';

/** A unit takes milliseconds, seconds from a slow disk: after this long without a byte, the file hangs. */
const stall_ms = 60_000;
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
  /** Units of the load that no peer could bring. */
  readonly left: readonly Unit[];
  /**
   * The file's threads have nothing left to take: takes back what the file would bring sooner.
   * @param loaded_bytes of the load, from the file and from peers
   */
  hurry(loaded_bytes: number): void;
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
  readonly #fetching: Fetching | undefined;
  readonly #onProgress: (progress: LoadProgress) => void;
  readonly #onDirectRefused: () => void;
  readonly #onHang: () => void;
  readonly #bytes_total: number;
  readonly #started = performance.now();
  #work: LoadWork;
  /** Absent until the file is read. */
  #share: LoadShare | undefined;
  #counters: LoadCounters;
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
    const { units, path } = this.#work;
    const isUnderWay = (): boolean =>
      counters.left(units.length) || counters.active > 0 || this.#fetching?.pending === true;
    if (!this.#share && this.#fetching?.asking) {
      if (help) counters.wait(counters.active, wait_ms);
      return false;
    }
    this.#share ??= this.#start(this.#work);
    if (help && !this.#share.step(from) && isUnderWay()) counters.wait(counters.active, wait_ms);
    this.#report();
    if (counters.failed) this.#fetching?.stop();
    else if (!counters.left(units.length)) this.#fetching?.hurry(counters.bytes);
    if (isUnderWay()) {
      if (performance.now() - this.#moved_at <= stall_ms) return false;
      if (!counters.left(units.length) && counters.active === 0) {
        // The file is not at fault: it has not been asked for the rest yet.
        this.#fetching?.stop();
        this.#moved_at = performance.now();
        return false;
      }
      const still_writing = !this.#giveUp();
      throw new HpcserveError('E_POOL_LOAD', {
        what: `${path} is not read on`,
        because: `no byte came in ${stall_ms / 1000} s: its disk or filesystem hangs`,
        details: { still_writing },
      });
    }
    // Threads may have ended since.
    this.#report();
    if (!counters.failed && this.#loadRest()) return false;
    this.#endPeers();
    this.#share.end();
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
      this.#source.close();
    }
  }

  /** @returns whether all threads have let go of it: if not, they may still write to the places of the tensors */
  cancel(): boolean {
    return this.#giveUp();
  }

  /** Gives it up, and waits for nobody: it is asked again until its threads are gone. */
  letGo(): LettingGo {
    // Whoever is told of the load only now enters, too, and leaves again without a unit: the count is not asked again.
    if (this.#state === 'gone') return this.#state;
    const counters = this.#counters;
    counters.stop();
    this.#fetching?.stop();
    this.#given_up_ms ??= performance.now();
    if (counters.active === 0) {
      this.#state = 'gone';
      this.#endShares();
      this.#source.close();
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
    const units = this.#rest ? [] : (this.#fetching?.left ?? []);
    this.#rest = true;
    if (units.length === 0) return false;
    this.#share?.end();
    this.#bytes_before += this.#counters.bytes;
    this.#legs_before = this.legs;
    this.#direct_errno = this.#counters.direct_errno;
    const { shared: _, ...same } = this.#work;
    this.#work = { ...same, units, counters: new LoadCounters().shared };
    this.#counters = new LoadCounters(this.#work.counters);
    this.#share = this.#start(this.#work);
    return true;
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
      bytes_loaded,
      bytes_total: this.#bytes_total,
      elapsed_ms: this.#moved_at - this.#started,
      legs: this.legs,
    });
  }
}

import {
  type LinkEstimate,
  newLinkEstimate,
  observeTransfer,
  whySlow,
} from '../../solver/streaming/link-estimate.ts';
import { mayBring, type RingPart } from '../../solver/streaming/ring-plan.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { TensorLoading } from '../memory/load/tensor-loading.ts';
import type { PartWeights } from './part-weights.ts';
import type { RingUser, StreamingArena } from './streaming-arena.ts';

/** Loads that are told to the threads in advance: one that runs, and those that follow it without a pause. */
const begun_max = 3;

/** What streaming did so far. */
export interface StreamStatistics {
  streamed_bytes: number;
  /** Time for which the computation waited for bytes. */
  waited_ms: number;
  link: LinkEstimate | undefined;
  /** Why it is slower than it was at first. */
  slow: string | undefined;
}

/** A part of the model, in its place. */
export interface StreamPart {
  weights: PartWeights;
  /** Where it lies in the ring; absent: it has a place of its own, and stays there. */
  ring?: RingPart;
}

interface PartLoad {
  part: number;
  load: TensorLoading;
}

/**
 * The parts of one model in the order in which they are computed, round after round. Each is brought while those before
 * it compute, as far as the ring has room. Parts that stay come with the first round, as the others do, so that a model
 * is there at once; later rounds find them.
 */
export class PartStream implements RingUser {
  readonly #arena: StreamingArena;
  readonly parts: readonly StreamPart[];
  /** Of the parts that stay, and of those that every round brings. */
  readonly sizes: Pick<StreamedWeights, 'resident_bytes' | 'step_bytes'>;
  /** Of the parts that do not stay. */
  readonly #ring: readonly RingPart[];
  /** On their way, in the order in which they are computed. */
  readonly #loads: PartLoad[] = [];
  /** Parts that stay, and are there. */
  readonly #kept = new Set<number>();
  /** Behind the part that was begun last, and the one that was computed last. */
  #next_begun = 0;
  #next_computed = 0;
  /** Parts of the ring, counted over all rounds. */
  #begun = 0;
  #computed = 0;
  /** Nothing is brought, or on its way, that the next round could begin with. */
  #stopped = true;
  #streamed_bytes = 0;
  #waited_ms = 0;
  #link: LinkEstimate | undefined;

  constructor(arena: StreamingArena, parts: readonly StreamPart[]) {
    this.#arena = arena;
    this.parts = parts;
    this.#ring = parts.flatMap(({ ring }) => ring ?? []);
    const bytesOf = (some: readonly StreamPart[]): number =>
      some.reduce((sum, { weights }) => sum + weights.bytes, 0);
    this.sizes = {
      resident_bytes: bytesOf(parts.filter(({ ring }) => !ring)),
      step_bytes: bytesOf(parts.filter(({ ring }) => ring)),
    };
  }

  get statistics(): StreamStatistics {
    return {
      streamed_bytes: this.#streamed_bytes,
      waited_ms: this.#waited_ms,
      link: this.#link,
      slow: this.#link && whySlow(this.#link),
    };
  }

  /** The ring is empty, and this model's. */
  start(): void {
    this.#stopped = false;
    this.#next_begun = 0;
    this.#next_computed = 0;
    this.#begun = 0;
    this.#computed = 0;
    this.#bring();
  }

  /** Another model has the ring from now on. */
  stop(): void {
    this.#stopped = true;
    for (const { load } of this.#loads.splice(0)) {
      // Nobody may write to the ring once it is another's.
      while (!load.cancel());
    }
  }

  /**
   * The ring is this model's, unless all of it stays. Where the last round failed, this one begins with an empty ring.
   * @throws HpcserveError E_POOL_LOAD: the ring can be nobody's any more
   */
  beginRound(): void {
    if (this.#kept.size === this.parts.length) return;
    this.#arena.turnTo(this);
    if (this.#next_computed === 0 && !this.#stopped) return;
    this.stop();
    this.start();
  }

  /**
   * Waits until a part is in its place. The thread that computes helps meanwhile.
   * @throws HpcserveError E_POOL_LOAD, E_MODEL_WEIGHTS
   */
  awaitPart(part: number): void {
    if (this.#kept.has(part)) return;
    const { weights, ring } = this.parts[part]!;
    const began_ms = performance.now();
    const { load } = this.#loads[0]!;
    try {
      while (!load.advance(true));
    } catch (error) {
      this.#loads.shift();
      if (error instanceof HpcserveError && error.details?.still_writing === true) this.#arena.lose(error);
      this.stop();
      throw error;
    }
    this.#waited_ms += performance.now() - began_ms;
    this.#loads.shift();
    this.#streamed_bytes += weights.bytes;
    // What stays comes once, from a file that may be cold: that is no rate of the link.
    if (ring) this.#observe(load, weights.bytes);
    else this.#kept.add(part);
  }

  /** The part that was awaited has been computed: where it does not stay, its place may be written to. */
  release(part: number): void {
    if (this.parts[part]!.ring) this.#computed++;
    this.#next_computed = (part + 1) % this.parts.length;
    this.#bring();
  }

  #bring(): void {
    while (this.#loads.length < begun_max) {
      const part = this.#missing();
      if (part === undefined) return;
      const { weights, ring } = this.parts[part]!;
      if (ring && !mayBring(this.#ring, this.#begun, this.#computed)) return;
      // What cannot be begun ends the round: the next one asks again.
      this.#stopped = true;
      this.#loads.push({ part, load: this.#arena.loader.begin(weights.version, weights.loads, 'idle') });
      this.#stopped = false;
      this.#next_begun = (part + 1) % this.parts.length;
      if (ring) this.#begun++;
    }
  }

  /** The next part that is to be brought: of those that stay, one that is neither there nor on its way. */
  #missing(): number | undefined {
    const count = this.parts.length;
    for (let ahead = 0; ahead < count; ahead++) {
      const part = (this.#next_begun + ahead) % count;
      if (this.parts[part]!.ring) return part;
      if (!this.#kept.has(part) && !this.#loads.some((one) => one.part === part)) return part;
    }
    return undefined;
  }

  #observe(load: TensorLoading, bytes: number): void {
    const thread_ms = load.legs.reduce((sum, leg) => sum + leg.thread_ms, 0);
    const seconds = thread_ms / 1000 / this.#arena.copy_threads;
    if (seconds === 0) return;
    this.#link = observeTransfer(this.#link ?? newLinkEstimate(bytes / seconds), bytes, seconds);
  }
}

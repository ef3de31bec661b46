import {
  type LinkEstimate,
  newLinkEstimate,
  observeTransfer,
  whySlow,
} from '../../solver/streaming/link-estimate.ts';
import { mayBring, type RingPart } from '../../solver/streaming/ring-plan.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
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

/**
 * The parts of one model that do not stay, in the order in which they are computed, round after round. Each is brought
 * while those before it compute, as far as the ring has room.
 */
export class PartStream implements RingUser {
  readonly #arena: StreamingArena;
  readonly parts: readonly PartWeights[];
  readonly #ring: readonly RingPart[];
  /** By number, counted over all rounds. */
  readonly #loads = new Map<number, TensorLoading>();
  #begun = 0;
  #computed = 0;
  /** Nothing is brought, or on its way, that the next round could begin with. */
  #stopped = true;
  #streamed_bytes = 0;
  #waited_ms = 0;
  #link: LinkEstimate | undefined;

  constructor(arena: StreamingArena, parts: readonly PartWeights[], ring: readonly RingPart[]) {
    this.#arena = arena;
    this.parts = parts;
    this.#ring = ring;
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
    this.#begun = 0;
    this.#computed = 0;
    this.#bring();
  }

  /** Another model has the ring from now on. */
  stop(): void {
    this.#stopped = true;
    for (const load of this.#loads.values()) {
      // Nobody may write to the ring once it is another's.
      while (!load.cancel());
    }
    this.#loads.clear();
  }

  /** Where the last round failed, the next one begins with an empty ring. */
  beginRound(): void {
    const whole = this.parts.length === 0 || this.#computed % this.parts.length === 0;
    if (whole && !this.#stopped) return;
    this.stop();
    this.start();
  }

  /**
   * Waits until the next part is in its place. The thread that computes helps meanwhile.
   * @throws HpcserveError E_POOL_LOAD, E_MODEL_WEIGHTS
   */
  awaitNext(): void {
    const began_ms = performance.now();
    const load = this.#loads.get(this.#computed)!;
    try {
      while (!load.advance(true));
    } catch (error) {
      this.#loads.delete(this.#computed);
      if (error instanceof HpcserveError && error.details?.still_writing === true) this.#arena.lose(error);
      this.stop();
      throw error;
    }
    this.#waited_ms += performance.now() - began_ms;
    this.#observe(load, this.parts[this.#computed % this.parts.length]!.bytes);
    this.#loads.delete(this.#computed);
  }

  /** The part that was awaited has been computed: its place may be written to. */
  release(): void {
    this.#computed++;
    this.#bring();
  }

  #bring(): void {
    if (this.parts.length === 0) return;
    while (this.#loads.size < begun_max && mayBring(this.#ring, this.#begun, this.#computed)) {
      const { version, loads } = this.parts[this.#begun % this.parts.length]!;
      // What cannot be begun ends the round: the next one asks again.
      this.#stopped = true;
      this.#loads.set(this.#begun, this.#arena.loader.begin(version, loads, 'idle'));
      this.#stopped = false;
      this.#begun++;
    }
  }

  #observe(load: TensorLoading, bytes: number): void {
    this.#streamed_bytes += bytes;
    const thread_ms = load.legs.reduce((sum, leg) => sum + leg.thread_ms, 0);
    const seconds = thread_ms / 1000 / this.#arena.copy_threads;
    if (seconds === 0) return;
    this.#link = observeTransfer(this.#link ?? newLinkEstimate(bytes / seconds), bytes, seconds);
  }
}

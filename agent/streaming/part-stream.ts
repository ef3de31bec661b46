import { mayBring, type RingPart } from '../../solver/streaming/ring-plan.ts';
import type { StreamedWeights } from '../../spec/streamed-weights.ts';
import type { PlannedWeight } from '../engine/weight-plan.ts';
import type { TensorLoading } from '../memory/load/tensor-loading.ts';
import type { PartWeights } from './part-weights.ts';
import type { StreamMeter, StreamStatistics } from './stream-meter.ts';
import { hangingLoad, isStillWriting, type RingUser, type StreamingArena } from './streaming-arena.ts';

/** Loads that are told to the threads in advance: one that runs, and those that follow it without a pause. */
const begun_max = 3;

/** A part of the model, in its place. */
export interface StreamPart {
  weights: PartWeights;
  /** Where it lies in the ring; absent: it has a place of its own, and stays there. */
  ring?: RingPart;
}

/** What a model brings beside its parts: it has the ring when they have it. */
export interface BesideParts extends RingUser {
  readonly needsRing: boolean;
}

/** Which weights of a part need not be brought, since something multiplies by them where they are. */
export interface SparedWeights {
  choose(part: PartWeights, rows: number): ReadonlySet<PlannedWeight>;
}

interface PartLoad {
  part: number;
  load: TensorLoading;
  bytes: number;
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
  /** A part came that was not computed yet: where it is not, the round has failed. */
  #isAwaited = false;
  /** Parts of the ring, counted over all rounds. */
  #begun = 0;
  #computed = 0;
  /** Nothing is brought, or on its way, that the next round could begin with. */
  #stopped = true;
  readonly #meter: StreamMeter;
  readonly #beside: BesideParts | undefined;
  readonly #spared: SparedWeights | undefined;
  /** Of the batch of this round, which the next one is taken to be like. */
  #rows = 1;

  /** @param beside what else of the model is brought @param spared what of the ring's parts need not be */
  constructor(
    arena: StreamingArena,
    parts: readonly StreamPart[],
    meter: StreamMeter,
    { beside, spared }: { beside?: BesideParts | undefined; spared?: SparedWeights | undefined } = {},
  ) {
    this.#arena = arena;
    this.#meter = meter;
    this.#beside = beside;
    this.#spared = spared;
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
    return this.#meter.statistics;
  }

  /** The ring is empty, and this model's. */
  start(): void {
    this.#stopped = false;
    this.#next_begun = 0;
    this.#next_computed = 0;
    this.#isAwaited = false;
    this.#begun = 0;
    this.#computed = 0;
    this.#beside?.start();
    this.#bring();
  }

  /** Another model has the ring from now on. */
  stop(): void {
    this.#stopped = true;
    // Nobody may write to the ring once it is another's.
    for (const { part, load } of this.#loads.splice(0))
      if (!load.cancel()) this.#arena.lose(hangingLoad(this.parts[part]!.weights.version.path));
    this.#beside?.stop();
  }

  /**
   * The ring is this model's, unless all of it stays. Where the last round failed, this one begins with an empty ring.
   * @param rows of the batch
   * @throws HpcserveError E_POOL_LOAD: the ring can be nobody's any more
   */
  beginRound(rows: number): void {
    this.#rows = rows;
    if (this.#kept.size === this.parts.length && !this.#beside?.needsRing) return;
    this.#arena.turnTo(this);
    if (this.#next_computed === 0 && !this.#isAwaited && !this.#stopped) return;
    this.stop();
    this.#arena.checkUsable();
    this.start();
  }

  /**
   * Waits until a part is in its place. The thread that computes helps meanwhile with what the page cache has: a file
   * that hangs has the loading threads, and is given up in its time.
   * @throws HpcserveError E_POOL_LOAD, E_MODEL_WEIGHTS
   */
  awaitPart(part: number): void {
    if (this.#kept.has(part)) return;
    const { ring } = this.parts[part]!;
    const began_ms = performance.now();
    const { load, bytes } = this.#loads[0]!;
    try {
      while (!load.advance(true, 'in_memory'));
    } catch (error) {
      this.#loads.shift();
      if (isStillWriting(error)) this.#arena.lose(error);
      this.stop();
      throw error;
    }
    this.#meter.waitedSince(began_ms);
    this.#loads.shift();
    this.#isAwaited = true;
    this.#meter.came(bytes);
    // What stays comes once, from a file that may be cold: that is no rate of the link.
    if (ring) this.#meter.observe(load, bytes);
    else this.#kept.add(part);
  }

  /** The part that was awaited has been computed: where it does not stay, its place may be written to. */
  release(part: number): void {
    if (this.parts[part]!.ring) this.#computed++;
    this.#next_computed = (part + 1) % this.parts.length;
    this.#isAwaited = false;
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
      const spared = ring && this.#spared?.choose(weights, this.#rows);
      const load = this.#arena.loader.begin(weights.version, weights.loads(spared), 'idle');
      this.#loads.push({ part, load, bytes: weights.bytes - spared_bytes(spared) });
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
}

function spared_bytes(spared: ReadonlySet<PlannedWeight> = new Set()): number {
  return [...spared].reduce(
    (sum, { parts }) => sum + parts.reduce((of, { size_bytes }) => of + size_bytes, 0),
    0,
  );
}

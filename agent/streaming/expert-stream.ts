import {
  type ExpertPopularity,
  newPopularity,
  noteRouting,
  readProbability,
  routingProbabilities,
} from '../../solver/streaming/expert-popularity.ts';
import { slotsToTake } from '../../solver/streaming/expert-slots.ts';
import type { HpcserveError } from '../../spec/errors/error.ts';
import type { ExpertMatrices } from '../engine/weight-plan.ts';
import type { FileVersion } from '../memory/file-version.ts';
import type { TensorLoading } from '../memory/load/tensor-loading.ts';
import { type ExpertWindow, expert_bytes } from './expert-window.ts';
import type { BesideParts } from './part-stream.ts';
import type { StreamMeter } from './stream-meter.ts';
import { hangingLoad, isStillWriting, type StreamingArena } from './streaming-arena.ts';

/** Where more of a layer's experts are expected than this share, all of them are brought: one read, and no guessing. */
const whole_share = 0.75;
/** An expert that a batch reads with at least this probability is brought before its router was asked. */
const expected_probability = 0.5;
/** Steps that what is told is averaged over. Lower: it changes with each batch; higher: follows the traffic later. */
const told_steps = 64;

/** The experts of a layer, and where they may lie. */
export interface ExpertLayer {
  window: ExpertWindow;
  matrices: ExpertMatrices;
}

export interface ExpertStatistics {
  /** Of the experts that batches needed, how many were there or on their way when their router named them: 0 to 1. */
  at_hand: number;
  /** What a step brings, on average. */
  step_bytes: number;
}

interface ExpertLoad {
  layer: number;
  /** Of the layer's window. */
  slots: number[];
  load: TensorLoading;
  bytes: number;
}

interface ExpertStreamOptions {
  arena: StreamingArena;
  version: FileVersion;
  /** By layer of the model. */
  layers: readonly ExpertLayer[];
  experts: { count: number; used_per_token: number };
  meter: StreamMeter;
}

/**
 * Experts of a mixture, of which those are brought that a batch needs and that are not in a slot of the device. Those
 * stay that tokens are sent to most often; those of the next layer come while this one computes, as far as they can be
 * guessed. A wrong guess costs time and no more: nothing is computed before the router's own choice is there.
 */
export class ExpertStream implements BesideParts {
  readonly #own: ExpertStreamOptions;
  readonly #windows: ReadonlySet<ExpertWindow>;
  readonly #popularity: ExpertPopularity[];
  /** By layer and expert: see `routingProbabilities`. */
  readonly #probabilities: number[][];
  /** What was begun on a guess. */
  #ahead: ExpertLoad | undefined;
  /** Slots that the part which computes reads. */
  #used: { window: ExpertWindow; slots: ReadonlySet<number> } | undefined;
  /** A load hangs that may still write to slots. */
  #lost = false;
  #steps = 0;
  #told: ExpertStatistics = { at_hand: 0, step_bytes: 0 };
  /** Of this step: experts that were needed, those of them that were at hand, and what was brought. */
  #now = { needed: 0, found: 0, bytes: 0 };

  constructor(own: ExpertStreamOptions) {
    const { layers, experts } = own;
    this.#own = own;
    this.#windows = new Set(layers.map(({ window }) => window));
    this.#popularity = layers.map(() => newPopularity(experts.count));
    this.#probabilities = this.#popularity.map((one) => routingProbabilities(one, experts.used_per_token));
  }

  get needsRing(): boolean {
    // Whoever asks for the ring is told that nothing can be computed by the arena any more.
    return this.#lost || [...this.#windows].some(({ stays }) => !stays);
  }

  /** Undefined before the first step. */
  get statistics(): ExpertStatistics | undefined {
    return this.#steps === 0 ? undefined : this.#told;
  }

  /** Of slots that are this model's for good. */
  get resident_bytes(): number {
    return [...this.#windows].reduce((sum, { stays, bytes }) => sum + (stays ? bytes : 0), 0);
  }

  start(): void {
    // What a step needs is brought when it is known, or guessed.
    for (const window of this.#windows) if (!window.stays) window.wipe();
  }

  stop(): void {
    this.#giveUp();
    this.#used = undefined;
    for (const window of this.#windows) if (!window.stays) window.clear();
  }

  /** A step of so many rows begins: of the first layer those experts come that it will need in all likelihood. */
  beginStep(rows: number): void {
    const expected = this.#probabilities[0]!.flatMap((probability, expert) =>
      readProbability(probability, rows) >= expected_probability ? [expert] : [],
    );
    this.foresee(0, expected);
  }

  /** A step is over. */
  endStep(): void {
    this.#used = undefined;
    const { needed, found, bytes } = this.#now;
    this.#now = { needed: 0, found: 0, bytes: 0 };
    if (needed === 0) return;
    this.#steps = Math.min(this.#steps + 1, told_steps);
    const averaged = (before: number, now: number): number => before + (now - before) / this.#steps;
    const { at_hand, step_bytes } = this.#told;
    this.#told = { at_hand: averaged(at_hand, found / needed), step_bytes: averaged(step_bytes, bytes) };
  }

  /**
   * Waits until the experts that rows were sent to are in slots. The thread that computes helps meanwhile.
   * @param chosen shape [rows, used_per_token]
   * @returns the same shape: slots in place of experts
   * @throws HpcserveError E_POOL_LOAD, E_MODEL_WEIGHTS
   */
  bring(layer: number, chosen: Int32Array): Int32Array {
    const { window } = this.#own.layers[layer]!;
    const counts = new Map<number, number>();
    for (const expert of chosen) counts.set(expert, (counts.get(expert) ?? 0) + 1);
    this.#note(layer, counts, chosen.length);
    const wanted = [...counts.keys()].sort((a, b) => a - b);
    this.#settle(layer, wanted);
    const missing = wanted.filter((expert) => window.slotOf({ layer, expert }) === undefined);
    this.#now.needed += wanted.length;
    this.#now.found += wanted.length - missing.length;
    this.#used = undefined;
    const demanded = this.#begin(layer, missing, wanted);
    const began_ms = performance.now();
    // What was guessed of it is needed as well, at least in part, and some of it may be there by now.
    if (demanded) this.#finish(demanded);
    if (this.#ahead) this.#finish(this.#ahead);
    this.#own.meter.waitedSince(began_ms);
    const slotOf = new Map(wanted.map((expert) => [expert, window.slotOf({ layer, expert })!]));
    this.#used = { window, slots: new Set(slotOf.values()) };
    return chosen.map((expert) => slotOf.get(expert)!);
  }

  /**
   * Begins to bring experts that a layer is about to need, as far as there are slots which nobody needs.
   * @throws HpcserveError E_POOL_LOAD
   */
  foresee(layer: number, guess: Iterable<number>): void {
    this.#giveUp();
    this.#checkUsable();
    const { window } = this.#own.layers[layer]!;
    const { count } = this.#own.experts;
    const expected = new Set(guess);
    if (expected.size >= whole_share * count)
      for (let expert = 0; expert < count; expert++) expected.add(expert);
    const missing = [...expected].filter((expert) => window.slotOf({ layer, expert }) === undefined);
    this.#ahead = this.#begin(
      layer,
      missing.sort((a, b) => a - b),
      [...expected],
    );
  }

  free(): void {
    this.#giveUp();
    for (const window of this.#windows) window.free();
  }

  /**
   * What was begun on a guess goes on where it brings anything that is wanted.
   * @throws HpcserveError E_POOL_LOAD: it cannot be given up
   */
  #settle(layer: number, wanted: readonly number[]): void {
    const ahead = this.#ahead;
    if (!ahead) return;
    const { window } = this.#own.layers[ahead.layer]!;
    const brings = ahead.slots.map((slot) => window.holders[slot]!.expert);
    if (ahead.layer === layer && brings.some((expert) => wanted.includes(expert))) return;
    this.#giveUp();
    this.#checkUsable();
  }

  /** @param kept experts of the layer that may not give way */
  #begin(layer: number, missing: readonly number[], kept: readonly number[]): ExpertLoad | undefined {
    const { window, matrices } = this.#own.layers[layer]!;
    const { arena, version, layers } = this.#own;
    if (missing.length === 0) return undefined;
    const pinned = new Set(kept.flatMap((expert) => window.slotOf({ layer, expert }) ?? []));
    if (this.#used?.window === window) for (const slot of this.#used.slots) pinned.add(slot);
    if (this.#ahead && layers[this.#ahead.layer]!.window === window)
      for (const slot of this.#ahead.slots) pinned.add(slot);
    const slots = slotsToTake({
      holders: window.holders,
      count: missing.length,
      layer,
      n_layer: layers.length,
      probability: (held) => this.#probabilities[held.layer]![held.expert]!,
      isPinned: (slot) => pinned.has(slot),
    });
    if (slots.length === 0) return undefined;
    // Neighbours of the file in neighbouring slots, so that they are copied together.
    const loads = slots.flatMap((slot, index) => window.loads(matrices, missing[index]!, slot));
    const load = arena.loader.begin(version, loads, 'idle');
    slots.forEach((slot, index) => {
      window.hold(slot, { layer, expert: missing[index]! });
    });
    const each = expert_bytes(matrices.gate) + expert_bytes(matrices.up) + expert_bytes(matrices.down);
    return { layer, slots, load, bytes: slots.length * each };
  }

  #finish(own: ExpertLoad): void {
    try {
      while (!own.load.advance(true, 'in_memory'));
    } catch (error) {
      this.#drop(own);
      if (own === this.#ahead) this.#ahead = undefined;
      if (isStillWriting(error)) this.#lose(error);
      this.#giveUp();
      throw error;
    }
    if (own === this.#ahead) this.#ahead = undefined;
    this.#noteBrought(own);
  }

  /** What was begun on a guess is not waited for. */
  #giveUp(): void {
    const ahead = this.#ahead;
    if (!ahead) return;
    this.#ahead = undefined;
    try {
      if (ahead.load.advance(false)) {
        this.#noteBrought(ahead);
        return;
      }
      // Nobody may write to its slots once others lie there.
      if (!ahead.load.cancel()) this.#lose(hangingLoad(this.#own.version.path));
    } catch (error) {
      // What else is wrong with the file is said by the next load that is needed.
      if (isStillWriting(error)) this.#lose(error);
    }
    this.#drop(ahead);
  }

  /** What another model lost does not concern one whose experts all stay. @throws HpcserveError E_POOL_LOAD */
  #checkUsable(): void {
    if (this.#lost) this.#own.arena.checkUsable();
  }

  #lose(because: HpcserveError): void {
    this.#lost = true;
    this.#own.arena.lose(because);
  }

  #noteBrought({ load, bytes }: ExpertLoad): void {
    this.#own.meter.came(bytes);
    this.#own.meter.observe(load, bytes);
    this.#now.bytes += bytes;
  }

  #drop({ layer, slots }: ExpertLoad): void {
    const { window } = this.#own.layers[layer]!;
    for (const slot of slots) window.hold(slot, undefined);
  }

  #note(layer: number, counts: ReadonlyMap<number, number>, choices: number): void {
    const { count, used_per_token } = this.#own.experts;
    const chosen = Array.from({ length: count }, (_, expert) => counts.get(expert) ?? 0);
    const noted = noteRouting(this.#popularity[layer]!, chosen, choices / used_per_token);
    this.#popularity[layer] = noted;
    this.#probabilities[layer] = routingProbabilities(noted, used_per_token);
  }
}

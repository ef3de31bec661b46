/** Measures a model on its device before it serves: the first points of its profile (LLM-Mesh §5.2). */
import { GrowingProfile } from '../../../solver/sharing/growing-profile.ts';
import type { ProfileSamples } from '../../../solver/sharing/profile-samples.ts';
import type { Engine, IterationPlan } from '../../../spec/engine-contract.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';

export interface ProfilingLimits {
  /** Longest sequence that fits. */
  sequence_tokens_max: number;
  max_sequences: number;
  prefill_chunk_tokens: number;
  /** Least time of an iteration, where the device is emulated. */
  step_ms_min: number;
}

/** Lengths and batches, coarser than the powers of two that later sights fill in. */
const lengths = [16, 64, 256, 1024, 4096];
const batches = [1, 4, 16, 64];
/** Tokens that a measured sequence gets. */
const steps_max = 2 * batches.length;
const nothing: IterationPlan = { decode: false, prefill_tokens: 0, whole: true };

/** What a measurement asks for before it goes on: the next iteration, which is expected to take so long. */
export type NextIteration = { expected_ms: number };
/** Goes on by one iteration with every `next()`; its value is the profile. */
export type ProfileMeasurement = Generator<NextIteration, GrowingProfile, void>;

/**
 * Prompts by length and decode steps by batch and length, small ones first, until the time is up; at least one of each.
 * Sequences of a batch share their prompt's KV, so that it is computed once. Other models may compute between two of
 * its iterations: only its own time counts. Where it is broken off (`return`), its sequences are gone.
 * @param engine has no sequences, before and after
 * @param budget_ms an iteration that is expected to exceed what is left of it is not begun
 * @throws HpcserveError E_POOL_FULL where there is no KV for a single sequence; what the engine throws
 */
export function* measureProfile(
  engine: Engine,
  limits: ProfilingLimits,
  budget_ms: number,
): ProfileMeasurement {
  const measurement = new Measurement(engine, limits);
  const samples: ProfileSamples = { prefill: [], decode: [] };
  // The first iteration of all pays for pages and graphs.
  const shortest = Math.max(1, Math.min(lengths[0]!, Math.floor(limits.sequence_tokens_max / 2)));
  try {
    const first_ms = yield* measurement.begin(shortest, 0);
    measurement.end();
    for (const tokens of [shortest, ...lengths.slice(1)]) {
      const last = samples.prefill.at(-1);
      const expected_ms = last ? (last.ms * tokens) / last.tokens : 0;
      if (last && tokens + 1 + steps_max > limits.sequence_tokens_max) break;
      if (last && measurement.spent_ms + expected_ms > budget_ms) break;
      const again_ms = yield* measurement.begin(tokens, expected_ms);
      // All that is longer is judged by the shortest: a stall of the machine there would be taken for the model's.
      const ms = last || again_ms === undefined ? again_ms : Math.min(again_ms, first_ms ?? again_ms);
      if (ms !== undefined) samples.prefill.push({ tokens, ms });
      for (const batch of ms === undefined ? [] : batches) {
        if (batch > limits.max_sequences) break;
        if (samples.decode.length > 0 && measurement.spent_ms > budget_ms) break;
        const step_ms = yield* measurement.decode(batch, samples.decode.at(-1)?.ms ?? 0);
        if (step_ms === undefined) break;
        samples.decode.push({ batch, tokens, ms: step_ms });
      }
      measurement.end();
      if (ms === undefined) break;
    }
  } finally {
    measurement.end();
  }
  if (samples.decode.length > 0) return GrowingProfile.of(samples);
  throw new HpcserveError('E_POOL_FULL', {
    what: `there is no room for the KV of a sequence of ${shortest} tokens`,
    because: 'the models in use hold the rest of the memory pool',
  });
}

/** Sequences of one measurement in an engine, and the time that they took. */
class Measurement {
  /** In iterations of its own. */
  spent_ms = 0;
  readonly #engine: Engine;
  readonly #limits: ProfilingLimits;
  readonly #live: number[] = [];
  #next = -1;
  #prompt = new Int32Array(0);

  constructor(engine: Engine, limits: ProfilingLimits) {
    this.#engine = engine;
    this.#limits = limits;
  }

  /**
   * A prompt of so many tokens, and one more that followers compute. @returns ms of it; undefined where it finds no
   * room
   */
  *begin(tokens: number, expected_ms: number): Generator<NextIteration, number | undefined, void> {
    const { n_vocab } = this.#engine.info;
    const start = -this.#next * 31;
    this.#prompt = Int32Array.from({ length: tokens + 1 }, (_, at) => (start + at * 7) % n_vocab);
    this.#add();
    let left = tokens + 1;
    let ms = 0;
    while (left > 0) {
      const chunk_tokens = Math.min(left, this.#limits.prefill_chunk_tokens);
      yield { expected_ms: (expected_ms * chunk_tokens) / (tokens + 1) };
      const { prefill_tokens, elapsed_ms } = this.#step({ decode: false, prefill_tokens: chunk_tokens });
      if (prefill_tokens === 0) return undefined;
      left -= prefill_tokens;
      ms += elapsed_ms;
    }
    return ms;
  }

  /** The faster of two steps of so many sequences of the prompt; undefined where they find no room together. */
  *decode(batch: number, expected_ms: number): Generator<NextIteration, number | undefined, void> {
    while (this.#live.length < batch) this.#add();
    for (let left = batch; ; left--) {
      yield { expected_ms };
      const { prefill_tokens } = this.#step({
        decode: false,
        prefill_tokens: this.#limits.prefill_chunk_tokens,
      });
      if (prefill_tokens === 0) break;
      if (left === 0) return undefined;
    }
    let least_ms = Number.POSITIVE_INFINITY;
    for (let time = 0; time < 2; time++) {
      yield { expected_ms };
      const { decode_tokens, elapsed_ms } = this.#step({ decode: true, prefill_tokens: 0 });
      if (decode_tokens !== batch) return undefined;
      least_ms = Math.min(least_ms, elapsed_ms);
    }
    return least_ms;
  }

  end(): void {
    for (const id of this.#live.splice(0)) this.#engine.cancel(id);
    while (this.#engine.busy) this.#engine.step(nothing);
  }

  #add(): void {
    const id = this.#next--;
    this.#live.push(id);
    this.#engine.add({
      id,
      prompt_tokens: this.#prompt,
      sampler: { sample: () => ({ token: 0 }) },
      max_new_tokens: steps_max + 1,
      stop_tokens: new Set(),
    });
  }

  #step(plan: IterationPlan): { prefill_tokens: number; decode_tokens: number; elapsed_ms: number } {
    const { prefill_tokens, decode_tokens, elapsed_us } = this.#engine.step({ ...plan, whole: true });
    const elapsed_ms = Math.max(elapsed_us / 1000, this.#limits.step_ms_min, 1e-3);
    this.spent_ms += elapsed_us / 1000;
    return { prefill_tokens, decode_tokens, elapsed_ms };
  }
}

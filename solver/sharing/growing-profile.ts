import { IterationProfile } from './profile.ts';
import type { ProfileSamples } from './profile-samples.ts';

/** What is kept of a profile: its whole grid, and which of its points were measured rather than continued. */
export interface KeptProfile {
  samples: ProfileSamples;
  measured: { prefill: number[]; decode: [batch: number, tokens: number][] };
}

/** Shorter sequences are alike: an iteration takes the same. */
const tokens_min = 16;
/** A first sight moves an estimate by at most this factor: a stall of the machine is no property of the model. */
const first_factor_max = 4;

/**
 * A profile that learns where it knows least (LLM-Mesh §5.2, spread over time): it begins with the few points that were
 * measured on first use; the first iteration seen near another power of two becomes a point of its own, and every
 * further one refreshes the points around it. So a model serves at once, and its profile is exact where its work is.
 */
export class GrowingProfile {
  #profile: IterationProfile;
  readonly #prefill: Set<number>;
  readonly #decode: Map<string, [number, number]>;

  /** @throws RangeError where there is no prefill or no decode sample, or a value is not positive */
  constructor({ samples, measured }: KeptProfile) {
    this.#profile = new IterationProfile(samples);
    this.#prefill = new Set(measured.prefill);
    this.#decode = new Map(measured.decode.map((point) => [point.join('×'), point]));
  }

  /** A profile of points that were all measured. */
  static of(samples: ProfileSamples): GrowingProfile {
    return new GrowingProfile({
      samples,
      measured: {
        prefill: samples.prefill.map(({ tokens }) => tokens),
        decode: samples.decode.map(({ batch, tokens }) => [batch, tokens]),
      },
    });
  }

  /** The estimates as they stand; another object after a point was added. */
  get profile(): IterationProfile {
    return this.#profile;
  }

  /** Points that were measured: prompts, and decode steps. */
  get points(): { prefill: number; decode: number } {
    return { prefill: this.#prefill.size, decode: this.#decode.size };
  }

  /** A chunk of `tokens` of a prompt whose first `before` were done took so long. */
  observePrefill(before: number, tokens: number, ms: number): void {
    const profile = this.#profile;
    const end = before + tokens;
    const whole_ms = profile.prefill_ms(before) + ms;
    const point = powerNear(end);
    if (this.#prefill.has(point)) {
      profile.observePrefill(end, whole_ms);
      return;
    }
    this.#prefill.add(point);
    const { prefill, decode } = profile.samples();
    const point_ms = profile.prefill_ms(point) * factor(whole_ms, profile.prefill_ms(end));
    this.#profile = new IterationProfile({
      prefill: [...prefill.filter((sample) => sample.tokens !== point), { tokens: point, ms: point_ms }],
      decode,
    });
  }

  /** A decode step of `batch` sequences of this average length took so long. */
  observeDecode(batch: number, tokens: number, ms: number): void {
    const profile = this.#profile;
    const point: [number, number] = [2 ** Math.round(Math.log2(batch)), powerNear(tokens)];
    if (this.#decode.has(point.join('×'))) {
      profile.observeDecode(batch, tokens, ms);
      return;
    }
    this.#decode.set(point.join('×'), point);
    const { prefill, decode } = profile.samples();
    const batches = new Set([...decode.map((sample) => sample.batch), point[0]]);
    const lengths = new Set([...decode.map((sample) => sample.tokens), point[1]]);
    const scale = factor(ms, profile.decode_ms(batch, tokens));
    this.#profile = new IterationProfile({
      prefill,
      decode: [...lengths].flatMap((length) =>
        [...batches].map((width) => ({
          batch: width,
          tokens: length,
          ms: profile.decode_ms(width, length) * (width === point[0] && length === point[1] ? scale : 1),
        })),
      ),
    });
  }

  kept(): KeptProfile {
    return {
      samples: this.#profile.samples(),
      measured: { prefill: [...this.#prefill], decode: [...this.#decode.values()] },
    };
  }
}

function powerNear(tokens: number): number {
  return Math.max(tokens_min, 2 ** Math.round(Math.log2(tokens)));
}

function factor(seen_ms: number, expected_ms: number): number {
  return Math.min(Math.max(seen_ms / expected_ms, 1 / first_factor_max), first_factor_max);
}

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  allocateCandidates,
  type Candidates,
  fillCandidates,
} from '../../../../agent/text/sampling/candidates.ts';
import { fastExp } from '../../../../agent/text/sampling/fast-exp.ts';
import { argmax } from '../../../../agent/text/sampling/greedy.ts';
import { keepMinP } from '../../../../agent/text/sampling/min-p.ts';
import type { SamplingParameters } from '../../../../agent/text/sampling/parameters.ts';
import { selectTop } from '../../../../agent/text/sampling/select-top.ts';
import type { TokenConstraint } from '../../../../agent/text/sampling/token-constraint.ts';
import { DelayedConstraint } from '../../../../agent/text/sampling/token-constraint.ts';
import { TokenSampler } from '../../../../agent/text/sampling/token-sampler.ts';
import { keepTopP } from '../../../../agent/text/sampling/top-p.ts';
import { keepTypicalP } from '../../../../agent/text/sampling/typical-p.ts';
import {
  classifyTokens,
  continueUtf8,
  Utf8Constraint,
} from '../../../../agent/text/sampling/utf8-constraint.ts';

/** Logits with many ties, to exercise the order of equal ones. */
/** Nothing but the temperature of OpenAI's API. */
const samplingDefaults: SamplingParameters = {
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  typical_p: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  repetition_penalty: 1,
  logit_bias: [],
  min_tokens: 0,
  seed: 0,
  choice: 0,
};

const logitsArbitrary = fc
  .array(fc.oneof(fc.integer({ min: -4, max: 4 }), fc.double({ min: -20, max: 20, noNaN: true })), {
    minLength: 1,
    maxLength: 60,
  })
  .map((values) => Float32Array.from(values));

function softmax(logits: Float32Array, temperature = 1): number[] {
  const scaled = Array.from(logits, (logit) => logit / temperature);
  const largest = Math.max(...scaled);
  const weights = scaled.map((value) => Math.exp(value - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

/** Ids by falling probability, the lower id first among equal ones. */
function ranked(probabilities: readonly number[]): number[] {
  return probabilities.map((_, id) => id).sort((a, b) => probabilities[b]! - probabilities[a]! || a - b);
}

function candidatesOf(logits: Float32Array, top_k = 0): Candidates {
  const candidates = allocateCandidates(logits.length);
  fillCandidates(candidates, logits, 1, top_k);
  return candidates;
}

const kept = (candidates: Candidates) => Array.from(candidates.tokens.subarray(0, candidates.count));

function sampler(parameters: Partial<SamplingParameters>, n_vocab: number, constraint?: TokenConstraint) {
  return new TokenSampler(
    { ...samplingDefaults, ...parameters },
    { prompt: [], continued: [], stop_tokens: [] },
    allocateCandidates(n_vocab),
    constraint,
  );
}

describe('filters against naive references', () => {
  it('selectTop equals a full sort', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.nat(70), (logits, k) => {
        const naive = Array.from(logits.keys())
          .sort((a, b) => logits[b]! - logits[a]! || a - b)
          .slice(0, k);
        expect(Array.from(selectTop(logits, k))).toEqual(naive);
      }),
      { numRuns: 500 },
    );
  });

  it('greedy is the first of a full sort', () => {
    fc.assert(
      fc.property(logitsArbitrary, (logits) => {
        expect(argmax(logits)).toBe(ranked(Array.from(logits))[0]);
      }),
    );
  });

  it('top_k keeps the k most probable in the order of their ids', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.integer({ min: 1, max: 70 }), (logits, k) => {
        const naive = ranked(Array.from(logits))
          .slice(0, k)
          .sort((a, b) => a - b);
        expect(kept(candidatesOf(logits, k))).toEqual(naive);
      }),
    );
  });

  it('min_p keeps what reaches the share of the best', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.double({ min: 0, max: 1, noNaN: true }), (logits, min_p) => {
        const candidates = candidatesOf(logits);
        keepMinP(candidates, min_p);
        const probabilities = softmax(logits);
        const best = Math.max(...probabilities);
        for (const [id, p] of probabilities.entries()) {
          // Within rounding of the border either answer is right.
          if (Math.abs(p - min_p * best) < 1e-9) continue;
          expect(kept(candidates).includes(id)).toBe(p > min_p * best);
        }
      }),
    );
  });

  it('top_p keeps the smallest set of best tokens that reaches it', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.double({ min: 0.01, max: 0.999, noNaN: true }), (logits, top_p) => {
        const candidates = candidatesOf(logits);
        keepTopP(candidates, top_p);
        const probabilities = softmax(logits);
        const order = ranked(Array.from(candidatesOf(logits).weights));
        const chosen = kept(candidates);
        const prefix = order.slice(0, chosen.length);
        expect(chosen).toEqual([...prefix].sort((a, b) => a - b));
        const sum = prefix.reduce((total, id) => total + probabilities[id]!, 0);
        expect(sum).toBeGreaterThanOrEqual(top_p - 1e-9);
        expect(sum - probabilities[prefix.at(-1)!]!).toBeLessThan(top_p + 1e-9);
      }),
      { numRuns: 500 },
    );
  });

  it('typical_p keeps the tokens closest to the entropy', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.double({ min: 0.01, max: 0.999, noNaN: true }), (logits, typical_p) => {
        const candidates = candidatesOf(logits);
        keepTypicalP(candidates, typical_p);
        const probabilities = softmax(logits);
        const entropy = -probabilities.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
        const distance = probabilities.map((p) => Math.abs(-Math.log(p) - entropy));
        const chosen = new Set(kept(candidates));
        const sum = [...chosen].reduce((total, id) => total + probabilities[id]!, 0);
        expect(sum).toBeGreaterThanOrEqual(typical_p - 1e-9);
        const farthest = Math.max(...[...chosen].map((id) => distance[id]!));
        for (const [id, value] of distance.entries())
          if (!chosen.has(id)) expect(value).toBeGreaterThanOrEqual(farthest - 1e-9);
      }),
    );
  });
});

describe('penalties and biases', () => {
  it('follow the definitions, checked through log-probability differences', () => {
    fc.assert(
      fc.property(
        fc.array(fc.double({ min: -5, max: 5, noNaN: true }), { minLength: 5, maxLength: 5 }),
        fc.double({ min: 1.05, max: 2, noNaN: true }),
        fc.double({ min: -2, max: 2, noNaN: true }),
        fc.double({ min: -2, max: 2, noNaN: true }),
        (values, repetition, frequency, presence) => {
          const logits = Float32Array.from(values);
          const expected = Array.from(logits);
          // prompt holds 0 and 1; the answer holds 1 once and 2 twice
          for (const id of [0, 1, 2]) {
            const logit = expected[id]!;
            expected[id] = logit > 0 ? logit / repetition : logit * repetition;
          }
          expected[1] = expected[1]! - frequency - presence;
          expected[2] = expected[2]! - 2 * frequency - presence;
          expected[4] = expected[4]! + 3;
          const chosen = new TokenSampler(
            {
              ...samplingDefaults,
              temperature: 0,
              repetition_penalty: repetition,
              frequency_penalty: frequency,
              presence_penalty: presence,
              logit_bias: [[4, 3]],
            },
            { prompt: [0, 1], continued: [1, 2, 2], stop_tokens: [] },
            allocateCandidates(5),
          );
          const after = logits.slice();
          chosen.sample(after, 5);
          for (let id = 0; id < 5; id++) expect(after[id]).toBeCloseTo(expected[id]!, 4);
        },
      ),
    );
  });

  it('stop tokens cannot be chosen before min_tokens, and can after', () => {
    const start = { prompt: [0], continued: [], stop_tokens: [3] };
    const chosen = new TokenSampler(
      { ...samplingDefaults, temperature: 0, min_tokens: 2 },
      start,
      allocateCandidates(4),
    );
    const logits = () => Float32Array.from([0, 1, 0, 9]);
    expect([1, 2, 3].map((position) => chosen.sample(logits(), position).token)).toEqual([1, 1, 3]);
  });
});

describe('drawing', () => {
  it('follows the distribution (chi-squared over 20,000 draws)', () => {
    const logits = Float32Array.from([0, 1, 2, 0.5, -1]);
    const probabilities = softmax(logits, 0.8);
    const counts = [0, 0, 0, 0, 0];
    const one = sampler({ temperature: 0.8, seed: 11 }, 5);
    for (let position = 0; position < 20_000; position++)
      counts[one.sample(logits.slice(), position).token]!++;
    const chi = counts.reduce(
      (sum, count, id) => sum + (count - 20_000 * probabilities[id]!) ** 2 / (20_000 * probabilities[id]!),
      0,
    );
    expect(chi).toBeLessThan(30);
  });

  it('is the same for the same (seed, position), whatever was drawn before', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.nat(), fc.nat(1000), (logits, seed, position) => {
        const first = sampler({ seed, top_p: 0.9 }, logits.length).sample(logits.slice(), position).token;
        const other = sampler({ seed, top_p: 0.9 }, logits.length);
        for (let earlier = 0; earlier < 3; earlier++) other.sample(logits.slice(), position + 1 + earlier);
        expect(other.sample(logits.slice(), position).token).toBe(first);
      }),
    );
  });

  it('reports log probabilities of the unmodified softmax, best first', () => {
    fc.assert(
      fc.property(logitsArbitrary, fc.nat(9), (logits, alternatives) => {
        const one = sampler({ temperature: 0, logprobs: alternatives, logit_bias: [[0, 50]] }, logits.length);
        const sampled = one.sample(logits.slice(), 0);
        const probabilities = softmax(logits);
        expect(sampled.token).toBe(0);
        expect(Math.exp(sampled.logprob!)).toBeCloseTo(probabilities[0]!, 5);
        expect(sampled.top!.map(({ token }) => token)).toEqual(
          ranked(Array.from(logits)).slice(0, alternatives),
        );
      }),
    );
  });

  it('says so when nothing can be chosen', () => {
    const logits = Float32Array.from([Number.NaN, Number.NEGATIVE_INFINITY]);
    expect(() => sampler({ temperature: 0 }, 2).sample(logits.slice(), 4)).toThrow(/position 4/);
    expect(() => sampler({}, 2).sample(logits.slice(), 4)).toThrow(/position 4/);
  });
});

/** Allows one given set; counts how often the vocabulary was masked. */
class Only implements TokenConstraint {
  masks = 0;
  accepted: number[] = [];
  readonly #allowed: Set<number>;
  constructor(allowed: number[]) {
    this.#allowed = new Set(allowed);
  }
  allows(token: number): boolean {
    return this.#allowed.has(token);
  }
  mask(logits: Float32Array): void {
    this.masks++;
    for (let id = 0; id < logits.length; id++) if (!this.#allowed.has(id)) logits[id] = -Infinity;
  }
  accept(token: number): void {
    if (!this.#allowed.has(token)) throw new Error(`illegal accept of ${token}`);
    this.accepted.push(token);
  }
  close(): void {}
}

describe('constraints', () => {
  it('asks about the likeliest tokens, and masks the vocabulary only where all of them are refused', () => {
    for (const temperature of [0, 1]) {
      const one = new Only([1, 2]);
      const chosen = sampler({ temperature }, 4, one);
      expect([1, 2]).toContain(chosen.sample(Float32Array.from([9, 5, 1, 8]), 0).token);
      expect(one.masks).toBe(0);
      const rare = new Only([499]);
      const logits = Float32Array.from({ length: 500 }, (_, id) => (id === 499 ? -40 : id % 7));
      expect(sampler({ temperature }, 500, rare).sample(logits, 0).token).toBe(499);
      expect(rare.masks).toBe(1);
      expect(rare.accepted).toEqual([499]);
    }
  });

  it('a filter that leaves nothing allowed is widened by the mask', () => {
    const one = new Only([3]);
    expect(sampler({ top_k: 2, top_p: 0.5 }, 4, one).sample(Float32Array.from([9, 8, 1, 0]), 0).token).toBe(
      3,
    );
  });

  it('fastExp is exact to 8e-8', () => {
    fc.assert(
      fc.property(fc.double({ min: -690, max: 20, noNaN: true }), (x) => {
        expect(Math.abs(fastExp(x) / Math.exp(x) - 1)).toBeLessThan(8e-8);
      }),
      { numRuns: 2000 },
    );
    expect([fastExp(0), fastExp(Number.NEGATIVE_INFINITY), fastExp(Number.NaN)]).toEqual([1, 0, 0]);
  });

  it('keeps the distribution of masking first', () => {
    const logits = Float32Array.from([2, 1, 0.5, 1.5]);
    const counts = [0, 0, 0, 0];
    const chosen = sampler({ seed: 3 }, 4, new Only([1, 2]));
    for (let position = 0; position < 10_000; position++)
      counts[chosen.sample(logits.slice(), position).token]!++;
    const share = Math.exp(1) / (Math.exp(1) + Math.exp(0.5));
    expect(counts[0]! + counts[3]!).toBe(0);
    expect(counts[1]! / 10_000).toBeCloseTo(share, 1);
  });

  it('min_tokens gives way where the grammar allows nothing but the end', () => {
    const chosen = new TokenSampler(
      { ...samplingDefaults, temperature: 0, min_tokens: 5 },
      { prompt: [], continued: [], stop_tokens: [3] },
      allocateCandidates(4),
      new Only([3]),
    );
    expect(chosen.sample(Float32Array.from([1, 1, 1, 0]), 0).token).toBe(3);
  });

  it('a delayed constraint begins after its trigger, also where tokens split it', () => {
    const pieces = ['a', '</th', 'ink>', 'b'].map((piece) => Buffer.from(piece));
    const inner = new Only([3]);
    const delayed = new DelayedConstraint(inner, '</think>', (token) => pieces[token]!);
    for (const token of [0, 2, 1, 2]) {
      expect(delayed.allows(0)).toBe(true);
      delayed.accept(token);
    }
    expect(delayed.allows(0)).toBe(false);
    expect(delayed.allows(3)).toBe(true);
    delayed.accept(3);
    expect(inner.accepted).toEqual([3]);
  });
});

describe('UTF-8 of constrained answers', () => {
  it('accepts exactly what a strict decoder accepts, byte by byte', () => {
    const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
    const valid = (bytes: Uint8Array): boolean => {
      try {
        strict.decode(bytes);
        return true;
      } catch {
        return false;
      }
    };
    const byte = fc.constantFrom(
      0x22,
      0x61,
      0x7f,
      0x80,
      0x8f,
      0x90,
      0x9f,
      0xa0,
      0xbf,
      0xc0,
      0xc1,
      0xc2,
      0xdf,
      0xe0,
      0xe1,
      0xed,
      0xef,
      0xf0,
      0xf1,
      0xf4,
      0xf5,
      0xff,
    );
    fc.assert(
      fc.property(fc.array(byte, { maxLength: 5 }), fc.nat(5), (list, at) => {
        const bytes = Uint8Array.from(list);
        const first = continueUtf8([], bytes.subarray(0, at));
        const end = first && continueUtf8(first, bytes.subarray(at));
        expect(end !== undefined && end.length === 0).toBe(valid(bytes));
      }),
      { numRuns: 3000 },
    );
  });

  it('masks tokens that cannot be text, or not here', () => {
    const pieces = [[0x61], [0xe0], [0x80], [0xa0], [0xc0], [0xa0, 0x80], [0x80, 0xc1]].map((bytes) =>
      Uint8Array.from(bytes),
    );
    const bytesOf = (token: number) => pieces[token]!;
    const tokens = classifyTokens(pieces.length, bytesOf);
    expect(Array.from(tokens.impossible)).toEqual([4, 6]);
    expect(Array.from(tokens.inside)).toEqual([2, 3, 5]);
    const constraint = new Utf8Constraint(new Only([0, 1, 2, 3, 4, 5, 6]), bytesOf, tokens);
    const left = () => {
      const logits = new Float32Array(pieces.length);
      constraint.mask(logits);
      const allowed = Array.from(logits.keys()).filter((token) => logits[token] === 0);
      expect(allowed).toEqual(Array.from(logits.keys()).filter((token) => constraint.allows(token)));
      return allowed;
    };
    expect(left()).toEqual([0, 1]);
    constraint.accept(1);
    expect(left()).toEqual([3, 5]);
    constraint.accept(5);
    expect(left()).toEqual([0, 1]);
  });
});

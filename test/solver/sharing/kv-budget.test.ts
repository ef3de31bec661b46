import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { kvDemand, lowerTo, raiseTo } from '../../../solver/sharing/kv-budget.ts';
import { OutputLengths } from '../../../solver/sharing/output-lengths.ts';
import { decoding, exact, request } from './support.ts';

const settings = { ...exact, kv_watermark: 0.25, kv_tokens_min: 4096 };

describe('the KV budget', () => {
  it('is Eq. 2: C · max(Σ(I + max(O, Ō)), L_min), and a watermark more', () => {
    const requests = [
      decoding('a', { input_tokens: 3000, output_tokens: 50, expected_output_tokens: 220 }),
      decoding('b', { input_tokens: 1000, output_tokens: 900, expected_output_tokens: 220 }),
    ];
    expect(kvDemand({ requests, kv_bytes_per_token: 10 }, settings)).toEqual({
      required_bytes: 51_200,
      recommended_bytes: 64_000,
    });
    expect(kvDemand({ requests: [], kv_bytes_per_token: 10 }, settings).required_bytes).toBe(40_960);
    // A model that takes no longer sequences needs no more.
    expect(kvDemand({ requests: [], kv_bytes_per_token: 10, tokens_max: 100 }, settings).required_bytes).toBe(
      1000,
    );
    const newcomer = request('c', { input_tokens: 80, expected_output_tokens: 100 });
    expect(kvDemand({ requests, kv_bytes_per_token: 10 }, settings, newcomer).required_bytes).toBe(53_000);
  });

  it('rises early and falls late: small changes of load move nothing', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 5000, max: 6000 }), { minLength: 2, maxLength: 50 }),
        (loads) => {
          let kv_bytes = 0;
          let changes = 0;
          for (const tokens of loads) {
            const requests = [request('a', { input_tokens: tokens, expected_output_tokens: 0 })];
            const demand = kvDemand({ requests, kv_bytes_per_token: 1 }, settings);
            const next = lowerTo(raiseTo(kv_bytes, demand), demand, settings);
            if (next !== kv_bytes) changes++;
            kv_bytes = next;
            expect(kv_bytes).toBeGreaterThanOrEqual(demand.required_bytes);
            expect(kv_bytes).toBeLessThanOrEqual(demand.recommended_bytes * 1.25);
          }
          // 5000 to 6000 tokens lie within one watermark of each other.
          expect(changes).toBe(1);
        },
      ),
    );
  });

  it('falls to what is recommended once even a watermark above it is less', () => {
    const demand = { required_bytes: 4000, recommended_bytes: 5000 };
    expect(lowerTo(6250, demand, settings)).toBe(6250);
    expect(lowerTo(6251, demand, settings)).toBe(5000);
    expect(raiseTo(3999, demand)).toBe(5000);
    expect(raiseTo(4000, demand)).toBe(4000);
  });
});

describe('expected lengths of answers', () => {
  const chat = { model: 'm', reasoning: false };

  it('become the mean of what was seen, apart for requests that reason and for each model', () => {
    const lengths = new OutputLengths();
    expect(lengths.expected(chat)).toBe(256);
    for (let seen = 0; seen < 400; seen++) {
      lengths.observe(chat, 100 + (seen % 2) * 100);
      lengths.observe({ ...chat, reasoning: true }, 5000);
    }
    expect(lengths.expected(chat)).toBeGreaterThan(145);
    expect(lengths.expected(chat)).toBeLessThan(155);
    expect(lengths.expected({ ...chat, reasoning: true })).toBeGreaterThan(4900);
    expect(lengths.expected({ model: 'other', reasoning: false })).toBe(256);
  });

  it('grow with what is there: those that are long tend to become longer', () => {
    const lengths = new OutputLengths();
    for (let seen = 0; seen < 300; seen++) lengths.observe(chat, seen % 3 === 0 ? 800 : 100);
    expect(lengths.expected(chat, 150)).toBeGreaterThan(600);
    expect(lengths.expected(chat, 150)).toBeLessThanOrEqual(800);
    expect(lengths.expected(chat, 2000)).toBe(2500);
    expect(lengths.expected(chat, 2000, 2100)).toBe(2100);
  });

  it('are longer than what is there, and follow a change', () => {
    const lengths = new OutputLengths();
    fc.assert(
      fc.property(fc.nat({ max: 5000 }), fc.integer({ min: 1, max: 5000 }), (generated, seen) => {
        lengths.observe(chat, seen);
        expect(lengths.expected(chat, generated)).toBeGreaterThan(generated);
      }),
    );
    for (let seen = 0; seen < 3000; seen++) lengths.observe(chat, 50);
    expect(lengths.expected(chat)).toBeLessThan(60);
  });
});

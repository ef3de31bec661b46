import { describe, expect, it } from 'vitest';
import { evictionCost, evictionOrder, evictionsFor } from '../../../solver/reuse/eviction.ts';
import { columnsOf } from '../../../solver/reuse/region-view.ts';
import {
  noRequests,
  noteRequest,
  request_half_life,
  requestProbability,
} from '../../../solver/reuse/request-probability.ts';

describe('eviction', () => {
  it('costs p · (s / b) · α, summed over the models that share a tensor', () => {
    const chat = { probability: 0.5, load_bandwidth: 2e9, latency_sensitivity: 1 };
    const batch = { probability: 0.25, load_bandwidth: 1e9, latency_sensitivity: 0.1 };
    expect(evictionCost(4e9, [chat])).toBe(1);
    expect(evictionCost(4e9, [chat, batch])).toBeCloseTo(1.1, 12);
    expect(evictionCost(4e9, [])).toBe(0);
  });

  const regions = columnsOf([
    { kind: 'resident', bytes: 10, evict_cost_s: 5, move_cost_s: 1 },
    { kind: 'free', bytes: 2 },
    { kind: 'resident', bytes: 1, evict_cost_s: 1, move_cost_s: 1 },
    { kind: 'fixed', bytes: 7 },
    { kind: 'resident', bytes: 2, evict_cost_s: 1, move_cost_s: 1 },
  ]);

  it('goes by cost per byte, or by cost as the paper writes', () => {
    expect(evictionOrder(regions)).toEqual([0, 4, 2]);
    expect(evictionOrder(regions, 'cost')).toEqual([2, 4, 0]);
  });

  it('takes as many as the bytes need', () => {
    expect(evictionsFor(regions, [0, 4, 2], 11)).toBe(2);
    expect(evictionsFor(regions, [0, 4, 2], 0)).toBe(0);
    expect(evictionsFor(regions, [0, 4, 2], 14)).toBeUndefined();
  });
});

describe('the probability of a request', () => {
  const asked = (models: string) => [...models].reduce(noteRequest, noRequests);

  it('sums up to one, and is none for a model nobody asked for', () => {
    const history = asked('abcab');
    const sum = ['a', 'b', 'c'].reduce((total, model) => total + requestProbability(history, model), 0);
    expect(sum).toBeCloseTo(1, 12);
    expect(requestProbability(history, 'd')).toBe(0);
    expect(requestProbability(noRequests, 'a')).toBe(0);
  });

  it('prefers the recent among the equally frequent, and the frequent among the equally recent', () => {
    expect(requestProbability(asked('ab'), 'b')).toBeGreaterThan(requestProbability(asked('ab'), 'a'));
    expect(requestProbability(asked('aaab'), 'a')).toBeGreaterThan(requestProbability(asked('aaab'), 'b'));
  });

  it('halves the weight of a request after so many others', () => {
    const history = asked(`a${'b'.repeat(request_half_life)}`);
    const b = Array.from({ length: request_half_life }, (_, age) => 2 ** (-age / request_half_life));
    const weight = b.reduce((sum, value) => sum + value, 0);
    expect(requestProbability(history, 'a')).toBeCloseTo(0.5 / (0.5 + weight), 12);
  });
});

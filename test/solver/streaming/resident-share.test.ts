import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  newPopularity,
  noteRouting,
  readProbability,
  routingProbabilities,
} from '../../../solver/streaming/expert-popularity.ts';
import {
  residentTensors,
  type StreamedTensor,
  sparedLink_bytes_per_s,
} from '../../../solver/streaming/resident-share.ts';

const sparedBy = (tensors: readonly StreamedTensor[], chosen: readonly number[]): number =>
  chosen.reduce((sum, index) => sum + sparedLink_bytes_per_s(tensors[index]!), 0);

function best(tensors: readonly StreamedTensor[], room_bytes: number): number {
  let most = 0;
  for (let set = 0; set < 2 ** tensors.length; set++) {
    const chosen = [...tensors.keys()].filter((index) => set & (1 << index));
    const bytes = chosen.reduce((sum, index) => sum + tensors[index]!.bytes, 0);
    if (bytes <= room_bytes) most = Math.max(most, sparedBy(tensors, chosen));
  }
  return most;
}

const tensor = (bytes: fc.Arbitrary<number>) =>
  fc.record({
    bytes,
    uses_per_s: fc.integer({ min: 0, max: 50 }),
    read_share: fc.constantFrom(1, 0.01),
    order: fc.nat(100),
  });

describe('tensors that stay', () => {
  it('spare at least half of what the best choice spares, held against all choices', () => {
    fc.assert(
      fc.property(
        fc.array(tensor(fc.integer({ min: 1, max: 40 })), { maxLength: 10 }),
        fc.integer({ min: 0, max: 200 }),
        (tensors, room_bytes) => {
          const chosen = residentTensors(tensors, room_bytes);
          expect(chosen.reduce((sum, index) => sum + tensors[index]!.bytes, 0)).toBeLessThanOrEqual(
            room_bytes,
          );
          expect(2 * sparedBy(tensors, chosen)).toBeGreaterThanOrEqual(best(tensors, room_bytes) - 1e-9);
        },
      ),
    );
  });

  it('are the best choice where all have one size', () => {
    fc.assert(
      fc.property(
        fc.array(tensor(fc.constant(7)), { maxLength: 10 }),
        fc.integer({ min: 0, max: 80 }),
        (tensors, room_bytes) => {
          const chosen = residentTensors(tensors, room_bytes);
          expect(sparedBy(tensors, chosen)).toBeCloseTo(best(tensors, room_bytes), 9);
        },
      ),
    );
  });

  it('lie evenly between those that are streamed', () => {
    const layers = Array.from({ length: 16 }, (_, order) => ({ bytes: 1, uses_per_s: 10, order }));
    expect(residentTensors(layers, 4)).toEqual([0, 4, 8, 12]);
    expect(residentTensors(layers, 8)).toEqual([0, 2, 4, 6, 8, 10, 12, 14]);
  });

  it('are no embedding, of which a step reads a row', () => {
    const embedding = { bytes: 100, uses_per_s: 10, read_share: 1e-5, order: 0 };
    const layers = [1, 2, 3].map((order) => ({ bytes: 50, uses_per_s: 10, order }));
    expect(residentTensors([embedding, ...layers], 150)).toEqual([1, 2, 3]);
  });
});

describe('experts', () => {
  it('stay by how often they are chosen', () => {
    let popularity = newPopularity(4);
    for (let step = 0; step < 100; step++) popularity = noteRouting(popularity, [64, 2, 60, 2], 64);
    const probabilities = routingProbabilities(popularity, 2);
    const experts = probabilities.map((probability, order) => ({
      bytes: 10,
      uses_per_s: 20 * readProbability(probability, 4),
      order,
    }));
    expect(residentTensors(experts, 20)).toEqual([0, 2]);
  });

  it('are as likely as one another before anything was seen, and follow what is asked', () => {
    expect(routingProbabilities(newPopularity(8), 2)).toEqual(Array.from({ length: 8 }, () => 0.25));
    let popularity = newPopularity(2);
    for (let step = 0; step < 200; step++) popularity = noteRouting(popularity, [100, 0], 100);
    for (let step = 0; step < 200; step++) popularity = noteRouting(popularity, [0, 100], 100);
    const [before, after] = routingProbabilities(popularity, 1);
    expect(after!).toBeGreaterThan(0.9);
    expect(before!).toBeLessThan(0.1);
  });

  it('are read more likely by larger batches', () => {
    expect(readProbability(0.25, 1)).toBe(0.25);
    expect(readProbability(0.25, 2)).toBe(1 - 0.75 ** 2);
    expect(readProbability(0, 1000)).toBe(0);
  });
});

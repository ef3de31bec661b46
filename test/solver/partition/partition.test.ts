import { describe, expect, it } from 'vitest';
import { Random } from '../../../solver/cp/random.ts';
import {
  type ModelPartition,
  type PartitionQuestion,
  partition,
  type StageDevices,
} from '../../../solver/partition/partition.ts';
import { bestByEnumeration, objectiveOf } from './exhaustive.ts';
import { randomOperators } from './support.ts';

const ample: StageDevices = { kind: 'gpu', count: 8, memory_bytes: 1e9, speed: 1 };

function ask(facts: Partial<PartitionQuestion> = {}): PartitionQuestion {
  const random = new Random(1);
  return {
    operators: randomOperators(4, () => random.unit()),
    stages: 2,
    devices: [ample],
    link_bytes_per_s: 1e9,
    ...facts,
  };
}

describe('partition by Eq. 2', () => {
  it('is the best of all cuts and devices on small graphs, and refuses only where there are none', () => {
    const random = new Random(11);
    let feasible = 0;
    let kept = 0;
    let mixed = 0;
    for (let round = 0; round < 250; round++) {
      const operators = randomOperators(1 + random.below(4), () => random.unit());
      const bytes = operators.reduce((sum, { weight_bytes }) => sum + weight_bytes, 0);
      const stages = 1 + random.below(4);
      const question: PartitionQuestion = {
        operators,
        stages,
        devices: [
          { kind: 'slow', count: 1 + random.below(3), memory_bytes: bytes * (0.3 + random.unit()), speed: 1 },
          { kind: 'fast', count: random.below(3), memory_bytes: bytes * (0.2 + random.unit()), speed: 3 },
        ],
        link_bytes_per_s: 1e9,
        kv_tokens: random.below(3) * 1000,
        boundary_share: [0, 0.1, 1][random.below(3)]!,
        cycle_s: 0.002 * (1 + random.below(10)),
        keep: operators.flatMap((_, index) => (index > 0 && random.below(6) === 0 ? [index] : [])),
        in_order: random.below(2) === 0,
      };
      if (random.below(4) === 0) question.stage_s_max = 0.002 * (5 + random.below(20));
      const found = partition(question);
      const best = bestByEnumeration(question, question.cycle_s!);
      expect(found.feasible, JSON.stringify(question)).toBe(best !== undefined);
      if (!found.feasible || best === undefined) continue;
      feasible++;
      if (question.keep!.length > 0) kept++;
      if (question.in_order && new Set(found.stages.map(({ kind }) => kind)).size > 1) mixed++;
      const kinds = found.stages.map((stage) => ({
        ...stage,
        kind: question.devices.findIndex(({ kind }) => kind === stage.kind),
      }));
      const value = objectiveOf(question, question.cycle_s!, kinds)!;
      expect(value.objective_s).toBeCloseTo(best.objective_s, 6);
      expect(value.slowest_s).toBeCloseTo(best.slowest_s, 9);
      expect(found.slowest_s).toBeCloseTo(value.slowest_s, 9);
      expect(found.objective_s).toBeCloseTo(value.objective_s, 6);
    }
    expect(feasible).toBeGreaterThan(60);
    expect(kept).toBeGreaterThan(20);
    expect(mixed).toBeGreaterThan(20);
  });

  it('covers every operator once, in order', () => {
    const { operators } = ask();
    for (const stages of [1, 2, 3, 5]) {
      const found = partition(ask({ stages })) as ModelPartition;
      expect(found.stages.map(({ begin }) => begin)).toEqual([
        0,
        ...found.stages.slice(0, -1).map(({ end }) => end),
      ]);
      expect(found.stages.at(-1)!.end).toBe(operators.length);
      expect(found.stages).toHaveLength(stages);
    }
  });

  it('cuts between layers where that matters more than even stages', () => {
    const operators = randomOperators(2, () => 0).map((operator, index) => ({
      ...operator,
      compute_s: [1, 4, 1, 4, 1, 1][index]!,
    }));
    const cut = (boundary_share: number): number =>
      (partition(ask({ operators, boundary_share })) as ModelPartition).stages[0]!.end;
    // 5 + 7 against 6 + 6: the even cut would be behind attention of layer 0 … or behind its feed-forward.
    expect(cut(0)).toBe(3);
    const uneven = operators.map((operator, index) => ({
      ...operator,
      compute_s: [1, 5, 1, 3, 1, 1][index]!,
    }));
    const within = (boundary_share: number): number =>
      (partition(ask({ operators: uneven, boundary_share })) as ModelPartition).stages[0]!.end;
    expect(within(0)).toBe(2);
    expect(within(1)).toBe(3);
  });

  it('gives the fast device the larger stage', () => {
    const { operators } = ask();
    const found = partition(
      ask({
        devices: [
          { ...ample, kind: 'slow', count: 1 },
          { ...ample, kind: 'fast', count: 1, speed: 4 },
        ],
        link_bytes_per_s: 1e15,
      }),
    ) as ModelPartition;
    const total = (kind: string): number => {
      const { begin, end } = found.stages.find((stage) => stage.kind === kind)!;
      return operators.slice(begin, end).reduce((sum, { compute_s }) => sum + compute_s, 0);
    };
    expect(total('fast')).toBeGreaterThan(2 * total('slow'));
  });

  it('says which constraint no cut meets', () => {
    const why = (facts: Partial<PartitionQuestion>): string => {
      const found = partition(ask(facts));
      return found.feasible ? 'feasible' : `${found.constraint}: ${found.because}`;
    };
    expect(why({ cuts: [3, 5], keep: [2] })).toMatch(
      /^stages: the cut before .* is to stay, and none may lie there$/,
    );
    expect(why({ keep: [2, 3] })).toMatch(
      /^stages: 2 stages are not possible: the model can be cut into 3 to/,
    );
    const even = randomOperators(1, () => 0.3).map((operator) => ({
      ...operator,
      weight_bytes: 3 * 2 ** 30,
    }));
    expect(why({ stages: 11 })).toBe('stages: 11 stages are not possible: the model can be cut into 1 to 10');
    expect(why({ stages: 3, devices: [{ ...ample, count: 2 }] })).toBe(
      'devices: 3 stages need as many devices, and there are 2',
    );
    expect(why({ operators: even, devices: [{ ...ample, memory_bytes: 2 * 2 ** 30 }] })).toBe(
      'operator_memory: embedding alone takes 3.00 GiB, and the largest device has 2.00 GiB',
    );
    expect(why({ operators: even, devices: [{ ...ample, memory_bytes: 5 * 2 ** 30 }] })).toBe(
      'total_memory: weights and KV take 12.00 GiB, and the 2 largest devices have 10.00 GiB in all',
    );
    expect(
      why({
        operators: even.map((operator, index) => ({
          ...operator,
          weight_bytes: [2, 5, 1, 4][index]! * 2 ** 30,
        })),
        devices: [{ ...ample, memory_bytes: 6.5 * 2 ** 30 }],
      }),
    ).toMatch(
      /^contiguous_memory: no 2 contiguous ranges fit .* 6\.50 GiB: operators take up to 5\.00 GiB each/,
    );
  });
});

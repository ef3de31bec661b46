import { describe, expect, it } from 'vitest';
import { Random } from '../../../solver/cp/random.ts';
import { cutsOf, nestedPartitions } from '../../../solver/partition/nested.ts';
import { bestByEnumeration } from './exhaustive.ts';
import { randomOperators } from './support.ts';

const devices = [{ kind: 'gpu', count: 32, memory_bytes: 1e9, speed: 1 }];

describe('nested pipelines', () => {
  it('have the cuts of the coarser ones among those of the finer, on graphs of every size', () => {
    const random = new Random(3);
    for (let round = 0; round < 20; round++) {
      const operators = randomOperators(16 + random.below(64), () => random.unit());
      const { pipelines, impossible } = nestedPartitions({ operators, devices, link_bytes_per_s: 1e9 });
      expect(impossible).toEqual([]);
      expect(pipelines.map(({ stages }) => stages.length)).toEqual([2, 4, 8, 16, 32]);
      for (const [index, finer] of pipelines.slice(1).entries())
        expect(cutsOf(finer)).toEqual(expect.arrayContaining(cutsOf(pipelines[index]!)));
    }
  });

  it('are each the best merge of the next finer', () => {
    const random = new Random(5);
    for (let round = 0; round < 20; round++) {
      const operators = randomOperators(6, () => random.unit());
      const question = { operators, devices, link_bytes_per_s: 1e9 };
      const { pipelines } = nestedPartitions(question, [2, 3, 7]);
      for (const [index, finer] of pipelines.slice(1).entries()) {
        const { stages, objective_s, cycle_s } = pipelines[index]!;
        const merge = { ...question, stages: stages.length, cuts: cutsOf(finer) };
        expect(objective_s).toBeCloseTo(bestByEnumeration(merge, cycle_s)!.objective_s, 6);
      }
    }
  });

  it('leave out those that do not fit, and say why', () => {
    const operators = randomOperators(10, () => 0.5);
    const bytes = operators.reduce((sum, { weight_bytes }) => sum + weight_bytes, 0);
    const small = [{ ...devices[0]!, count: 16, memory_bytes: bytes / 3 }];
    const { pipelines, impossible } = nestedPartitions({ operators, devices: small, link_bytes_per_s: 1e9 });
    expect(pipelines.map(({ stages }) => stages.length)).toEqual([4, 8, 16]);
    expect(impossible.map(({ stages, constraint }) => [stages, constraint])).toEqual([
      [32, 'stages'],
      [2, 'total_memory'],
    ]);
  });
});

import { describe, expect, it } from 'vitest';
import {
  alone,
  type Column,
  compare,
  type Metric,
  ours,
  oursWithAgent,
  sideBySide,
} from '../../../bench/routers/side-by-side.ts';

const rate: Metric = { what: 'requests per second', short: 'requests', unit: '1/s', better: 'more' };
const cpu: Metric = { what: 'CPU time per event', short: 'an event', unit: 'µs', better: 'less' };

function column(metric: Metric, figures: Record<string, number[]>): Column {
  return { metric, rounds: new Map(Object.entries(figures)) };
}

describe('routers side by side', () => {
  it('are compared round by round, larger being better for us either way', () => {
    const faster = compare(column(rate, { [ours]: [200, 90, 300], a: [100, 90, 100] }), { a: 1 });
    expect(faster).toMatchObject([{ ours: 200, peer: 'a', theirs: 100, ratio: 2, holds: true }]);
    const dearer = compare(column(cpu, { [ours]: [20], a: [10], b: [40] }), { a: 1 });
    expect(dearer).toMatchObject([
      { peer: 'a', ratio: 0.5, bar: 'ratio ≥ 1', holds: false },
      { peer: 'b', ratio: 2, bar: '', holds: null },
    ]);
  });

  it('ours is no peer of ours, with its agent or without', () => {
    const both = column(cpu, { [ours]: [10], [oursWithAgent]: [14], a: [10] });
    expect(compare(both).map(({ peer }) => peer)).toEqual(['a']);
    expect(compare(both, { a: 1 / 1.5 }, oursWithAgent)).toMatchObject([
      { what: 'CPU time per event, with its agent', ours: 14, peer: 'a', bar: 'ratio ≥ 0.67', holds: true },
    ]);
    expect(() => compare(column(cpu, { a: [10] }))).toThrow('hpcserve was not measured');
  });

  it('have no ratio where a figure is not above zero, and a bar all the same', () => {
    const added = (own: number[]) => compare(column(cpu, { [ours]: own, a: [0.1, 0.2, 0.3] }), { a: 1 });
    expect(added([-0.1, 0.1, 0.2])).toMatchObject([{ ratio: null, holds: true }]);
    expect(added([-0.1, 0.4, 0.5])).toMatchObject([{ ratio: null, holds: false }]);
  });

  it('a bar of ours alone', () => {
    expect(alone(column(cpu, { [ours]: [399] }), 400)).toMatchObject({ bar: '< 400 µs', holds: true });
    expect(alone(column(cpu, { [ours]: [400] }), 400)).toMatchObject({ holds: false });
  });

  it('stand in one table, with what was not measured left open', () => {
    const columns = [
      column(rate, { [ours]: [21_234.5, 3], a: [12, 12] }),
      column(cpu, { [ours]: [9.876, 9.876], b: [0.1234] }),
    ];
    expect(sideBySide(columns)).toEqual([
      '|  | requests, 1/s | an event, µs |',
      '| --- | ---: | ---: |',
      '| hpcserve | 10,619 | 9.88 |',
      '| a | 12 | – |',
      '| b | – | 0.123 |',
    ]);
  });
});

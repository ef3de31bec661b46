import { expect, it } from 'vitest';
import { arrayGroups } from '../../../control/runner/array-groups.ts';
import type { PlannedLaunch } from '../../../spec/plan.ts';
import { plannedLaunch } from '../support.ts';

const many = (count: number, more: Partial<PlannedLaunch> = {}): PlannedLaunch[] =>
  Array.from({ length: count }, (_, index) => ({ ...plannedLaunch(`m-${index}`), ...more }));

it('takes what asks Slurm for the same, from four on', () => {
  expect(arrayGroups(many(3), 1001)).toEqual([]);
  expect(arrayGroups(many(4), 1001)).toEqual([[0, 1, 2, 3]]);
  expect(arrayGroups(many(4), Number.POSITIVE_INFINITY)).toEqual([[0, 1, 2, 3]]);
  const mixed = [...many(3), ...many(1, { cpus_per_node: 2 }), ...many(1)];
  expect(arrayGroups(mixed, 1001)).toEqual([[0, 1, 2, 4]]);
});

it('leaves alone what needs several nodes, and what is made to measure for a gap', () => {
  expect(arrayGroups(many(5, { node_count: 2 }), 1001)).toEqual([]);
  expect(arrayGroups(many(5, { scavenged: { time_min_s: 60 } }), 1001)).toEqual([]);
});

it('makes several arrays of about the same size where one may not be as large, and none where there are none', () => {
  expect(arrayGroups(many(11), 5).map((group) => group.length)).toEqual([4, 4, 3]);
  expect(arrayGroups(many(11), 5).flat()).toEqual([...many(11).keys()]);
  for (const most of [0, 1, 3]) expect(arrayGroups(many(11), most)).toEqual([]);
});

/** What others are about to take is not free any more for who plans now. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { withoutExpected, withoutHeld } from '../../../solver/keeping/expected-launches.ts';
import { gpus } from '../placement/support.ts';

const launch = (node_kind: string, count: number, node_count = 1, cpus_per_node = count) => ({
  node_kind,
  node_count,
  cpus_per_node,
  devices_per_node: { kind: 'gpu' as const, model: node_kind.toUpperCase(), count, memory_bytes: 1 },
});
const free = (nodes: number, devices: number, cpus = 64) => [{ nodes, devices, cpus }];

it('is taken from where it fits, and from the same nodes under other names', () => {
  const pool = { id: 'a+twin', nodes: 2 };
  const offers = [
    gpus('A', 40, 2, { free: free(2, 4), pool }),
    { ...gpus('A', 40, 2, { free: free(2, 4), pool }), node_kind: 'twin' },
    gpus('B', 40, 2, { free: free(2, 4) }),
  ];
  const [a, twin, b] = withoutExpected(offers, [launch('a', 4), launch('a', 1)]);
  const left = [
    { nodes: 1, devices: 3, cpus: 63 },
    { nodes: 1, devices: 0, cpus: 60 },
  ];
  expect(a!.free).toEqual(left);
  expect(twin!.free).toEqual(left);
  expect(b!.free).toEqual(free(2, 4));
});

it('is accelerators of a machine that has no queue, and nothing of its CPUs', () => {
  const offers = [gpus('A', 40, 4), gpus('B', 40, 1)];
  const left = withoutHeld(offers, [launch('a', 1), launch('a', 2), launch('b', 4)]);
  expect(left.map(({ node_kind, devices }) => [node_kind, devices.count])).toEqual([['a', 1]]);
  const cpus = offers.map((offer) => ({ ...offer, devices: { ...offer.devices, kind: 'cpu' as const } }));
  expect(withoutHeld(cpus, [launch('a', 4)])).toEqual(cpus);
});

it('is nothing where it waits for others, or nobody knows what is free', () => {
  const offers = [gpus('A', 40, 2, { free: free(1, 2) }), gpus('B', 40, 2)];
  expect(withoutExpected(offers, [launch('a', 4), launch('b', 1), launch('gone', 1)])).toEqual(offers);
});

it('is the whole node where nodes are given whole', () => {
  const offers = [gpus('A', 40, 2, { free: free(2, 4), whole_nodes: true })];
  expect(withoutExpected(offers, [launch('a', 1)])[0]!.free).toEqual([
    { nodes: 1, devices: 4, cpus: 64 },
    { nodes: 1, devices: 0, cpus: 63 },
  ]);
});

it('never makes nodes, and never more than there are devices', () =>
  fc.assert(
    fc.property(
      fc.array(
        fc.record({
          nodes: fc.integer({ min: 1, max: 5 }),
          devices: fc.integer({ min: 0, max: 4 }),
          cpus: fc.integer({ min: 0, max: 64 }),
        }),
      ),
      fc.array(fc.record({ count: fc.integer({ min: 1, max: 4 }), nodes: fc.integer({ min: 1, max: 3 }) })),
      (groups, asked) => {
        const [after] = withoutExpected(
          [gpus('A', 40, 9, { free: groups })],
          asked.map(({ count, nodes }) => launch('a', count, nodes)),
        );
        const sum = (of: (group: (typeof groups)[number]) => number, all: typeof groups): number =>
          all.reduce((total, group) => total + of(group), 0);
        expect(sum(({ nodes }) => nodes, after!.free!)).toBe(sum(({ nodes }) => nodes, groups));
        expect(sum(({ nodes, devices }) => nodes * devices, after!.free!)).toBeLessThanOrEqual(
          sum(({ nodes, devices }) => nodes * devices, groups),
        );
      },
    ),
  ));

import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { DeviceOfNode, NodeStage, RunningStage } from '../../../solver/refactoring/leaving-layout.ts';
import { layoutsWithout } from '../../../solver/refactoring/leaving-node.ts';

const on = (node_index: number, device: string, begin: number, end: number): NodeStage => ({
  node_index,
  device,
  begin,
  end,
});

test('a stage goes to a free device, else to the neighbours that are least slow then', () => {
  const stages = [on(0, 'gpu 0', 0, 9), on(1, 'gpu 0', 9, 15), on(2, 'gpu 0', 15, 18)];
  const toLast = [on(0, 'gpu 0', 0, 9), on(2, 'gpu 0', 9, 18)];
  const toFirst = [on(0, 'gpu 0', 0, 15), on(2, 'gpu 0', 15, 18)];
  expect(layoutsWithout(stages, [0, 2], [{ node_index: 0, device: 'gpu 1' }])).toEqual([
    [on(0, 'gpu 0', 0, 9), on(0, 'gpu 1', 9, 15), on(2, 'gpu 0', 15, 18)],
    toLast,
    toFirst,
  ]);
  expect(layoutsWithout(stages, [0, 1], [])).toEqual([[on(0, 'gpu 0', 0, 9), on(1, 'gpu 0', 9, 18)]]);
});

test('layers go to the faster kind of device, though its stage is the larger one', () => {
  const stages = [
    { ...on(0, 'gpu 0', 0, 13), compute_s: 0.012 },
    { ...on(1, 'gpu 0', 13, 19), compute_s: 0.006 },
    { ...on(2, 'cpu 0', 19, 22), compute_s: 0.03 },
  ];
  const [best] = layoutsWithout(stages, [0, 2], []);
  expect(best).toEqual([on(0, 'gpu 0', 0, 19), on(2, 'cpu 0', 19, 22)]);
});

test('and to a device that has room for them, though that one is slower then', () => {
  const gib = 2 ** 30;
  const stages = [
    { ...on(0, 'gpu 0', 0, 9), compute_s: 0.009, memory_bytes: 9 * gib },
    { ...on(1, 'gpu 0', 9, 15), compute_s: 0.006, memory_bytes: 6 * gib },
    { ...on(2, 'gpu 0', 15, 18), compute_s: 0.003, memory_bytes: 3 * gib },
  ];
  const room = (last_gib: number) =>
    layoutsWithout(stages, [0, 2], [], ({ node_index }) => ({
      room_bytes: (node_index === 2 ? last_gib : 40) * gib,
    }))[0];
  expect(room(40)).toEqual([on(0, 'gpu 0', 0, 9), on(2, 'gpu 0', 9, 18)]);
  expect(room(4)).toEqual([on(0, 'gpu 0', 0, 15), on(2, 'gpu 0', 15, 18)]);
  // Of what fits nowhere as a whole, each has a part.
  expect(room(5)).toEqual([on(0, 'gpu 0', 0, 13), on(2, 'gpu 0', 13, 18)]);
});

test('a free device of a slow kind is not taken where the neighbours are faster', () => {
  const stages = [
    { ...on(0, 'gpu 0', 0, 5), compute_s: 0.004 },
    { ...on(1, 'gpu 0', 5, 9), compute_s: 0.004 },
    { ...on(2, 'cpu 0', 9, 12), compute_s: 0.03 },
  ];
  const models = new Map([
    ['gpu 0', 'A100'],
    ['cpu 0', 'Xeon'],
    ['cpu 1', 'Xeon'],
  ]);
  const facts = ({ device }: DeviceOfNode) => ({ model: models.get(device)! });
  const layouts = layoutsWithout(stages, [0, 2], [{ node_index: 2, device: 'cpu 1' }], facts);
  expect(layouts[0]).toEqual([on(0, 'gpu 0', 0, 9), on(2, 'cpu 0', 9, 12)]);
  expect(layouts.some((layout) => layout.length === 3)).toBe(true);
});

test('the first stage stays, and who has no stage leaves none', () => {
  const stages = [on(0, 'gpu 0', 0, 9), on(1, 'gpu 0', 9, 18)];
  expect(layoutsWithout(stages, [1], [])).toEqual([]);
  expect(layoutsWithout(stages, [0, 1], [])).toEqual([]);
});

test('every layout has all operators once, on devices of other nodes, each of which has one stage', () => {
  const cuts = fc.array(
    fc.record({ node: fc.integer({ min: 0, max: 3 }), size: fc.integer({ min: 1, max: 5 }) }),
    {
      minLength: 1,
      maxLength: 8,
    },
  );
  fc.assert(
    fc.property(
      cuts,
      fc.integer({ min: 0, max: 3 }),
      fc.integer({ min: 0, max: 4 }),
      (parts, leaving, count) => {
        let at = 0;
        const stages = parts.map(({ node, size }, index) => {
          const begin = at;
          at += size;
          return on(node, `gpu ${index}`, begin, at);
        });
        const free = Array.from(
          { length: count },
          (_, index): DeviceOfNode => ({ node_index: 9, device: `gpu ${index}` }),
        );
        const staying = [0, 1, 2, 3].filter((node) => node !== leaving);
        const layouts = layoutsWithout(stages, staying, free);
        const leaves = stages.filter(({ node_index }) => node_index === leaving).length;
        if (leaves > 0 && stages[0]!.node_index !== leaving) {
          // Each device that is free is in some of them, and one of them needs none.
          const used = layouts.flat().filter(({ node_index }) => node_index === 9);
          expect(new Set(used.map(({ device }) => device)).size).toBe(count);
          expect(layouts.some((layout) => layout.every(({ node_index }) => node_index !== 9))).toBe(true);
        }
        for (const layout of layouts) {
          expect(layout.some(({ node_index }) => node_index === leaving)).toBe(false);
          expect(layout[0]).toMatchObject({
            node_index: stages[0]!.node_index,
            device: stages[0]!.device,
            begin: 0,
          });
          expect(layout.at(-1)!.end).toBe(at);
          for (const [index, stage] of layout.slice(1).entries())
            expect(stage.begin).toBe(layout[index]!.end);
          expect(new Set(layout.map(({ node_index, device }) => `${node_index} ${device}`)).size).toBe(
            layout.length,
          );
          // Nobody moves who need not.
          for (const kept of stages.filter(({ node_index }) => node_index !== leaving))
            expect(
              layout.some(
                ({ node_index, device }) => node_index === kept.node_index && device === kept.device,
              ),
            ).toBe(true);
        }
      },
    ),
  );
});

/** Every way to do without the stages that leave: each goes to a free device or not, and all cuts there are. */
function allLayouts(
  stages: readonly NodeStage[],
  leaving: number,
  free: readonly DeviceOfNode[],
): NodeStage[][] {
  const ways = (at: number, left: readonly DeviceOfNode[]): { place: DeviceOfNode; at: number }[][] => {
    if (at === stages.length) return [[]];
    const stage = stages[at]!;
    const put = (place: DeviceOfNode, others: readonly DeviceOfNode[]) =>
      ways(at + 1, others).map((rest) => [{ place, at }, ...rest]);
    if (stage.node_index !== leaving) return put(stage, left);
    return [...ways(at + 1, left), ...left.flatMap((device, index) => put(device, left.slice(index + 1)))];
  };
  return ways(0, free).flatMap((kept) => {
    let found: NodeStage[][] = [[]];
    for (const [index, { place, at }] of kept.entries()) {
      const next = kept[index + 1];
      const first = stages[at]!.end;
      const last = next ? stages[next.at]!.begin : stages.at(-1)!.end;
      const ends = Array.from({ length: last - first + 1 }, (_, more) => first + more).filter(
        (end) => end === last || (next && (end === first || end % 2 === 1)),
      );
      found = found.flatMap((before) => {
        const begin = before.at(-1)?.end ?? 0;
        return ends.map((end) => [...before, on(place.node_index, place.device, begin, end)]);
      });
    }
    return found;
  });
}

test('the best one is the best of all that there are: what fits, then the slowest stage', () => {
  const part = fc.record({
    node: fc.integer({ min: 0, max: 2 }),
    layers: fc.integer({ min: 1, max: 3 }),
    pace: fc.integer({ min: 1, max: 4 }),
    room: fc.integer({ min: 4, max: 20 }),
  });
  let moved = 0;
  fc.assert(
    fc.property(
      fc.array(part, { minLength: 2, maxLength: 5 }),
      fc.integer({ min: 0, max: 2 }),
      fc.array(fc.record({ pace: fc.integer({ min: 1, max: 4 }), room: fc.integer({ min: 4, max: 20 }) }), {
        maxLength: 2,
      }),
      (parts, leaving, spare) => {
        let at = 1;
        const stages = parts.map(({ node, layers, pace }, index): RunningStage => {
          const begin = index === 0 ? 0 : at;
          at += 2 * layers;
          const end = index === parts.length - 1 ? at + 1 : at;
          // The embedding and the head take as long as an operator of a layer.
          const size = end - begin;
          return { ...on(node, `gpu ${index}`, begin, end), compute_s: size * pace, memory_bytes: size };
        });
        const free = spare.map((_, index) => ({ node_index: 9, device: `gpu ${index}` }));
        const paceOf = ({ node_index, device }: DeviceOfNode): number => {
          const index = Number(device.split(' ')[1]);
          return node_index === 9 ? spare[index]!.pace : parts[index]!.pace;
        };
        const roomOf = ({ node_index, device }: DeviceOfNode): number => {
          const index = Number(device.split(' ')[1]);
          return node_index === 9 ? spare[index]!.room : parts[index]!.room;
        };
        // Free devices are as fast as a stage of the same pace, where there is one.
        fc.pre(free.every((device) => parts.some(({ pace }) => pace === paceOf(device))));
        const [best] = layoutsWithout(
          stages,
          [0, 1, 2].filter((node) => node !== leaving),
          free,
          (device) => ({ model: `${paceOf(device)}`, room_bytes: roomOf(device) }),
        );
        if (!best) return;
        moved++;
        const value = (layout: readonly NodeStage[]): [number, number] => [
          Math.max(0, ...layout.map((stage) => stage.end - stage.begin - roomOf(stage))),
          Math.max(...layout.map((stage) => (stage.end - stage.begin) * paceOf(stage))),
        ];
        const all = allLayouts(stages, leaving, free).map(value);
        const lacking = Math.min(...all.map(([bytes]) => bytes));
        const slowest = Math.min(...all.flatMap(([bytes, time]) => (bytes === lacking ? [time] : [])));
        const [bytes, time] = value(best);
        expect(bytes).toBeCloseTo(lacking, 6);
        expect(time).toBeCloseTo(slowest, 6);
      },
    ),
    { numRuns: 1000 },
  );
  expect(moved).toBeGreaterThan(100);
});

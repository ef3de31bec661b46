import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  type DeviceOfNode,
  layoutsWithout,
  type NodeStage,
} from '../../../solver/refactoring/leaving-node.ts';

const on = (node_index: number, device: string, begin: number, end: number): NodeStage => ({
  node_index,
  device,
  begin,
  end,
});

test('a stage goes to a free device, else to the smaller neighbour', () => {
  const stages = [on(0, 'gpu 0', 0, 9), on(1, 'gpu 0', 9, 15), on(2, 'gpu 0', 15, 18)];
  expect(layoutsWithout(stages, [0, 2], [{ node_index: 0, device: 'gpu 1' }])).toEqual([
    [on(0, 'gpu 0', 0, 9), on(0, 'gpu 1', 9, 15), on(2, 'gpu 0', 15, 18)],
    [on(0, 'gpu 0', 0, 9), on(2, 'gpu 0', 9, 18)],
  ]);
  expect(layoutsWithout(stages, [0, 1], [])).toEqual([[on(0, 'gpu 0', 0, 9), on(1, 'gpu 0', 9, 18)]]);
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
          // Each device that is free is in some of them, and the last needs none.
          const used = layouts.flat().filter(({ node_index }) => node_index === 9);
          expect(new Set(used.map(({ device }) => device)).size).toBe(count);
          expect(layouts.at(-1)!.every(({ node_index }) => node_index !== 9)).toBe(true);
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

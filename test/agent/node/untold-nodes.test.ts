/** Which layout nodes hear of a pipeline, where one of them answers late or knows a later one. */
import { setImmediate } from 'node:timers/promises';
import pino from 'pino';
import { expect, test } from 'vitest';
import type { StageLayout } from '../../../agent/node/stage-layout.ts';
import { UntoldNodes } from '../../../agent/node/untold-nodes.ts';
import { unitOf } from '../support.ts';

const unit = unitOf({ name: 'm' }, { nodes: 2 });
const layout = (ring: number): StageLayout => ({
  ring,
  stages: [{ node_index: 0, device: 'gpu 0', begin: 0, end: 6 }],
});
const log = pino({ enabled: false });

test('a layout that comes while nodes hear of the one before is told after it, to who asks meanwhile too', async () => {
  const told: number[] = [];
  let answer: () => void = () => undefined;
  const late = new Promise<void>((resolve) => {
    answer = resolve;
  });
  const settle = async (_unit: string, { ring }: StageLayout): Promise<number> => {
    told.push(ring);
    await (ring === 1 ? late : setImmediate());
    return ring;
  };
  const others = () => [{ node: 'n1', node_index: 1, settle }];
  const untold = new UntoldNodes({
    others,
    behind: async () => undefined,
    log,
  });
  try {
    untold.add(unit, layout(1), [1]);
    const before = untold.tell(unit.unit);
    untold.add(unit, layout(2), [1]);
    const after = untold.tell(unit.unit);
    answer();
    expect([...(await after)]).toEqual([]);
    expect(told).toEqual([1, 2]);
    expect([...(await before)]).toEqual([]);
  } finally {
    untold.close();
  }
});

test('a node with a later layout does not know this one: who drives changes hears of it once a telling', async () => {
  const heard: number[] = [];
  const others = () => [{ node: 'n1', node_index: 1, settle: async () => 7 }];
  const behind = async (_unit: unknown, _layout: StageLayout, ring: number): Promise<void> => {
    heard.push(ring);
  };
  const untold = new UntoldNodes({ others, behind, log });
  try {
    untold.add(unit, layout(2), [1]);
    expect([...(await untold.tell(unit.unit))]).toEqual([1]);
    expect(heard).toEqual([7]);
    untold.add(unit, layout(7), [1]);
    expect([...(await untold.tell(unit.unit))]).toEqual([]);
  } finally {
    untold.close();
  }
});

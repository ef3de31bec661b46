/** Devices of a job that a pipeline may use when it gets more stages: a worker is on each, and loads nothing yet. */
import { expect, test } from 'vitest';
import { assignDevices } from '../../../agent/node/assign-devices.ts';
import { isSpare, stagePlace, stagesOf } from '../../../agent/node/stage-place.ts';
import { model } from '../engine/support.ts';
import { Site, unitOf } from '../support.ts';

const stages = [
  { begin: 0, end: 3 },
  { begin: 3, end: 6 },
];
const emulated = { emulated: 'cpu', device_model: 'A100', device_memory_bytes: 2 ** 30 } as const;

test('stages lie on the first devices of a unit, and the others have none', () => {
  const unit = unitOf(
    { name: 'm', engine: 'native', parallel: { tensor: 1, pipeline: { stages_min: 2, stages_max: 4 } } },
    { engine: 'native', device_kind: 'gpu', stages, threads: 4 },
  );
  expect(unit).toMatchObject({ device_count: 4, pipeline: 2 });
  const description = {
    kind: 'gpu' as const,
    model: 'A100',
    memory_bytes: 2 ** 30,
    isa: [],
    emulated: 'cpu' as const,
  };
  const gpu = Array.from({ length: 4 }, () => ({ description }));
  const host = { allowed_cores: [0, 1, 2, 3], nodes: [] };
  const { groups, failed } = assignDevices([unit], { cpu: [], gpu, mig: [], host, warnings: [] } as never);
  expect(failed).toEqual([]);
  const parts = groups.flatMap(({ units }) => units);
  expect(parts.map(isSpare)).toEqual([false, false, true, true]);
  expect(groups.map((group) => stagesOf(group)?.length ?? 0)).toEqual([1, 1, 0, 0]);
  expect(stagePlace(parts[1]!, 'A100', '/run')).toMatchObject({ stage: 1, stages: 2, begin: 3, end: 6 });
  expect(stagePlace(parts[2]!, 'A100', '/run')).toBeUndefined();
});

test('a pipeline serves with the stages it begins with, beside workers that have nothing', async () => {
  const path = await model('tiny-llama', 'Q8_0');
  await using site = await Site.open();
  const unit = unitOf(
    {
      name: 'm',
      source: path,
      engine: 'native',
      parallel: { tensor: 1, pipeline: { stages_min: 2, stages_max: 3 } },
    },
    { engine: 'native', model_path: path, device_kind: 'gpu', threads: 3, stages },
  );
  const agent = await site.start([unit], emulated);
  await site.serving('m');
  const state = await agent.stateWhere(
    // The agent's own session has no units.
    ({ phase, sessions }) =>
      phase === 'serving' && sessions.filter(({ pid, units }) => pid !== undefined && units).length === 3,
    'a worker on each device, and the model there',
  );
  const workers = state.sessions.filter(({ units }) => units);
  expect(workers.map(({ stages: held = [] }) => held.length).sort()).toEqual([0, 1, 1]);
  expect(state.sessions.flatMap(({ models }) => models.map(({ state: each }) => each))).toEqual(['serving']);
  expect(state.phase).toBe('serving');
});

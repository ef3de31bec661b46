/** A job whose stages leave it before it ends, while the pipeline answers: its coordinator is in another job. */
import { expect, test } from 'vitest';
import { Site } from '../support.ts';
import {
  answer,
  changed,
  emulated,
  type JobDevices,
  on,
  refactor,
  startJob,
  untilStages,
  untilTold,
  workersOf,
} from './refactoring-support.ts';

/** A job whose stages leave it within the time that it is given, on a busy machine, too. */
const leaving = { drain_s: 60 };
const slow: JobDevices = { launch: { ...emulated, ...leaving, emulated_step_ms: 20 } };

test('to a free device of the other job; the job in its place has none, and gets one', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const first = await startJob(site, 0, true, slow);
  const second = await startJob(site, 1, true, slow);
  const record = await site.serving('m');
  await untilStages(second, [[3, 6]]);
  const expected = await answer(site, record, 240);
  const [pid] = await workersOf(first);
  let isOver = false;
  const asked = answer(site, record, 240).finally(() => {
    isOver = true;
  });
  second.process.kill('SIGTERM');
  await untilStages(first, [
    [0, 3],
    [3, 6],
  ]);
  // It does not wait for the answer to end.
  expect(await second.ended).toEqual({ code: 0, signal: null });
  expect(isOver).toBe(false);
  expect(await asked).toEqual(expected);
  expect((await workersOf(first))[0]).toBe(pid);

  const again = await startJob(site, 1, true, slow);
  await workersOf(again);
  await untilStages(again, []);
  const back = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)]);
  expect(back.status, JSON.stringify(back.json)).toBe(200);
  await untilStages(again, [[3, 6]]);
  expect(await answer(site, record, 240)).toEqual(expected);
});

test('from processors that lend it a stage to a device of another kind, and back to them', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const kinds = { node_device_kinds: ['gpu', 'cpu'] as ('gpu' | 'cpu')[] };
  const processors: JobDevices = {
    launch: { ...leaving, cpu_devices_per_node: 2 },
    unit: { ...kinds, device_kind: 'cpu', threads: 1 },
  };
  const first = await startJob(site, 0, true, { ...slow, unit: kinds });
  const second = await startJob(site, 1, true, processors);
  const record = await site.serving('m');
  await untilStages(second, [[3, 6]]);
  const expected = await answer(site, record, 240);
  const asked = answer(site, record, 240);
  second.process.kill('SIGTERM');
  await untilStages(first, [
    [0, 3],
    [3, 6],
  ]);
  expect(await second.ended).toEqual({ code: 0, signal: null });
  expect(await asked).toEqual(expected);

  const again = await startJob(site, 1, true, processors);
  await workersOf(again);
  const back = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'cpu 0', 1, 1)]);
  expect(back.status, JSON.stringify(back.json)).toBe(200);
  await untilStages(again, [[3, 6]]);
  // The layout names the device as its own node does.
  const loaded = answer(site, record, 240);
  again.process.kill('SIGTERM');
  await untilStages(first, [
    [0, 3],
    [3, 6],
  ]);
  expect(await loaded).toEqual(expected);
});

test('though another change is under way that would bring the node a stage', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const first = await startJob(site, 0, true, slow);
  const second = await startJob(site, 1, true, slow);
  const record = await site.serving('m');
  await untilStages(second, [[3, 6]]);
  const expected = await answer(site, record, 240);
  // It loads nothing: the change that widens its stage waits for it.
  const [, spare] = await workersOf(second);
  process.kill(spare!, 'SIGSTOP');
  try {
    const wide = [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)];
    const changing = refactor(site, record, wide);
    await untilTold(second, 'its stages change');
    const asked = answer(site, record, 240);
    second.process.kill('SIGTERM');
    expect(await changing).toMatchObject({ status: 503, json: { error: { code: 'E_REFACTOR_KEPT' } } });
    await untilStages(first, [
      [0, 3],
      [3, 6],
    ]);
    expect(await asked).toEqual(expected);
  } finally {
    process.kill(spare!, 'SIGCONT');
  }
});

test('a node that is to go and has no stage takes none: the change that would bring it one is kept', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  await startJob(site, 0, true, slow);
  const second = await startJob(site, 1, true, slow);
  const record = await site.serving('m');
  const expected = await answer(site, record);
  const halves = [on('n0', 'gpu 0', 0, 1), on('n0', 'gpu 1', 1, 1)];
  expect((await changed(site, record, halves)).status).toBe(200);
  await untilStages(second, []);
  const [, spare] = await workersOf(second);
  process.kill(spare!, 'SIGSTOP');
  try {
    const changing = refactor(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)]);
    await untilTold(second, 'its stages change');
    second.process.kill('SIGTERM');
    const { status, json } = await changing;
    expect(status).toBe(503);
    expect(JSON.stringify(json)).toContain('node n1 is to go');
    expect(await answer(site, record)).toEqual(expected);
  } finally {
    process.kill(spare!, 'SIGCONT');
  }
});

test('to the stage before it, where no device is free', { timeout: 120_000 }, async () => {
  await using site = await Site.open();
  const one: JobDevices = { ...slow, unit: { device_count: 1 } };
  const first = await startJob(site, 0, true, one);
  const second = await startJob(site, 1, true, one);
  const record = await site.serving('m');
  const expected = await answer(site, record, 200);
  await untilStages(second, [[3, 6]]);
  const asked = answer(site, record, 200);
  second.process.kill('SIGTERM');
  await untilStages(first, [[0, 6]]);
  expect(await second.ended).toEqual({ code: 0, signal: null });
  expect(await asked).toEqual(expected);
});

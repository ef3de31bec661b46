/** A node agent that gives a pipeline other stages while it answers. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { RefactorStage } from '../../../spec/refactor.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { model } from '../engine/support.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';
import {
  answer,
  changed,
  emulated,
  halves,
  on,
  refactor,
  stages,
  startTwo,
  untilStages,
  untilTold,
  whole,
  workersOf,
} from './refactoring-support.ts';

async function start(site: Site): Promise<{ agent: RunningAgent; record: SessionRecord }> {
  const path = await model('tiny-llama', 'Q8_0');
  const unit = unitOf(
    { name: 'm', source: path, engine: 'native', batch_invariant: true },
    {
      engine: 'native',
      model_path: path,
      device_kind: 'gpu',
      pipeline: 2,
      threads: 2,
      device_count: 2,
      stages,
    },
  );
  const agent = await site.start([unit], emulated);
  return { agent, record: await site.serving('m') };
}

test('two stages become one and two again while an answer is computed; what is wrong is said', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const { agent, record } = await start(site);
  const expected = await answer(site, record, 200);
  const asked = answer(site, record, 200);
  const first = await refactor(site, record, whole);
  expect(first).toMatchObject({
    status: 200,
    // Within a node: to the coordinator's worker, beside the ring.
    json: {
      epoch: expect.any(Number),
      pause_ms: expect.any(Number),
      bytes_by_way: { sendfile: expect.any(Number) },
    },
  });
  await untilStages(agent, [[0, 6]]);
  const second = await refactor(site, record, halves);
  expect(second.status, JSON.stringify(second.json)).toBe(200);
  expect(second.json).toMatchObject({ bytes_by_way: { sendfile: expect.any(Number) } });
  expect(await asked).toEqual(expected);
  await untilStages(agent, [
    [0, 3],
    [3, 6],
  ]);
  const wrong: [unknown, string][] = [
    [[{ device: 'gpu 1', first_block: 0, blocks: 2 }], 'E_REFACTOR_LAYOUT'],
    [[{ device: 'gpu 0', first_block: 0, blocks: 1 }], 'E_REFACTOR_LAYOUT'],
    [[{ device: 'all', first_block: 0, blocks: 2 }], 'E_REFACTOR_LAYOUT'],
    [[halves[0], { ...halves[1], device: 'gpu 5' }], 'E_REFACTOR_DEVICE'],
    [[halves[0], { ...halves[1], node: 'another' }], 'E_REFACTOR_DEVICE'],
  ];
  for (const [to, code] of wrong)
    expect(await refactor(site, record, to)).toMatchObject({
      json: { error: { code } },
    });
  expect(await refactor(site, record, whole, 'other')).toMatchObject({
    json: { error: { code: 'E_REFACTOR_MODEL' } },
  });
  // A worker that is started again has the stage that its device has now.
  const state = await agent.stateWhere(({ phase }) => phase === 'serving', 'serving');
  process.kill(state.sessions.find((each) => each.stages?.some(({ stage }) => stage === 1))!.pid!, 'SIGKILL');
  const again = await eventually(async () => {
    const now = await site.serving('m');
    return (await answer(site, now, 200).catch(() => undefined)) ?? undefined;
  }, 'an answer after the stage came back');
  expect(again).toEqual(expected);
});

test('a stage moves to another node of the job and back while an answer is computed', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const [first, second] = await startTwo(site, 2);
  let again: RunningAgent | undefined;
  try {
    const record = await site.serving('m');
    const expected = await answer(site, record, 200);
    const asked = answer(site, record, 200);
    const away = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)]);
    expect(away.status, JSON.stringify(away.json)).toBe(200);
    await untilStages(second, [[3, 6]]);
    await untilStages(first, [[0, 3]]);
    const wrong: RefactorStage[][] = [
      [halves[0]!, on('n1', 'gpu 7', 1, 1)],
      [halves[0]!, on('n7', 'gpu 0', 1, 1)],
    ];
    for (const to of wrong)
      expect(await refactor(site, record, to)).toMatchObject({
        json: { error: { code: 'E_REFACTOR_DEVICE' } },
      });
    expect(await asked).toEqual(expected);
    const back = await refactor(site, record, whole);
    expect(back.status, JSON.stringify(back.json)).toBe(200);
    await untilStages(first, [[0, 6]]);
    await untilStages(second, []);
    const there = await refactor(site, record, [halves[0], on('n1', 'gpu 0', 1, 1)]);
    expect(there.status, JSON.stringify(there.json)).toBe(200);
    await untilStages(second, [[3, 6]]);
    expect(await answer(site, record, 200)).toEqual(expected);
    // An agent that is started again has the stage that its node has by now, and not the one of its launch.
    await second.kill();
    again = first.onNode(1);
    await untilStages(again, [[3, 6]]);
    const after = await eventually(
      async () =>
        (await answer(site, await site.serving('m'), 200).catch(() => undefined)) as string | undefined,
      'an answer after the node came back',
      60_000,
    );
    expect(after).toEqual(expected);
  } finally {
    await second.kill();
    await again?.kill();
  }
});

test('a worker, then a node, that is lost before it has its stage: the pipeline keeps those that it has', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [, second] = await startTwo(site, 2);
  try {
    const record = await site.serving('m');
    const expected = await answer(site, record);
    // They load nothing: a change waits for them.
    for (const pid of await workersOf(second)) process.kill(pid, 'SIGSTOP');
    const [one] = await workersOf(second);
    const toWorker = changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)]);
    await untilTold(second, 'its stages change');
    const began_ms = performance.now();
    process.kill(one!, 'SIGKILL');
    const worker = await toWorker;
    expect(worker).toMatchObject({
      status: 503,
      json: { error: { code: 'E_REFACTOR_KEPT' } },
    });
    expect(JSON.stringify(worker.json)).toMatch(/the worker of .* on n1 ended/);
    expect(await answer(site, record)).toEqual(expected);

    const toNode = refactor(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)]);
    await untilTold(second, 'its stages change', 2);
    await second.kill();
    const node = await toNode;
    expect(node).toMatchObject({
      status: 503,
      json: { error: { code: 'E_REFACTOR_KEPT' } },
    });
    expect(JSON.stringify(node.json)).toContain('the agent of node n1 cannot be reached any more');
    expect(performance.now() - began_ms).toBeLessThan(20_000);
    expect(await answer(site, record)).toEqual(expected);
  } finally {
    await second.kill();
  }
});

test('the node that drives a change is lost: the other gives back what it prepared, and takes the next change', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [first, second] = await startTwo(site, 2);
  let again: RunningAgent | undefined;
  try {
    const record = await site.serving('m');
    const expected = await answer(site, record);
    const [one] = await workersOf(second);
    process.kill(one!, 'SIGSTOP');
    const to = [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)];
    const change = changed(site, record, to).catch(() => undefined);
    await untilTold(second, 'its stages change');
    await first.kill();
    await change;
    await untilTold(second, 'its stages are kept');
    process.kill(one!, 'SIGCONT');
    again = first.again();
    const now = await site.session(
      ({ session_id, lifecycle, metadata: { models } }) =>
        session_id !== record.session_id && lifecycle === 'SERVING' && models[0]?.state === 'serving',
      30_000,
    );
    expect(await answer(site, now)).toEqual(expected);
    const after = await changed(site, now, to);
    expect(after.status, JSON.stringify(after.json)).toBe(200);
    await untilStages(second, [[3, 6]]);
    expect(await answer(site, now)).toEqual(expected);
  } finally {
    await second.kill();
    await again?.kill();
  }
});

test('a change that is given up: the other node gives back the stage that it prepared beside the one that it has', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [, second] = await startTwo(site, 1);
  try {
    const record = await site.serving('m');
    const expected = await answer(site, record);
    const to = [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)];
    // Once the agents know each other.
    expect((await changed(site, record, to)).status).toBe(200);
    const { sessions } = await second.stateWhere(({ phase }) => phase === 'serving', 'serving');
    const pid = sessions.find(({ units }) => units)!.pid!;
    process.kill(pid, 'SIGSTOP');
    const gone = new AbortController();
    const asked = site.pool(record).request({
      method: 'POST',
      path: agentPaths.refactor,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'm', stages: to }),
      signal: gone.signal,
    });
    await untilTold(second, 'its stages change', 2);
    gone.abort();
    await expect(asked).rejects.toThrow();
    await untilTold(second, 'its stages are kept');
    process.kill(pid, 'SIGCONT');
    await eventually(async () => {
      const folder = second.launch.launch_folder;
      const logs = (await readdir(folder)).filter((name) => name.endsWith('.log'));
      const texts = await Promise.all(logs.map((name) => readFile(join(folder, name), 'utf8')));
      return texts.some((text) =>
        text.includes('asked to give back the stage of a layout that does not come'),
      );
    }, 'the worker to be told');
    expect(await answer(site, record)).toEqual(expected);
    expect((await changed(site, record, to)).status).toBe(200);
    expect(await answer(site, record)).toEqual(expected);
  } finally {
    await second.kill();
  }
});

/** A node agent that gives a pipeline other stages while it answers. */
import { expect, test } from 'vitest';
import type { RefactorStage } from '../../../spec/refactor.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { model } from '../engine/support.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

const emulated = {
  emulated: 'cpu',
  device_model: 'A100',
  device_memory_bytes: 2 ** 30,
  emulated_step_ms: 10,
} as const;
const stages = [
  { begin: 0, end: 3 },
  { begin: 3, end: 6 },
];
const whole: RefactorStage[] = [{ device: 'gpu 0', first_block: 0, blocks: 2 }];
const halves: RefactorStage[] = [
  { device: 'gpu 0', first_block: 0, blocks: 1 },
  { device: 'gpu 1', first_block: 1, blocks: 1 },
];

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

async function post(
  site: Site,
  record: SessionRecord,
  path: string,
  content: unknown,
): Promise<{ status: number; json: Record<string, never> }> {
  const { statusCode, body } = await site.pool(record).request({
    method: 'POST',
    path,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(content),
  });
  return { status: statusCode, json: JSON.parse(await body.text()) };
}

const refactor = (site: Site, record: SessionRecord, to: unknown, name = 'm') =>
  post(site, record, agentPaths.refactor, { model: name, stages: to });

async function answer(site: Site, record: SessionRecord, max_tokens = 40): Promise<unknown> {
  const asked = { model: 'm', prompt: 'Cut anew', max_tokens, temperature: 0, ignore_eos: true };
  const { status, json } = await post(site, record, '/v1/completions', asked);
  expect(status, JSON.stringify(json)).toBe(200);
  return (json as { choices?: { text: string }[] }).choices![0]!.text;
}

/** Resolves once the agent's state says that its devices have these stages. */
const untilStages = (agent: RunningAgent, wanted: number[][]): Promise<unknown> =>
  agent.stateWhere(
    ({ sessions }) =>
      JSON.stringify(
        sessions.flatMap(({ stages: held = [] }) => held.map(({ begin, end }) => [begin, end])),
      ) === JSON.stringify(wanted),
    `stages ${JSON.stringify(wanted)}`,
  );

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
    json: { epoch: expect.any(Number), pause_ms: expect.any(Number) },
  });
  await untilStages(agent, [[0, 6]]);
  const second = await refactor(site, record, halves);
  expect(second.status, JSON.stringify(second.json)).toBe(200);
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
    expect(await refactor(site, record, to)).toMatchObject({ json: { error: { code } } });
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

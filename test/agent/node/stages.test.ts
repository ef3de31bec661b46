/** Stages of a unit under real node agents: on the devices of one node, and on those of two. */
import { closeSync, copyFileSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { openModelFile } from '../../../agent/engine/model-file.ts';
import { fabricAbsence } from '../../../native/fabric/fabric.ts';
import type { LaunchSpec, UnitSpec } from '../../../spec/launch.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { eventually } from '../../mesh/support.ts';
import { model } from '../engine/support.ts';
import { apart_words, canBeApart } from '../pipeline/apart.ts';
import { type RunningAgent, Site, unitOf } from '../support.ts';

async function cutUnit(more: Partial<UnitSpec>): Promise<UnitSpec> {
  const path = await model('tiny-llama', 'Q8_0');
  return unitOf(
    { name: 'm', source: path, engine: 'native', batch_invariant: true },
    { engine: 'native', model_path: path, device_kind: 'gpu', pipeline: 2, threads: 2, ...more },
  );
}

const stages = [
  { begin: 0, end: 3 },
  { begin: 3, end: 6 },
];
const emulated = { emulated: 'cpu', device_model: 'A100', device_memory_bytes: 2 ** 30 } as const;

async function answer(site: Site, record: SessionRecord, name = 'm', max_tokens = 12): Promise<string> {
  const { statusCode, body } = await site.pool(record).request({
    method: 'POST',
    path: '/v1/completions',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: name, prompt: 'Cut', max_tokens, temperature: 0, ignore_eos: true }),
  });
  const text = await body.text();
  expect(statusCode, text).toBe(200);
  return JSON.parse(text).choices[0].text;
}

async function whole(): Promise<string> {
  await using site = await Site.open();
  await site.start([await cutUnit({ pipeline: 1, device_count: 1 })], emulated);
  return await answer(site, await site.serving('m'));
}

const pidOfStage = async (agent: RunningAgent, stage: number, not = 0): Promise<number> => {
  const state = await agent.stateWhere(
    ({ sessions }) =>
      sessions.some(
        (each) =>
          each.pid !== undefined && each.pid !== not && each.stages?.some((held) => held.stage === stage),
      ),
    `stage ${stage} to run`,
  );
  return state.sessions.find(({ stages: held }) => held?.some((each) => each.stage === stage))!.pid!;
};

test('pipelines on the same devices begin on those that the plan chose', async () => {
  await using site = await Site.open();
  const expected = await whole();
  const asked = { device_count: 4, stages, threads: 4, weight_bytes: 1000 };
  const other = await cutUnit({ ...asked, unit: 'n-0', stage_devices: [0, 2] });
  const units = [
    await cutUnit({ ...asked, stage_devices: [1, 3] }),
    { ...other, model: { ...other.model, name: 'n' } },
  ];
  const agent = await site.start(units, emulated);
  for (const name of ['m', 'n']) {
    const record = await site.serving(name);
    expect(await answer(site, record, name)).toBe(expected);
  }
  const { sessions } = await agent.stateWhere(({ phase }) => phase === 'serving', 'serving');
  const found = sessions.flatMap(({ devices = [], stages: held = [] }) =>
    held.map(({ model: name, stage }) => `${name} ${stage} on ${devices[0]!.index}`),
  );
  expect(found.sort()).toEqual(['m 0 on 1', 'm 1 on 3', 'n 0 on 0', 'n 1 on 2']);
});

test('a unit in two stages is served by its first one; a stage that is killed comes back', async () => {
  await using site = await Site.open();
  const expected = await whole();
  const agent = await site.start([await cutUnit({ device_count: 2, stages })], emulated);
  const record = await site.serving('m');
  expect(await answer(site, record)).toBe(expected);
  const state = await agent.stateWhere(({ phase }) => phase === 'serving', 'serving');
  expect(
    state.sessions.flatMap(({ stages: held = [] }) => held.map(({ begin, end }) => [begin, end])),
  ).toEqual([
    [0, 3],
    [3, 6],
  ]);
  // Gateways see one replica.
  const models = site.registry.snapshot().filter(({ lifecycle }) => lifecycle !== 'LEFT');
  expect(models.flatMap(({ metadata }) => metadata.models)).toHaveLength(1);
  const pid = await pidOfStage(agent, 1);
  process.kill(pid, 'SIGKILL');
  await pidOfStage(agent, 1, pid);
  const again = await eventually(async () => {
    const now = await site.serving('m');
    return (await answer(site, now).catch(() => undefined)) ?? undefined;
  }, 'an answer after the stage came back');
  expect(again).toBe(expected);
});

test('stages on two nodes of a job talk through their agents', async () => {
  await using site = await Site.open();
  const expected = await whole();
  const first = await site.start([await cutUnit({ device_count: 1, nodes: 2, stages })], {
    ...emulated,
    node_count: 2,
  });
  const second = first.onNode(1);
  try {
    expect(await answer(site, await site.serving('m'))).toBe(expected);
    // Its node is lost: streams end, and it is served again once the node is back.
    await second.kill();
    const down = await eventually(async () => {
      const state = await first.state();
      return state?.sessions.some(({ models }) => models[0]?.state === 'loading') ? state : undefined;
    }, 'the pipeline to be noticed as broken');
    expect(down.phase).toBe('loading');
  } finally {
    await second.kill();
  }
});

/** A model whose last layer has a weight that is no number: what computes that loads it in vain. */
async function withoutLastLayer(folder: string): Promise<string> {
  const path = join(folder, 'broken.gguf');
  copyFileSync(await model('tiny-llama', 'Q8_0'), path);
  const { gguf } = openModelFile(path);
  const { offset_bytes } = gguf.tensors.find(({ name }) => name === 'blk.1.ffn_down.weight')!;
  const file = openSync(path, 'r+');
  // The scale of its first block.
  writeSync(file, Uint16Array.of(0x7e00), 0, 2, offset_bytes);
  closeSync(file);
  return path;
}

test('a unit fails with one of its later stages, and its node says why', async () => {
  await using site = await Site.open();
  const model_path = await withoutLastLayer(site.folder);
  const agent = await site.start([await cutUnit({ device_count: 2, stages, model_path })], emulated);
  expect((await agent.ended).code).not.toBe(0);
  const state = await agent.state();
  expect(state).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_UNITS_FAILED' } });
  expect(state!.error!.because).toEqual([expect.stringMatching(/^m-0-stage1: .*E_MODEL_WEIGHTS/)]);
});

test('a unit of several fails with one of its later stages, and status and gateways see it', async () => {
  await using site = await Site.open();
  const model_path = await withoutLastLayer(site.folder);
  const broken = await cutUnit({ device_count: 2, stages, model_path });
  const other = await cutUnit({ unit: 'n-0', pipeline: 1, device_count: 1, first_device: 2 });
  const agent = await site.start([broken, { ...other, model: { ...other.model, name: 'n' } }], emulated);
  const record = await site.serving('n');
  // What is told of it waits for nothing: the other one serves, and the node does.
  const { sessions } = await agent.stateWhere(({ phase }) => phase === 'serving', 'the other unit to serve');
  const told = sessions.flatMap(({ models }) => models).find(({ name }) => name === 'm');
  expect(told).toMatchObject({
    state: 'failed',
    error: expect.stringMatching(/weights that are no numbers/),
  });
  await eventually(
    () =>
      site.registry
        .snapshot()
        .some(({ metadata }) =>
          metadata.models.some(({ name, state }) => name === 'm' && state === 'failed'),
        ) || undefined,
    'gateways to see that it failed',
  );
  expect(await answer(site, record, 'n', 4)).not.toBe('');
});

/** One job of several over which the stages of a unit are divided. */
async function partOf(
  site: Site,
  node_index: number,
  {
    group = 'm-0.1',
    launch = {} as Partial<LaunchSpec>,
    environment = {} as Record<string, string>,
    prefix = [] as string[],
    more = {} as Partial<UnitSpec>,
  } = {},
): Promise<RunningAgent> {
  const unit = await cutUnit({ device_count: 1, nodes: 2, stages, ...more });
  return site.start([unit], { ...emulated, ...launch, part: { group, node_index } }, environment, prefix);
}

test.each([
  ['sees no file', '/nowhere/model.gguf', /E_AGENT_MODEL_PATH/],
  ['cannot load it', undefined, /E_MODEL_WEIGHTS/],
])(
  'a job that has only a later stage and %s ends and says so, and another takes its place',
  async (_, path, why) => {
    await using site = await Site.open();
    const expected = await whole();
    await partOf(site, 0);
    const model_path = path ?? (await withoutLastLayer(site.folder));
    const second = await partOf(site, 1, { more: { model_path } });
    expect((await second.ended).code).not.toBe(0);
    const state = await second.state();
    expect(state).toMatchObject({ phase: 'failed', error: { code: 'E_AGENT_UNITS_FAILED' } });
    expect(state!.error!.because).toEqual([expect.stringMatching(why)]);
    await partOf(site, 1);
    const record = await eventually(
      () =>
        site.registry
          .snapshot()
          .find(({ metadata }) => metadata.models.some(({ state }) => state === 'serving')),
      'the pipeline to serve with the stage in another job',
      60_000,
    );
    expect(await answer(site, record)).toBe(expected);
  },
);

test('a node that has only a later stage ends once nothing is computed there any more', async () => {
  await using site = await Site.open();
  const environment = { HPCSERVE_DRAIN_S: '60' };
  const launch: Partial<LaunchSpec> = { emulated_step_ms: 10 };
  const first = await partOf(site, 0, { launch, environment });
  const second = await partOf(site, 1, { launch, environment });
  const record = await site.serving('m');
  await pidOfStage(first, 0);
  const expected = await answer(site, record, 'm', 120);
  const asked = answer(site, record, 'm', 120);
  await delay(200);
  // Slurm ends its job while an answer is computed, which is not of its own.
  second.process.kill('SIGTERM');
  expect(await asked).toBe(expected);
  const idle_ms = performance.now();
  expect((await second.ended).code).toBe(0);
  // Long before the end of its grace time.
  expect(performance.now() - idle_ms).toBeLessThan(30_000);
});

test.skipIf(!canBeApart || fabricAbsence() !== undefined)(
  'a provider of a private fabric that does not work between two nodes is a notice of their agents [needs root]',
  async () => {
    await using site = await Site.open();
    const expected = await whole();
    const launch: Partial<LaunchSpec> = { private_fabric: true, fabrics: ['no-such-fabric', 'tcp'] };
    const first = await partOf(site, 0, { launch });
    const second = await partOf(site, 1, { launch, prefix: ['unshare', ...apart_words] });
    expect(await answer(site, await site.serving('m'))).toBe(expected);
    for (const agent of [first, second]) {
      const { notices } = await agent.stateWhere(
        (state) => state.notices?.some(({ code }) => code === 'E_STAGE_FABRIC') === true,
        'it says so',
      );
      expect(notices).toContainEqual(
        expect.objectContaining({ code: 'E_STAGE_FABRIC', details: { provider: 'no-such-fabric' } }),
      );
    }
  },
);

test('stages in two jobs: one that is lost is started again elsewhere, and the other goes on with it', async () => {
  await using site = await Site.open();
  const expected = await whole();
  const first = await partOf(site, 0);
  // Of the same model and user, and of another pipeline: with it nothing serves.
  const stranger = await partOf(site, 1, { group: 'm-0.2' });
  await pidOfStage(stranger, 1);
  await pidOfStage(first, 0);
  const loading = async (): Promise<boolean | undefined> =>
    (await first.state())?.sessions.some(({ models }) => models[0]?.state === 'loading') || undefined;
  await eventually(loading, 'the first stage to wait for the second');
  const second = await partOf(site, 1);
  const record = await site.serving('m');
  expect(await answer(site, record)).toBe(expected);
  await stranger.kill();
  const pid = await pidOfStage(first, 0);
  await second.kill();
  await eventually(loading, 'the pipeline to be noticed as broken');
  await partOf(site, 1);
  const again = await eventually(
    async () => (await answer(site, await site.serving('m')).catch(() => undefined)) ?? undefined,
    'an answer with the stage in another job',
    30_000,
  );
  expect(again).toBe(expected);
  // The process that has the requests, its weights and its session are those from before.
  expect(await pidOfStage(first, 0)).toBe(pid);
  expect((await site.serving('m')).session_id).toBe(record.session_id);
});

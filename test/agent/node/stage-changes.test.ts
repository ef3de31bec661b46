/** What an agent does where another one, which drives a change of stages, is gone or does not reach it meanwhile. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ElsewhereStages } from '../../../agent/node/elsewhere-stages.ts';
import { PipelineAgents } from '../../../agent/node/pipeline-agents.ts';
import { keepStageLayout, keptStageLayout, type StageLayout } from '../../../agent/node/stage-layout.ts';
import { LocalSession } from '../../../mesh/index.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually, metadata } from '../../mesh/support.ts';
import { type RunningAgent, Site } from '../support.ts';
import {
  answer,
  changed,
  halves,
  on,
  refactor,
  startTwo,
  untilPlanIsTold,
  untilStages,
  untilTold,
  whole,
} from './refactoring-support.ts';

/** An agent of the same launch that is there for the test alone, and the agents that it can ask. */
async function agentsOf(site: Site, { launch }: RunningAgent): Promise<PipelineAgents> {
  const delegation = site.provider.launch(launch.launch_id);
  const { launch_id, deployment } = launch;
  const own = await LocalSession.join(
    site.registry,
    {
      ...metadata,
      role: 'node-agent',
      node: 'n9',
      node_index: 9,
      launch_id,
      deployment,
      addresses: [],
    },
    undefined,
    () => delegation,
  );
  await own.update({ lifecycle: 'SERVING' });
  return new PipelineAgents({
    registry: site.registry,
    own: () => own.identity,
    node_index: 9,
    launch,
    provider: () => site.provider.id,
  });
}

async function node(agents: PipelineAgents, node_index: number): Promise<ElsewhereStages> {
  const record = await eventually(
    () => agents.others().find(({ metadata: { node_index: at } }) => at === node_index),
    `the agent of node ${node_index}`,
  );
  return new ElsewhereStages(agents, record);
}

/** The second stage on the second device of the other node. */
const away: StageLayout = {
  ring: 1,
  stages: [
    { node_index: 0, device: 'gpu 0', begin: 0, end: 3 },
    { node_index: 1, device: 'gpu 1', begin: 3, end: 6 },
  ],
};

test('a layout comes whose stage a node has just given back: it loads the stage anew, and the pipeline answers', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [first, second] = await startTwo(site, 2);
  let again: RunningAgent | undefined;
  try {
    const expected = await answer(site, await site.serving('m'));
    // Whoever is told late finds a later change there, and follows it with one more.
    await untilPlanIsTold(first);
    const agents = await agentsOf(site, first);
    const driver = await node(agents, 1);
    // The agent knows who asks by its record.
    const prepared = await eventually(async () => {
      const told = await driver.prepare('m-0', away);
      return 'refused' in told ? undefined : told;
    }, 'the other node to prepare its stage');
    expect(prepared).toHaveLength(1);
    driver.close();
    await untilTold(second, 'its stages are kept');
    expect(await (await node(agents, 1)).settle('m-0', away, true)).toBe(1);
    await untilStages(second, [[3, 6]]);
    // Told twice, and of a layout before it: nothing of that counts.
    expect(await (await node(agents, 1)).settle('m-0', away, true)).toBe(1);

    // The coordinator comes with the layout that was kept: the ring comes up only if the stage is there.
    keepStageLayout(first.launch, first.launch.units[0]!, away);
    await first.kill();
    again = first.again();
    const after = await eventually(
      async () =>
        (await answer(site, await site.serving('m'), 40).catch(() => undefined)) as string | undefined,
      'an answer over the layout that has come',
      60_000,
    );
    expect(after).toEqual(expected);
    await untilStages(second, [[3, 6]]);
  } finally {
    await second.kill();
    await again?.kill();
  }
});

test('another agent that drove a change unseen: the first node hears of it, and all have one layout again', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const [first, second] = await startTwo(site, 1);
  let again: RunningAgent | undefined;
  // The stages are where they were planned, by another ring.
  const elsewhere = { ring: 5, stages: away.stages.map((stage) => ({ ...stage, device: 'gpu 0' })) };
  try {
    const expected = await answer(site, await site.serving('m'));
    const agents = await agentsOf(site, first);
    await first.kill();
    await eventually(
      async () => (await (await node(agents, 1)).settle('m-0', elsewhere, true)) === 5 || undefined,
      'the second node to have another layout',
    );
    // It finds none that was kept, and begins as it was planned.
    again = first.again();
    const unit = first.launch.units[0]!;
    const kept = await eventually(() => keptStageLayout(first.launch, unit), 'a layout for all', 60_000);
    expect(kept).toMatchObject({ ring: 6, stages: [{ node_index: 0 }, { node_index: 1, device: 'gpu 0' }] });
    const after = await eventually(
      async () => (await answer(site, await site.serving('m')).catch(() => undefined)) as string | undefined,
      'an answer over stages that fit together',
      60_000,
    );
    expect(after).toEqual(expected);
  } finally {
    await second.kill();
    await again?.kill();
  }
});

test('a node whose agent does not answer hears of a change later, and takes no stage before', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [first, second] = await startTwo(site, 2);
  try {
    const record = await site.serving('m');
    const expected = await answer(site, record);
    // Once the agents know each other, the other one hears of changes in which it has no stage.
    expect(await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)])).toMatchObject({
      status: 200,
    });
    expect((await refactor(site, record, halves)).status).toBe(200);
    second.process.kill('SIGSTOP');
    expect((await refactor(site, record, whole)).status).toBe(200);
    expect(await answer(site, record)).toEqual(expected);
    expect(await refactor(site, record, [halves[0], on('n1', 'gpu 0', 1, 1)])).toMatchObject({
      status: 409,
      json: { error: { code: 'E_REFACTOR_DEVICE' } },
    });
    second.process.kill('SIGCONT');
    await untilTold(second, '"ring":3', 1);
    await untilStages(first, [[0, 6]]);
    const there = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 0', 1, 1)]);
    expect(there.status, JSON.stringify(there.json)).toBe(200);
    expect(await answer(site, record)).toEqual(expected);
  } finally {
    second.process.kill('SIGCONT');
    await second.kill();
  }
});

test('a change that its caller has left before it began does not happen', {
  timeout: 120_000,
}, async () => {
  await using site = await Site.open();
  const [, second] = await startTwo(site, 2);
  try {
    const record = await site.serving('m');
    await answer(site, record);
    expect((await changed(site, record, whole)).status).toBe(200);
    // It answers what is asked of it late: the change waits for that, and its caller does not.
    second.process.kill('SIGSTOP');
    const gone = new AbortController();
    const asked = site.pool(record).request({
      method: 'POST',
      path: agentPaths.refactor,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        model: 'm',
        stages: [halves[0], on('n1', 'gpu 0', 1, 1)],
      }),
      signal: gone.signal,
    });
    await expect(
      Promise.race([asked, new Promise((resolve) => setTimeout(resolve, 500, 'waits'))]),
    ).resolves.toBe('waits');
    gone.abort();
    await expect(asked).rejects.toThrow();
    await new Promise((resolve) => setTimeout(resolve, 500));
    second.process.kill('SIGCONT');
    await untilTold(second, 'its stages are kept');
    const file = join(second.launch.launch_folder, 'n0.agent.log');
    await eventually(
      async () => /E_REFACTOR_KEPT.*who asked for it is gone/.test(await readFile(file, 'utf8')),
      'the first node to say why its stages are kept',
    );
  } finally {
    second.process.kill('SIGCONT');
    await second.kill();
  }
});

/** Pipelines under real node agents that get other stages. */
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { LaunchSpec, UnitSpec } from '../../../spec/launch.ts';
import type { RefactorStage } from '../../../spec/refactor.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually } from '../../mesh/support.ts';
import { model } from '../engine/support.ts';
import { type RunningAgent, type Site, unitOf } from '../support.ts';

export const emulated = {
  emulated: 'cpu',
  device_model: 'A100',
  device_memory_bytes: 2 ** 30,
  emulated_step_ms: 10,
} as const;
export const stages = [
  { begin: 0, end: 3 },
  { begin: 3, end: 6 },
];
export const whole: RefactorStage[] = [{ device: 'gpu 0', first_block: 0, blocks: 2 }];
export const halves: RefactorStage[] = [
  { device: 'gpu 0', first_block: 0, blocks: 1 },
  { device: 'gpu 1', first_block: 1, blocks: 1 },
];

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

export const refactor = (site: Site, record: SessionRecord, to: unknown, name = 'm') =>
  post(site, record, agentPaths.refactor, { model: name, stages: to });

export async function answer(site: Site, record: SessionRecord, max_tokens = 40): Promise<unknown> {
  const asked = {
    model: 'm',
    prompt: 'Cut anew',
    max_tokens,
    temperature: 0,
    ignore_eos: true,
  };
  const { status, json } = await post(site, record, '/v1/completions', asked);
  expect(status, JSON.stringify(json)).toBe(200);
  return (json as { choices?: { text: string }[] }).choices![0]!.text;
}

/** Resolves once the agent's state says that its devices have these stages. */
export const untilStages = (agent: RunningAgent, wanted: number[][]): Promise<unknown> =>
  agent.stateWhere(
    ({ sessions }) =>
      JSON.stringify(
        sessions.flatMap(({ stages: held = [] }) => held.map(({ begin, end }) => [begin, end])),
      ) === JSON.stringify(wanted),
    `stages ${JSON.stringify(wanted)}`,
    // Beside other suites, a stage that moves is loaded and copied for longer than most that is waited for.
    45_000,
  );

/** A unit over two nodes of a job, with so many devices on each. */
export async function startTwo(site: Site, device_count: number): Promise<[RunningAgent, RunningAgent]> {
  const path = await model('tiny-llama', 'Q8_0');
  const unit = unitOf(
    { name: 'm', source: path, engine: 'native', batch_invariant: true },
    {
      engine: 'native',
      model_path: path,
      device_kind: 'gpu',
      pipeline: 2,
      threads: 2,
      device_count,
      nodes: 2,
      stages,
    },
  );
  const first = await site.start([unit], { ...emulated, node_count: 2 });
  const second = first.onNode(1);
  await second.stateWhere(({ phase }) => phase !== 'starting', 'the second node to have begun');
  return [first, second];
}

/** What computes in a job. */
export interface JobDevices {
  launch: Partial<LaunchSpec>;
  unit?: Partial<UnitSpec>;
  environment?: Record<string, string>;
}

/**
 * One of two jobs over which the stages of a unit are divided; each has two devices, and begins with one stage.
 * @param isKept false: of a version that had no folder for the layouts of pipelines over jobs
 */
export async function startJob(
  site: Site,
  node_index: number,
  isKept = true,
  devices: JobDevices = { launch: emulated },
): Promise<RunningAgent> {
  const path = await model('tiny-llama', 'Q8_0');
  const parallel = { tensor: 1, pipeline: 2, jobs: 2 };
  const unit = unitOf(
    { name: 'm', source: path, engine: 'native', batch_invariant: true, parallel },
    {
      engine: 'native',
      model_path: path,
      device_kind: 'gpu',
      pipeline: 2,
      threads: 2,
      device_count: 2,
      nodes: 2,
      stages,
      ...devices.unit,
    },
  );
  const folder = join(site.folder, 'pipelines');
  await mkdir(folder, { recursive: true });
  const part = { group: 'm-0.1', node_index };
  return site.start(
    [unit],
    { ...devices.launch, part: isKept ? { ...part, folder } : part },
    devices.environment,
  );
}

export const on = (node: string, device: string, first_block: number, blocks: number): RefactorStage => ({
  node,
  device,
  first_block,
  blocks,
});

/** The answer of a change, once the agent of the first node knows the other, or the one in its place. */
export const changed = (site: Site, record: SessionRecord, to: RefactorStage[]) =>
  eventually(async () => {
    const { status, json } = await refactor(site, record, to);
    const { because = [] } = (json as { error?: { because?: string[] } }).error ?? {};
    return status === 409 && /no agent|does not answer|no device worker/.test(JSON.stringify([json, because]))
      ? undefined
      : { status, json };
  }, 'the nodes to know each other');

/** Resolves once a node was told of so many changes. */
export const untilTold = ({ launch }: RunningAgent, what: string, times = 1): Promise<unknown> =>
  eventually(
    async () =>
      (await readFile(join(launch.launch_folder, 'n1.agent.log'), 'utf8')).split(what).length > times,
    `the second node to hear: ${what}`,
  );

/** Resolves once the first node has told the second one of the stages as planned: it asks for nothing after that. */
export const untilPlanIsTold = ({ launch }: RunningAgent): Promise<unknown> =>
  eventually(
    async () =>
      /a node knows its stages/.test(await readFile(join(launch.launch_folder, 'n0.agent.log'), 'utf8')),
    'the second node to know the stages as planned',
  );

/** The workers of a node, in the order of its devices, once they run. */
export async function workersOf(agent: RunningAgent): Promise<number[]> {
  const state = await agent.stateWhere(
    ({ sessions }) => sessions.filter(({ pid, units }) => pid !== undefined && units).length === 2,
    'its workers to run',
  );
  return state.sessions.flatMap(({ pid, units }) => (units ? [pid!] : []));
}

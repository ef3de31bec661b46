/** Who hears of the end of a device worker, and what changes of stages leave behind while it lives. */
import { mkdirSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import pino from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import type { GroupUnit, UnitGroup } from '../../../agent/node/assign-devices.ts';
import { DeviceWorkerProcess } from '../../../agent/node/device-worker-process.ts';
import { JsonLines } from '../../../agent/node/json-lines.ts';
import { NodeStages } from '../../../agent/node/node-stages.ts';
import { OrphanGuard } from '../../../agent/node/orphan-guard.ts';
import type { PipelineAgents } from '../../../agent/node/pipeline-agents.ts';
import { PipelineRefactorings } from '../../../agent/node/pipeline-refactorings.ts';
import type { ProcessContext } from '../../../agent/node/serving-process.ts';
import {
  type ChangeAnswer,
  type ChangeOrder,
  changeAnswerSchema,
  changes_protocol,
  StageChanges,
} from '../../../agent/node/stage-changes.ts';
import { StageTunnels } from '../../../agent/node/stage-tunnels.ts';
import type { UnitSupervisor } from '../../../agent/node/unit-supervisor.ts';
import type { LaunchSpec, UnitSpec } from '../../../spec/launch.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths } from '../../../spec/wire.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';
import { unitOf } from '../support.ts';

const log = pino({ level: 'silent' });
const stages = [
  { begin: 0, end: 3 },
  { begin: 3, end: 6 },
];
/** No other agent is there; one that asks is one of the pipeline's. */
const agents = { others: () => [], has: () => true } as unknown as PipelineAgents;

/** A node with two device workers, which load nothing, and with what its agent has for changes of stages. */
async function startNode() {
  const { path: folder, [Symbol.asyncDispose]: remove } = await scratchFolder();
  const guard = new OrphanGuard(join(folder, 'guarded'));
  const unit = unitOf({ name: 'm' }, { engine: 'native', device_kind: 'gpu', device_count: 2, stages });
  const supervisors = [0, 1].map((at) => {
    const runtime_folder = join(folder, `worker-${at}`);
    mkdirSync(runtime_folder, { mode: 0o700 });
    const own: GroupUnit = { ...unit, first_device: at, device_count: 1, stage: at };
    const group: UnitGroup = {
      name: `gpu${at}`,
      engine: 'native',
      units: [own],
      devices: [
        { description: { kind: 'gpu', model: 'A100', memory_bytes: 2 ** 28, isa: [], emulated: 'cpu' } },
      ],
      first_device: at,
      threads: 1,
    };
    const context = {
      group,
      runtime_folder,
      log_file: join(folder, `worker-${at}.log`),
      heartbeat_ms: 1000,
      drain_ms: 0,
      session_id: `${at}`.repeat(32),
      engine_prefix: [],
      physical_cores: (cores: readonly number[]) => cores.map((core) => [core]),
      guard,
      log,
      environment: process.env,
      traffic: { unanswered: new Set() },
      onChange: () => undefined,
      onStalled: () => undefined,
      onFullness: () => undefined,
    } as unknown as ProcessContext;
    const worker = new DeviceWorkerProcess(context);
    return { name: group.name, group, worker, changed: () => undefined };
  });
  onTestFinished(async () => {
    await Promise.all(supervisors.map(({ worker }) => worker.stop(5000)));
    guard.close();
    await remove();
  });
  for (const { worker } of supervisors) await eventually(() => worker.upstream !== undefined, 'it listens');
  const tunnels = new StageTunnels({ agents, node_index: 0, folder, log });
  const nodeStages = new NodeStages({
    node: 'n0',
    node_index: 0,
    tunnels,
    supervisors: () => supervisors as unknown as UnitSupervisor[],
  });
  const options = {
    node: 'n0',
    node_index: 0,
    launch: { launch_folder: folder } as LaunchSpec,
    stages: nodeStages,
    agents,
    leaving: new AbortController().signal,
    log,
  };
  return { folder, unit, supervisors, options };
}

/** Counts who listens for the end of a worker: what has waited for a promise is kept as long as that is. */
function countListeners(worker: DeviceWorkerProcess): () => number {
  let count = 0;
  const { ended, onEnded } = worker;
  const then = ended.then.bind(ended);
  Object.assign(ended, {
    // biome-ignore lint/suspicious/noThenProperty: it counts who waits for the promise
    then: (...listeners: Parameters<typeof then>) => {
      count++;
      return then(...listeners);
    },
  });
  worker.onEnded = (listener) => {
    count++;
    const stop = onEnded.call(worker, listener);
    return () => {
      count--;
      stop();
    };
  };
  return () => count;
}

test('a change that this agent drives leaves nothing behind', async () => {
  const { unit, supervisors, options } = await startNode();
  const counts = supervisors.map(({ worker }) => countListeners(worker));
  const refactorings = new PipelineRefactorings({
    ...options,
    units: [unit] as UnitSpec[],
    layouts: new Map(),
  });
  onTestFinished(() => refactorings.close());
  const to = [
    { device: 'gpu 0', first_block: 0, blocks: 1 },
    { device: 'gpu 1', first_block: 1, blocks: 1 },
  ];
  const coordinator = supervisors[0] as unknown as UnitSupervisor;
  for (let change = 0; change < 5; change++)
    await expect(
      refactorings.refactor(coordinator, { model: 'm', stages: to }, new AbortController().signal),
    ).rejects.toMatchObject({ code: 'E_REFACTOR_MODEL' });
  expect(counts.map((count) => count())).toEqual([0, 0]);
});

test('a change that another agent drives leaves nothing behind, and ends with a worker', async () => {
  const { folder, supervisors, options } = await startNode();
  const counts = supervisors.map(({ worker }) => countListeners(worker));
  const changes = new StageChanges({ ...options, leave: () => Promise.reject(new Error('nobody leaves')) });
  onTestFinished(() => changes.close());
  const server = createServer();
  const path = join(folder, 'changes.sock');
  await new Promise<void>((resolve) => server.listen(path, resolve));
  onTestFinished(() => void server.close());
  const connect = async () => {
    const taken = new Promise<Socket>((resolve) => server.once('connection', resolve));
    const way = createConnection(path);
    const request = { url: agentPaths.stage_changes, headers: { upgrade: changes_protocol } };
    changes.accept(request as never, await taken, Buffer.alloc(0), {} as SessionRecord);
    // What says yes to an upgrade comes first.
    await new Promise((resolve) => way.once('data', resolve));
    const answers: ChangeAnswer[] = [];
    const lines = new JsonLines<ChangeAnswer, ChangeOrder>(
      way,
      changeAnswerSchema,
      (answer) => answers.push(answer),
      () => undefined,
    );
    return { lines, answers };
  };
  const layoutOf = (ring: number) => ({
    ring,
    stages: [
      { node_index: 1, device: 'gpu 0', begin: 0, end: 3 },
      { node_index: 0, device: 'gpu 1', begin: 3, end: 6 },
    ],
  });
  for (let ring = 1; ring < 5; ring++) {
    const { lines, answers } = await connect();
    lines.send({ type: 'prepare', unit: 'm-0', layout: layoutOf(ring) });
    await eventually(() => answers.length === 1, 'it to be prepared');
    expect(answers).toMatchObject([{ type: 'prepared' }]);
    // Told that it comes to nothing, that it is for good, or nothing at all.
    if (ring % 3 !== 0)
      lines.send({ type: 'settle', unit: 'm-0', layout: layoutOf(ring), isDone: ring % 3 === 2 });
    if (ring % 3 !== 0) await eventually(() => answers.length === 2, 'it to be settled');
    lines.close();
    await eventually(() => counts[1]!() === 0, 'nothing to be left of it');
  }
  expect(counts.map((count) => count())).toEqual([0, 0]);
  const { lines, answers } = await connect();
  lines.send({ type: 'prepare', unit: 'm-0', layout: layoutOf(9) });
  await eventually(() => answers.length === 1, 'it to be prepared');
  process.kill(supervisors[1]!.worker.pid!, 'SIGKILL');
  await eventually(() => answers.length === 2, 'it to hear of the end');
  expect(answers[1]).toMatchObject({ type: 'ended', because: expect.stringContaining('the worker of gpu1') });
  lines.close();
});

test('who waits for a change hears of the end of the worker that has the requests', async () => {
  const { unit, supervisors } = await startNode();
  const { worker } = supervisors[0]!;
  process.kill(worker.pid!, 'SIGSTOP');
  const changing = worker.refactor(1, [{ device: 'a', begin: 0, end: 6 }], {
    ...unit,
    stage: 0,
  } as GroupUnit);
  const heard: string[] = [];
  const stop = worker.onEnded(() => heard.push('not any more'));
  worker.onEnded(() => heard.push('ended'));
  stop();
  process.kill(worker.pid!, 'SIGKILL');
  await expect(changing).rejects.toMatchObject({ code: 'E_STAGE_LOST' });
  expect(heard).toEqual(['ended']);
  worker.onEnded(() => heard.push('late'));
  expect(heard).toEqual(['ended', 'late']);
  await expect(worker.refactor(2, [], { ...unit, stage: 0 } as GroupUnit)).rejects.toMatchObject({
    code: 'E_STAGE_LOST',
  });
});

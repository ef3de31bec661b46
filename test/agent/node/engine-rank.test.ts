/** A wrapped engine on two nodes: its ranks find each other by files, and none goes on without the others. */
import { mkdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pino from 'pino';
import { expect, test } from 'vitest';
import { AnswerPace } from '../../../agent/node/answer-pace.ts';
import { AnswerTimes } from '../../../agent/node/answer-times.ts';
import type { UnitGroup } from '../../../agent/node/assign-devices.ts';
import { EngineProcess } from '../../../agent/node/engine-process.ts';
import { EngineRank } from '../../../agent/node/engine-rank.ts';
import { OrphanGuard } from '../../../agent/node/orphan-guard.ts';
import { placeOf, type RankPlace } from '../../../agent/node/rank-rendezvous.ts';
import type { ProcessContext, ServingProcess } from '../../../agent/node/serving-process.ts';
import { launchFiles } from '../../../spec/state-layout.ts';
import { eventually, scratchFolder } from '../../mesh/support.ts';
import { writeVllmSources } from '../adapters/vllm-sources.ts';
import { alive, fixtureEngine, unitOf } from '../support.ts';

/** The first rank answers; the other one ends in failure once there is a file. */
const script = `
if [ "$1" = 0 ]; then exec "$2" "$3" "$4"; fi
echo "part $1 meets the others with $HPCSERVE_ENGINE_KEY"
while [ ! -e "$5" ]; do sleep 0.05; done
echo 'fabric: link down' >&2
exit 3
`;

class TwoNodes implements AsyncDisposable {
  readonly first: EngineProcess;
  readonly second: EngineRank;
  readonly #folder: string;
  readonly #scratch: AsyncDisposable;
  readonly #guards: OrphanGuard[] = [];

  private constructor(scratch: AsyncDisposable & { path: string }, contexts: ProcessContext[]) {
    this.#scratch = scratch;
    this.#folder = scratch.path;
    this.#guards = contexts.map(({ guard }) => guard);
    const [first, second] = contexts as [ProcessContext, ProcessContext];
    this.first = new EngineProcess(first);
    this.second = new EngineRank(second, second.place!);
  }

  /** @param lose resolves where the mesh loses the second node */
  static async start(lose: Promise<void> = new Promise(() => undefined)): Promise<TwoNodes> {
    const scratch = await scratchFolder();
    const contexts = await Promise.all([0, 1].map((rank) => contextOf(scratch.path, rank)));
    contexts[0]!.place!.untilNodeLost = async (node) => {
      expect(node).toBe('n1');
      await lose;
    };
    const nodes = new TwoNodes(scratch, contexts);
    await nodes.agentOfFirst('serving');
    return nodes;
  }

  /** Both run, and the first one answers. */
  async serving(): Promise<{ first: number; second: number }> {
    await eventually(() => this.first.upstream !== undefined, 'the engine to serve');
    await eventually(async () => (await this.secondLog()) !== '', 'the second rank to run');
    return { first: this.first.pid!, second: this.second.pid! };
  }

  secondLog(): Promise<string> {
    return readFile(this.second.log_file, 'utf8').catch(() => '');
  }

  async loseSecond(): Promise<void> {
    await writeFile(join(this.#folder, 'lost'), '');
  }

  async agentOfFirst(phase: string): Promise<void> {
    await writeFile(join(this.#folder, launchFiles.agentState('n0')), JSON.stringify({ phase }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.agentOfFirst('stopped');
    await Promise.all([this.first.stop(100), this.second.stop(100)]);
    for (const guard of this.#guards) guard.close();
    await this.#scratch[Symbol.asyncDispose]();
  }
}

function placeIn(folder: string, rank: number, environment: NodeJS.ProcessEnv = {}): RankPlace {
  const identity = { node: `n${rank}`, node_index: rank };
  const launch = { launch_folder: folder };
  return placeOf(
    launch,
    groupIn(folder),
    identity,
    '127.0.0.1',
    environment,
    () => new Promise(() => undefined),
  )!;
}

function groupIn(folder: string): UnitGroup {
  const command = ['/bin/sh', '-c', script, 'engine', '{rank}', process.execPath, fixtureEngine, '{socket}'];
  const unit = unitOf({ name: 'm', command: [...command, join(folder, 'lost')] }, { nodes: 2 });
  return { name: 'm-0', engine: 'command', threads: 1, first_device: 0, units: [unit], devices: [] };
}

async function contextOf(
  folder: string,
  rank: number,
  change: Partial<ProcessContext> = {},
): Promise<ProcessContext> {
  const runtime_folder = join(folder, `run-${rank}`);
  await mkdir(runtime_folder, { mode: 0o700 });
  return {
    group: groupIn(folder),
    place: placeIn(folder, rank),
    runtime_folder,
    log_file: join(folder, `n${rank}.m-0.log`),
    library_dir: undefined,
    heartbeat_ms: 100,
    drain_ms: 0,
    step_ms_min: undefined,
    sharing: undefined,
    peers_socket: undefined,
    moves: undefined,
    session_id: '',
    manifest_folder: undefined,
    memory_limit_bytes: undefined,
    planned_memory_bytes: undefined,
    engine_prefix: [],
    physical_cores: (cores) => cores.map((core) => [core]),
    guard: new OrphanGuard(runtime_folder),
    log: pino({ level: 'silent' }),
    environment: { PATH: process.env.PATH },
    traffic: {
      in_flight: 0,
      passed: 0,
      streams: 0,
      answer_bytes: 0,
      pace: new AnswerPace(),
      times: new AnswerTimes(),
      unanswered: new Set(),
    },
    onStalled: () => undefined,
    onChange: () => undefined,
    onFullness: () => undefined,
    ...change,
  };
}

/** The second rank of a made-up vLLM, which says its command line and waits. Its first node has 0.32.0. */
async function secondOfVllm(folder: string, version: string): Promise<[EngineRank, ProcessContext]> {
  await writeVllmSources(folder, version, [
    ...['served_model_name', 'uds', 'headless', 'max_model_len', 'disable_access_log_for_endpoints'],
    ...['nnodes', 'node_rank', 'master_addr', 'master_port', 'distributed_executor_backend'],
    ...['tensor_parallel_size', 'pipeline_parallel_size'],
  ]);
  await writeFile(join(folder, 'vllm-program'), '#!/bin/sh\necho "$@"\nexec sleep 600\n', { mode: 0o700 });
  const unit = unitOf({ name: 'm' }, { engine: 'vllm', nodes: 2, pipeline: 2 });
  const group: UnitGroup = { ...groupIn(folder), engine: 'vllm', units: [unit] };
  const bin = join(folder, 'bin');
  await mkdir(bin);
  await symlink('../vllm-program', join(bin, 'vllm'));
  const environment = { PATH: `${bin}:${process.env.PATH}`, PYTHONPATH: folder };
  const context = await contextOf(folder, 1, { group, environment });
  const meeting = { address: '127.0.0.1', port: 29_501, key: 'k'.repeat(64), node: 'n0', version: '0.32.0' };
  await placeIn(folder, 0).board.tell(0, { phase: 'up', meeting });
  return [new EngineRank(context, context.place!), context];
}

const hasEnded = ({ ended }: ServingProcess): Promise<boolean> =>
  Promise.race([ended.then(() => true), delay(1000, false)]);

test('a rank that ends takes the engine on the first node with it, and each says why', async () => {
  await using nodes = await TwoNodes.start();
  const pids = await nodes.serving();
  await nodes.loseSecond();
  const end = await nodes.first.ended;
  expect(end.restartable).toBe(false);
  expect(end.error).toMatchObject({
    code: 'E_AGENT_PART_LOST',
    message: 'the replica m-0 on 2 nodes ended',
    because: [
      expect.stringMatching(
        /^its part 2 of 2 ended: the replica m-0 on 2 nodes ended: its part on this node exited with code 3: part 1 .*fabric: link down$/,
      ),
    ],
    details: { rank: 1 },
  });
  expect(nodes.first.upstream).toBe(undefined);
  expect(alive(pids.first)).toBe(false);
  // Slurm kills what is left of a step of which one task failed: what the first node has to say is said before.
  expect(await hasEnded(nodes.second)).toBe(false);
  await nodes.agentOfFirst('failed');
  const lost = await nodes.second.ended;
  expect(lost).toMatchObject({ restartable: false, orderly: false, exit_code: 3, signal: null });
  expect(lost.error).toMatchObject({
    code: 'E_AGENT_PART_LOST',
    message: 'the replica m-0 on 2 nodes ended',
    // The key of the meeting, which the first node made: as such it is known, and never shown.
    because: [
      'its part on this node exited with code 3',
      'part 1 meets the others with [key]',
      'fabric: link down',
    ],
    details: { rank: 1, log_file: nodes.second.log_file },
  });
});

test('where the engine ends on its first node, its ranks end, and say with what', async () => {
  await using nodes = await TwoNodes.start();
  const pids = await nodes.serving();
  process.kill(pids.first, 'SIGKILL');
  const end = await nodes.first.ended;
  expect(end).toMatchObject({ restartable: false, signal: 'SIGKILL' });
  await nodes.agentOfFirst('failed');
  const lost = await nodes.second.ended;
  expect(lost.restartable).toBe(false);
  expect(lost.error).toMatchObject({
    code: 'E_AGENT_PART_LOST',
    message: 'the replica m-0 on 2 nodes ended',
    because: [`it ended on its first node: ${[end.error!.message, ...end.error!.because].join(': ')}`],
  });
  expect(alive(pids.second)).toBe(false);
});

test('a rank that is asked to end is lost for the first node alone', async () => {
  await using nodes = await TwoNodes.start();
  const pids = await nodes.serving();
  await nodes.second.stop(100);
  expect(await nodes.second.ended).toEqual({ restartable: false });
  expect(alive(pids.second)).toBe(false);
  expect((await nodes.first.ended).error).toMatchObject({
    code: 'E_AGENT_PART_LOST',
    because: ['its part 2 of 2 ended: it was asked to end'],
  });
});

test('where the mesh loses the node of a rank, which can tell nothing, the engine ends on the first', async () => {
  let lose = (): void => undefined;
  await using nodes = await TwoNodes.start(
    new Promise((resolve) => {
      lose = resolve;
    }),
  );
  const pids = await nodes.serving();
  lose();
  expect(await nodes.first.ended).toMatchObject({
    restartable: false,
    error: {
      code: 'E_AGENT_PART_LOST',
      because: ['its part 2 of 2 is gone: the mesh has lost the node n1'],
    },
  });
  expect(alive(pids.first)).toBe(false);
});

test('an engine that is asked to end on its first node ends its ranks', async () => {
  await using nodes = await TwoNodes.start();
  const pids = await nodes.serving();
  await nodes.first.stop(100);
  expect(await nodes.first.ended).toEqual({ restartable: false });
  await nodes.agentOfFirst('stopped');
  expect((await nodes.second.ended).error).toMatchObject({
    code: 'E_AGENT_PART_LOST',
    because: ['it ended on its first node: it was asked to end'],
  });
  expect(alive(pids.second)).toBe(false);
});

test('what ranks told in an earlier run of the job is no news, and only their user reads it', async () => {
  await using scratch = await scratchFolder();
  const boardOf = (environment: NodeJS.ProcessEnv) => placeIn(scratch.path, 0, environment).board;
  const notice = {
    phase: 'up',
    meeting: { address: '10.1.0.1', port: 29_501, key: 'of the first', node: 'n0' },
  } as const;
  await boardOf({ SLURM_JOB_ID: '42' }).tell(0, notice);
  expect((await stat(join(scratch.path, launchFiles.part('m-0', 0)))).mode & 0o777).toBe(0o600);
  expect(await boardOf({ SLURM_JOB_ID: '42' }).read(0)).toEqual(notice);
  expect(await boardOf({ SLURM_JOB_ID: '42' }).read(1)).toBe(undefined);
  const again = boardOf({ SLURM_JOB_ID: '42', SLURM_RESTART_COUNT: '1' });
  expect(await again.read(0)).toBe(undefined);
  const waiting = again.until(0, (told) => told.phase, AbortSignal.timeout(15_000));
  await delay(100);
  await again.tell(0, { phase: 'ended', because: 'it was asked to end' });
  expect(await waiting).toBe('ended');
});

test('each rank asks what is installed on its node, and is told what that version takes', async () => {
  await using scratch = await scratchFolder();
  const [rank, { guard }] = await secondOfVllm(scratch.path, '0.32.0');
  const running = eventually(
    async () => (await readFile(rank.log_file, 'utf8').catch(() => '')) || undefined,
    'the rank to run',
  );
  const log = await Promise.race([running, rank.ended.then(({ error }) => Promise.reject(error))]);
  expect(log).toContain('--headless');
  expect(log).toContain('--node-rank 1');
  expect(log).toContain('--disable-access-log-for-endpoints /health,/metrics');
  expect(rank.engine_version).toBe('0.32.0');
  await rank.stop(100);
  guard.close();
});

test('a rank of another version does not start: it would not understand the first', async () => {
  await using scratch = await scratchFolder();
  const [rank, { guard }] = await secondOfVllm(scratch.path, '0.33.0');
  await writeFile(join(scratch.path, launchFiles.agentState('n0')), JSON.stringify({ phase: 'failed' }));
  expect(await rank.ended).toMatchObject({
    restartable: false,
    error: { code: 'E_AGENT_PART_LOST', because: ['vllm is 0.33.0 on n1, and 0.32.0 on n0'] },
  });
  expect(rank.pid).toBeUndefined();
  guard.close();
});

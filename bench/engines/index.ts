/**
 * What a wrapped engine gives behind hpcserve, beside the same engine bare: same clients, in one run and alternating.
 * The engine is a real vLLM on the CPUs of this machine. The bare side is the very process that serves behind
 * hpcserve, asked at its own socket: two processes of one command line on the same cores differ by more (0.8 to 1.2
 * were seen, by where their memory lies) than what is to be measured. Argument: `--pairs N` (default 10).
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { packageRoot } from '../../host/package-root.ts';
import { vllmPython } from '../../test/engines/environments.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { median } from '../slurm/median.ts';
import { type Endpoint, type Load, put } from './clients.ts';
import { Deployment } from './deployment.ts';
import { runningEngines } from './running-engine.ts';

/** A full batch, so that every core has work; a round takes some 20 s on two cores. */
const busy: Load = { clients: 16, requests: 32, prompt_tokens: 128, answer_tokens: 32 };
const alone: Load = { clients: 1, requests: 1, prompt_tokens: 64, answer_tokens: 4 };
/** Of each side, in each of the `--pairs`, one of ours beside one of theirs: so what the machine does cancels out. */
const first_tokens = 10;
const warmUp: Load = { ...busy, requests: 16 };
const idle_s = 30;
/** Weights of 1.2 GB, what Python takes, and the rest for KV. */
const replica_memory_gb = 5;
/** For two engines at once, each with its weights, its KV cache and Python’s own memory. Lower: they swap. */
const memory_gib_min = 12;
const throughput_ratio_min = 0.97;
const added_ttft_ms_max = 5;
const idle_share_max = 0.01;

export const enginesBench: Bench = {
  name: 'engines',
  describe: 'a real vLLM on CPUs behind hpcserve beside the same vLLM bare: tokens, first tokens, idle cost',
  run,
};

async function run({ log, args }: BenchOptions): Promise<BenchResult[]> {
  const { values } = parseArgs({ args: [...args], options: { pairs: { type: 'string', default: '10' } } });
  const pairs = Number(values.pairs);
  if (!Number.isInteger(pairs) || pairs < 1)
    throw new Error(`--pairs is a whole number from 1, not ${values.pairs}`);
  const { found: python } = vllmPython();
  if (python === undefined)
    throw new MissingNeed(
      'a real vLLM for CPUs is not here',
      'npm run engines -- vllm, or HPCSERVE_TEST_PYTHON that names a Python that has it',
    );
  if (totalmem() < memory_gib_min * 2 ** 30 || availableParallelism() < 2)
    throw new MissingNeed(
      'two engines at once are too much for this machine',
      `run it where there are ${memory_gib_min} GiB of memory and two cores`,
    );
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-bench-engines-'));
  try {
    const model_folder = join(folder, 'model');
    log('writing a model of the shape of Qwen3-0.6B');
    execFileSync(python, [join(packageRoot, 'bench/engines/model.py'), model_folder, 'qwen3-0.6b'], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const stage = { model_folder, folder, engine_bin: dirname(python), pairs, log };
    return [...(await oneReplica(stage)), ...(await twoReplicas(stage))];
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

interface Stage {
  model_folder: string;
  folder: string;
  engine_bin: string;
  pairs: number;
  log: BenchOptions['log'];
}

async function oneReplica(stage: Stage): Promise<BenchResult[]> {
  stage.log('one replica: deploying it');
  await using deployment = await deployed(stage, 1);
  const bare = bareOf(stage, deployment, 1);
  const rounds = await alternate(stage, deployment.endpoint, bare, busy);
  const first = await firstTokens(stage, deployment.endpoint, bare);
  return [
    throughputRow(`one replica, ${busy.clients} clients`, rounds),
    firstTokenRow(first),
    ...(await idleShares(deployment)),
  ];
}

/** What was measured of both, one after the other. */
interface Pair {
  ours: number;
  theirs: number;
}

/** Times to the first token of one client, ms, one request of ours beside one of theirs. */
async function firstTokens({ pairs, log }: Stage, ours: Endpoint, theirs: Endpoint): Promise<Pair[]> {
  const ask = async (endpoint: Endpoint): Promise<number> => (await put(endpoint, alone)).ttft_ms[0]!;
  const times: Pair[] = [];
  for (let request = 0; request < pairs * first_tokens; request++) {
    const before = request % 2 === 0 ? undefined : await ask(theirs);
    const own = await ask(ours);
    times.push({ ours: own, theirs: before ?? (await ask(theirs)) });
  }
  const added = times.map((pair) => pair.ours - pair.theirs).sort((one, other) => one - other);
  const [low, high] = [0.25, 0.75].map((share) => added[Math.floor(share * (added.length - 1))]!);
  log(`first token: half of ${added.length} requests took ${low!.toFixed(1)} to ${high!.toFixed(1)} ms more`);
  return times;
}

function firstTokenRow(times: readonly Pair[]): BenchResult {
  const ours = median(times.map((pair) => pair.ours));
  const theirs = median(times.map((pair) => pair.theirs));
  const added_ms = median(times.map((pair) => pair.ours - pair.theirs));
  return {
    what: `first token, one client (added: ${added_ms.toFixed(2)} ms)`,
    unit: 'ms',
    ours,
    peer: 'vLLM itself',
    theirs,
    ratio: theirs / ours,
    bar: `added ≤ ${added_ttft_ms_max} ms`,
    holds: added_ms <= added_ttft_ms_max,
  };
}

async function twoReplicas(stage: Stage): Promise<BenchResult[]> {
  stage.log('two replicas on half of the cores each, and the same two without us');
  await using deployment = await deployed(stage, 2);
  const bare = bareOf(stage, deployment, 2);
  return [
    throughputRow(
      `two replicas, ${busy.clients} clients`,
      await alternate(stage, deployment.endpoint, bare, busy),
    ),
  ];
}

function deployed({ model_folder, engine_bin }: Stage, replicas: number): Promise<Deployment> {
  const model = [
    `source: ${model_folder}`,
    'engine: vllm',
    'precision: bf16',
    'context_tokens: 2048',
    'engine_args: [--enforce-eager]',
  ];
  return Deployment.open({ model, replicas, memory_gb: replica_memory_gb, engine_bin });
}

/** The engines of a deployment, by sockets of their own. */
function bareOf({ model_folder }: Stage, { endpoint }: Deployment, replicas: number): Endpoint {
  const engines = runningEngines(model_folder);
  if (engines.length !== replicas) throw new Error(`${engines.length} engines serve, not ${replicas}`);
  const servers = engines.map(({ socket, key }) => ({ url: 'http://engine/v1', key, socket }));
  return { servers, model: endpoint.model };
}

/** Tokens a second of both, one after the other, so that neither has the other's share of the cores. */
async function alternate(
  { pairs, log }: Stage,
  ours: Endpoint,
  theirs: Endpoint,
  load: Load,
): Promise<Pair[]> {
  await put(ours, warmUp);
  await put(theirs, warmUp);
  const rounds: Pair[] = [];
  for (let pair = 0; pair < pairs; pair++) {
    const first = pair % 2 === 0 ? ours : theirs;
    const second = first === ours ? theirs : ours;
    const speeds = [(await put(first, load)).tokens_per_s, (await put(second, load)).tokens_per_s] as const;
    const [own, bare] = first === ours ? speeds : speeds.toReversed();
    rounds.push({ ours: own!, theirs: bare! });
    log(`${own!.toFixed(1)} tokens/s behind hpcserve, ${bare!.toFixed(1)} bare`);
  }
  return rounds;
}

function throughputRow(what: string, rounds: readonly Pair[]): BenchResult {
  const ratio = median(rounds.map(({ ours, theirs }) => ours / theirs));
  return {
    what,
    unit: 'tokens/s',
    ours: median(rounds.map(({ ours }) => ours)),
    peer: 'vLLM itself',
    theirs: median(rounds.map(({ theirs }) => theirs)),
    ratio,
    bar: `ratio ≥ ${throughput_ratio_min}`,
    holds: ratio >= throughput_ratio_min,
  };
}

/** What each of our processes takes of a core while nobody asks for anything. */
async function idleShares(deployment: Deployment): Promise<BenchResult[]> {
  const before = deployment.processorTime();
  await sleep(1000 * idle_s);
  const after = deployment.processorTime();
  return [...before].map(([what, time_s]) => {
    const share = ((after.get(what) ?? time_s) - time_s) / idle_s;
    return {
      what: `idle: ${what.split(' ')[0]}`,
      unit: 'of a core',
      ours: share,
      peer: '',
      theirs: null,
      ratio: null,
      bar: `≤ ${idle_share_max}`,
      holds: share <= idle_share_max,
    };
  });
}

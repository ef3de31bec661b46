/**
 * Replicas and gateways are killed while clients stream: no request may fail through a gateway that lives, no token
 * may be another than in an undisturbed run, and what is served follows what lives (LLMFabric, Fig. 4).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { type ClientOptions, client, emptyRecord, type Question, stream } from './clients.ts';
import { disturb, type Losses } from './disturbance.ts';
import { Gateways } from './gateways.ts';
import { plotRecovery, proportionality, type Sample } from './plot.ts';
import { max_sequences, model, Stage } from './stage.ts';

export interface ChaosSize {
  seconds: number;
  replicas: number;
  clients: number;
  /** Time between two losses of a replica, and of a gateway; seconds. */
  replica_loss_s: number;
  gateway_loss_s: number;
  /** Time between two ebbs, in which half of the replicas are away at once, and how long one lasts; seconds. */
  ebb_every_s: number;
  ebb_s: number;
}

export const full_size: ChaosSize = {
  seconds: 300,
  replicas: 8,
  clients: 20,
  replica_loss_s: 10,
  gateway_loss_s: 60,
  ebb_every_s: 60,
  ebb_s: 40,
};

/** Declared time of an iteration on every (emulated) device: with 8 replicas two cores are busy by a third. */
const step_ms = 50;
const max_tokens = 40;
const questions_count = 24;
const seed = 20;

/**
 * What is served follows what lives: a straight line through nothing, but for the prompts that are computed again
 * behind each loss.
 */
const proportional = { ratio_min: 0.9, correlation_min: 0.95 };

export const chaosBench: Bench = {
  name: 'chaos',
  describe:
    'agents and gateways killed under streaming clients on a real Slurm cluster; replicas of a declared speed',
  run: async (options) => toResults(await runChaos(sizeOf(options.args), options), options),
};

export interface ChaosOutcome {
  size: ChaosSize;
  answered: number;
  wrong: string[];
  failed: string[];
  lost_with_gateway: number;
  losses: Losses;
  gateways_killed: number;
  samples: Sample[];
  ttft_p99_s: number;
}

/** `--seconds 60 --replicas 4 --clients 8` change the size. */
function sizeOf(args: readonly string[]): ChaosSize {
  const size = { ...full_size };
  for (let at = 0; at < args.length; at += 2) {
    const key = args[at]!.replace(/^--/, '').replaceAll('-', '_') as keyof ChaosSize;
    const value = Number(args[at + 1]);
    if (!(key in size) || !(value > 0))
      throw new Error(`no such option, or no number: ${args[at]} ${args[at + 1]}`);
    size[key] = value;
  }
  return size;
}

export async function runChaos(size: ChaosSize, { log }: Pick<BenchOptions, 'log'>): Promise<ChaosOutcome> {
  const stage = await Stage.open({ replicas: size.replicas, step_ms });
  try {
    log(`deploying ${size.replicas} replicas`);
    for (const name of stage.deployments)
      await stage.must('deploy', '--yes', stage.deploymentFile(name), '--detach');
    for (const name of stage.deployments)
      await stage.must('deploy', '--yes', stage.deploymentFile(name), '--timeout', '90s');
    const gateways = await Gateways.open(stage);
    const questions = await undisturbed(gateways);
    log(`${questions.length} answers of an undisturbed run are known`);
    return await measure(size, stage, gateways, questions, log);
  } finally {
    await stage.close();
  }
}

/** What each prompt is answered while nothing goes wrong. */
async function undisturbed(gateways: Gateways): Promise<Question[]> {
  const options = { key: gateways.key, model, max_tokens, started_ms: performance.now() };
  const prompts = Array.from({ length: questions_count }, (_, index) => ({
    prompt: `Tell me story number ${index} about a ship.`,
    seed: index,
  }));
  return Promise.all(
    prompts.map(async (each) => ({
      ...each,
      expected: await stream(each, gateways.doors[0]!, options, emptyRecord(), performance.now()),
    })),
  );
}

async function measure(
  size: ChaosSize,
  stage: Stage,
  gateways: Gateways,
  questions: readonly Question[],
  log: (line: string) => void,
): Promise<ChaosOutcome> {
  const started_ms = performance.now();
  const end_ms = started_ms + 1000 * size.seconds;
  const over = (): boolean => performance.now() >= end_ms;
  const record = emptyRecord();
  const shared: ClientOptions = {
    key: gateways.key,
    model,
    max_tokens,
    questions,
    doors: gateways.doors,
    started_ms,
    over,
  };
  const live: { at_s: number; replicas: number }[] = [];
  const watching = watchLive(gateways, started_ms, over, live);
  const random = seeded(seed);
  const disturbing = disturb({
    stage,
    every_ms: 1000 * size.replica_loss_s,
    away_ms: [4_000, 40_000],
    ebb_every_ms: 1000 * size.ebb_every_s,
    ebb_ms: 1000 * size.ebb_s,
    alive_min: Math.max(1, Math.floor(size.replicas / 4)),
    random,
    log,
    over,
  });
  const killing = gateways.disturb(1000 * size.gateway_loss_s, over, log);
  const asking = Array.from({ length: size.clients }, (_, index) => client(index, shared, record));
  const [losses, gateways_killed] = await Promise.all([disturbing, killing, watching, ...asking]);
  const ttft = [...record.ttft_s].sort((a, b) => a - b);
  return {
    size,
    answered: record.answered,
    wrong: record.wrong.map(({ question, got }) => `${question.prompt}: ${got.slice(0, 60)}`),
    failed: record.failed,
    lost_with_gateway: record.lost_with_gateway,
    losses,
    gateways_killed,
    samples: samplesOf(record.tokens_at_ms, live, size.seconds),
    ttft_p99_s: ttft[Math.floor(0.99 * ttft.length)] ?? Number.NaN,
  };
}

/** Replicas that answer, as a gateway that lives sees them, twice a second. */
async function watchLive(
  gateways: Gateways,
  started_ms: number,
  over: () => boolean,
  live: { at_s: number; replicas: number }[],
): Promise<void> {
  while (!over()) {
    const replicas = await gateways.serving();
    if (replicas !== undefined) live.push({ at_s: (performance.now() - started_ms) / 1000, replicas });
    await sleep(500);
  }
}

/** Windows long enough for an answer to begin and end within. */
const window_s = 5;

function samplesOf(
  tokens_at_ms: readonly number[],
  live: readonly { at_s: number; replicas: number }[],
  seconds: number,
): Sample[] {
  const windows = Math.floor(seconds / window_s);
  const tokens = new Float64Array(windows);
  for (const at_ms of tokens_at_ms) {
    const window = Math.floor(at_ms / 1000 / window_s);
    if (window < windows) tokens[window]!++;
  }
  return [...tokens].flatMap((count, window) => {
    const seen = live.filter(({ at_s }) => Math.floor(at_s / window_s) === window);
    if (seen.length === 0) return [];
    return [
      {
        at_s: (window + 1) * window_s,
        live_replicas: seen.reduce((sum, { replicas }) => sum + replicas, 0) / seen.length,
        tokens_per_s: count / window_s,
      },
    ];
  });
}

function toResults(outcome: ChaosOutcome, { log }: BenchOptions): BenchResult[] {
  const declared = (max_sequences * 1000) / step_ms;
  for (const line of plotRecovery(outcome.samples, declared)) log(line);
  for (const line of [...outcome.failed, ...outcome.wrong].slice(0, 10)) log(`! ${line}`);
  // The first window holds the start of all clients.
  const { per_replica, correlation } = proportionality(outcome.samples.slice(1));
  const { size, losses } = outcome;
  const plain = (
    what: string,
    unit: string,
    ours: number,
    bar = '',
    holds: boolean | null = null,
  ): BenchResult => ({
    what,
    unit,
    ours,
    peer: '',
    theirs: null,
    ratio: null,
    bar,
    holds,
  });
  return [
    plain(
      `requests that failed through a gateway that lived, of ${outcome.answered} answered`,
      '',
      outcome.failed.length,
      '0',
      outcome.failed.length === 0,
    ),
    plain(
      'answers that differ from an undisturbed run',
      '',
      outcome.wrong.length,
      '0',
      outcome.wrong.length === 0,
    ),
    plain(`replicas lost in ${size.seconds} s, by SIGKILL and scancel`, '', losses.killed + losses.cancelled),
    plain('gateways killed', '', outcome.gateways_killed),
    plain('requests asked again because their own gateway was killed', '', outcome.lost_with_gateway),
    {
      ...plain('tokens per second of a live replica', 'tokens/s', per_replica),
      peer: `declared: ${max_sequences} sequences, ${step_ms} ms an iteration`,
      theirs: declared,
      ratio: per_replica / declared,
      bar: `ratio ≥ ${proportional.ratio_min}`,
      holds: per_replica / declared >= proportional.ratio_min,
    },
    plain(
      'correlation of tokens served with replicas that live',
      '',
      correlation,
      `≥ ${proportional.correlation_min}`,
      correlation >= proportional.correlation_min,
    ),
    plain('99th percentile of the time to first token, queueing included', 's', outcome.ttft_p99_s),
  ];
}

/** Same numbers in every run (mulberry32). */
function seeded(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * Clients that stream all the time from one stable replica and those on idle nodes of a real Slurm cluster, while
 * ordinary jobs of higher priority come and take the nodes: no request may fail, no answer change, no ordinary job wait
 * for longer than the grace time.
 */
import type { ScavengerReport } from '../../control/scavenger/report.ts';
import { scavenge_grace_s } from '../../test/cluster/layout.ts';
import { type ClientOptions, client, emptyRecord, type Question, stream } from '../chaos/clients.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { oneJob, ordinaryJobs } from './ordinary-jobs.ts';
import { Stage } from './stage.ts';

const model = 'toy';
const max_sequences = 4;
const minutes_default = 30;
const replicas = 6;
const clients = 12;
const step_ms = 50;
const max_tokens = 60;
const questions_count = 24;

export const preemptionBench: Bench = {
  name: 'preemption',
  describe:
    'replicas on idle nodes of a real Slurm cluster, preempted by ordinary jobs under streaming clients (--minutes 30)',
  run: async (options) => {
    const stage = await Stage.open({
      name: 'preemption',
      step_ms,
      site_lines: 'scavenging:\n  interval_s: 5\n  waiting_max: 1\n',
    });
    try {
      return await measure(stage, minutesOf(options.args), options);
    } finally {
      await stage.close();
    }
  },
};

function minutesOf(args: readonly string[]): number {
  const at = args.indexOf('--minutes');
  const minutes = at < 0 ? minutes_default : Number(args[at + 1]);
  if (!(minutes > 0)) throw new Error(`--minutes takes a number, not ${args[at + 1]}`);
  return minutes;
}

async function measure(
  stage: Stage,
  minutes: number,
  { log }: Pick<BenchOptions, 'log'>,
): Promise<BenchResult[]> {
  const file = stage.modelFile(model, {
    max_sequences,
    batch_invariant: true,
    tier: 'stable',
    devices: { kind: 'gpu', node_kinds: ['a100', 'scavenge-gh200'] },
    scavenger: { replicas },
  });
  const door = { ...(await stage.deploy(file)), killed: 0 };
  const started_ms = performance.now();
  const options = { key: door.key, model, max_tokens, started_ms };
  const questions: Question[] = await Promise.all(
    Array.from({ length: questions_count }, async (_, seed) => {
      const question = { prompt: `Tell me story number ${seed} about a ship.`, seed };
      const expected = await stream(question, door, options, emptyRecord(), performance.now());
      return { ...question, expected };
    }),
  );
  log(`${questions.length} answers of an undisturbed run are known`);
  const alone_s = await oneJob(stage, { nodes: 2, gpus: 4, seconds: 1 });
  log(`an ordinary job that finds its nodes idle starts after ${alone_s} s`);
  stage.startBackfill();
  const end_ms = performance.now() + 60_000 * minutes;
  const over = (): boolean => performance.now() >= end_ms;
  const record = emptyRecord();
  const shared: ClientOptions = { ...options, questions, doors: [door], over };
  const [{ waits_s }] = await Promise.all([
    ordinaryJobs(stage, { seed: 1, over, log }),
    ...Array.from({ length: clients }, (_, index) => client(index, shared, record)),
  ]);
  const report = await stage.ask<ScavengerReport>('backfill', '--report');
  for (const line of record.failed.slice(0, 10)) log(`! ${line}`);
  for (const { question, got } of record.wrong.slice(0, 10)) log(`! ${question.prompt}: ${got.slice(0, 60)}`);
  const { all, idle_device_s } = report;
  const longest_s = Math.max(0, ...waits_s);
  const mean_s = waits_s.reduce((sum, each) => sum + each, 0) / Math.max(1, waits_s.length);
  const capacity = (all.serving_device_s * max_sequences * 1000) / step_ms;
  return [
    stated(
      `requests that failed, of ${record.answered} answered in ${minutes} min`,
      '',
      record.failed.length,
      0,
    ),
    stated('answers that differ from an undisturbed run', '', record.wrong.length, 0),
    stated('times that a replica was preempted', '', all.preempted),
    {
      ...stated(`longest wait of an ordinary job, of ${waits_s.length}`, 's', longest_s, scavenge_grace_s),
      bar: `≤ ${scavenge_grace_s} s (GraceTime)`,
      peer: 'its nodes are idle',
      theirs: alone_s,
    },
    stated('mean wait of an ordinary job', 's', mean_s),
    stated('idle device-time on which replicas served', '%', (100 * all.serving_device_s) / idle_device_s),
    stated('idle device-time that went into starting', '%', (100 * all.starting_device_s) / idle_device_s),
    stated('tokens from idle nodes', '', all.completion_tokens),
    stated(
      'of what replicas there can decode at their declared rate',
      '%',
      (100 * all.completion_tokens) / capacity,
    ),
  ];
}

function stated(what: string, unit: string, ours: number, most?: number): BenchResult {
  return {
    what,
    unit,
    ours,
    peer: '',
    theirs: null,
    ratio: null,
    bar: most === undefined ? '' : `≤ ${most}`,
    holds: most === undefined ? null : ours <= most,
  };
}

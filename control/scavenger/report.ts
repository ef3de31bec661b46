/** What was gained from idle nodes: device-time from the history of runs, tokens from the ledgers. */
import { existsSync } from 'node:fs';
import { survival, survivalOf } from '../../solver/scavenging/preemption-history.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import { ledgersOf, sumUsage } from '../state/ledgers.ts';
import { preemptionsByKind, readHistory, type ScavengerRun } from './history.ts';

const hour_s = 3600;

export interface ScavengedSums {
  runs: number;
  preempted: number;
  /** Devices × seconds: running, and of that serving and starting. */
  device_s: number;
  serving_device_s: number;
  starting_device_s: number;
  requests: number;
  prompt_tokens: number;
  completion_tokens: number;
}

export interface ScavengerReport {
  since_ms: number;
  /** Idle but for us, as far as somebody looked; 0 where nobody did. */
  idle_device_s: number;
  all: ScavengedSums;
  models: ({ deployment: string; model: string } & ScavengedSums)[];
  /** What may be promised of a replica there, from the preemptions of the last days. */
  node_kinds: {
    node_kind: string;
    preemptions: number;
    job_hours: number;
    /** Replicas that run now. */
    running: number;
    /** Probability that one of them is not preempted within an hour, and that not all of them are. */
    survives_hour: number;
    some_survive_hour: number;
  }[];
}

export function reportScavenged(layout: StateLayout, since_ms: number, now_ms: number): ScavengerReport {
  const history = readHistory(layout);
  const runs = history.runs.filter(({ ended_ms = now_ms }) => ended_ms > since_ms);
  const tokens = tokensByJob(layout, since_ms);
  const names = new Map(
    runs.map(({ deployment, model }) => [JSON.stringify([deployment, model]), { deployment, model }]),
  );
  return {
    since_ms,
    idle_device_s: history.idle
      .filter(({ hour_ms }) => hour_ms + 3_600_000 > since_ms)
      .reduce((sum, { idle_device_s }) => sum + idle_device_s, 0),
    all: sumOf(runs, tokens, since_ms, now_ms),
    models: [...names.values()].map((name) => ({
      ...name,
      ...sumOf(
        runs.filter((run) => run.deployment === name.deployment && run.model === name.model),
        tokens,
        since_ms,
        now_ms,
      ),
    })),
    node_kinds: [...preemptionsByKind(history, now_ms)].map(([node_kind, seen]) => {
      const running = runs.filter((run) => run.node_kind === node_kind && run.ended_ms === undefined).length;
      return {
        node_kind,
        ...seen,
        running,
        survives_hour: survival(seen, hour_s),
        some_survive_hour: survivalOf(1, running, seen, hour_s),
      };
    }),
  };
}

interface JobTokens {
  requests: number;
  prompt_tokens: number;
  completion_tokens: number;
}

function sumOf(
  runs: readonly ScavengerRun[],
  tokens: ReadonlyMap<string, JobTokens>,
  since_ms: number,
  now_ms: number,
): ScavengedSums {
  const sums: ScavengedSums = {
    runs: runs.length,
    preempted: runs.filter(({ end }) => end === 'PREEMPTED').length,
    device_s: 0,
    serving_device_s: 0,
    starting_device_s: 0,
    requests: 0,
    prompt_tokens: 0,
    completion_tokens: 0,
  };
  for (const { devices, started_ms, served_ms, ended_ms = now_ms } of runs) {
    const span_s = (from_ms: number, to_ms: number): number =>
      Math.max(0, to_ms - Math.max(since_ms, from_ms)) / 1000;
    const served = served_ms ?? ended_ms;
    sums.device_s += devices * span_s(started_ms, ended_ms);
    sums.serving_device_s += devices * span_s(served, ended_ms);
    sums.starting_device_s += devices * span_s(started_ms, served);
  }
  // A job that was preempted and came back has the same number.
  for (const job_id of new Set(runs.map((run) => run.job_id))) {
    const job = tokens.get(job_id);
    if (!job) continue;
    sums.requests += job.requests;
    sums.prompt_tokens += job.prompt_tokens;
    sums.completion_tokens += job.completion_tokens;
  }
  return sums;
}

function tokensByJob(layout: StateLayout, since_ms: number): Map<string, JobTokens> {
  const ledgers = ledgersOf(layout).filter((path) => existsSync(path));
  const usage = sumUsage(ledgers, { group_by: ['job'], since_ms });
  return new Map(usage.map((row) => [row.group.job!, row]));
}

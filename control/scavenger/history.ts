/**
 * What became of replicas on idle nodes: one entry for each time that a job ran, and how much was idle meanwhile. Kept
 * in the state folder, so that every round, whoever makes it, knows how often jobs are preempted.
 */
import { join } from 'node:path';
import { z } from 'zod';
import { makeFolders } from '../../host/make-folders.ts';
import { readJsonIfThere, writeFileAtomically } from '../../host/whole-file.ts';
import type { PreemptionHistory } from '../../solver/scavenging/preemption-history.ts';
import { type StateLayout, scavengerFiles } from '../../spec/state-layout.ts';
import type { LaunchStatus } from '../reconcile/decide.ts';
import { allServe } from '../reconcile/kept-launch.ts';
import type { LaunchRecord } from '../state/launch-record.ts';

const runSchema = z.object({
  launch_id: z.string(),
  /** Counts its starts, from 0. */
  restart: z.number(),
  deployment: z.string(),
  model: z.string(),
  node_kind: z.string(),
  job_id: z.string(),
  devices: z.number(),
  started_ms: z.number(),
  served_ms: z.number().optional(),
  ended_ms: z.number().optional(),
  /** Slurm's word, or `PREEMPTED` where it went back into the queue. */
  end: z.string().optional(),
});
export type ScavengerRun = z.infer<typeof runSchema>;

const fileSchema = z.object({
  format: z.literal(1),
  runs: z.array(runSchema),
  /** Device-seconds by hour of the clock: idle but for us, of preemptible node kinds. */
  idle: z.array(z.object({ hour_ms: z.number(), idle_device_s: z.number() })),
  looked_ms: z.number().optional(),
});
export type ScavengerHistory = z.infer<typeof fileSchema>;

const day_ms = 86_400_000;
const hour_ms = 3_600_000;
/** Older entries are dropped; a report may go back so far. */
const kept_ms = 28 * day_ms;
/** Clusters change: so much of the past says how often jobs are preempted. */
const counted_ms = 2 * day_ms;
/** Time between two rounds beyond which nobody knows what was idle. */
const gap_ms = 15 * 60_000;

/** A file that is not there, or damaged, is an empty history: it steers and reports, and holds up nothing. */
export function readHistory(layout: StateLayout): ScavengerHistory {
  const none: ScavengerHistory = { format: 1, runs: [], idle: [] };
  try {
    return fileSchema.safeParse(readJsonIfThere(pathOf(layout))).data ?? none;
  } catch (error) {
    if (error instanceof SyntaxError) return none;
    throw error;
  }
}

export function writeHistory(layout: StateLayout, history: ScavengerHistory, now_ms: number): void {
  const kept: ScavengerHistory = {
    ...history,
    runs: history.runs.filter((run) => (run.ended_ms ?? now_ms) > now_ms - kept_ms),
    idle: history.idle.filter((each) => each.hour_ms > now_ms - kept_ms),
  };
  makeFolders(layout.scavenger_folder);
  writeFileAtomically(pathOf(layout), `${JSON.stringify(kept)}\n`);
}

const pathOf = (layout: StateLayout): string => join(layout.scavenger_folder, scavengerFiles.history);

/** Takes in what is seen of one launch now. */
export function recordLaunch(
  history: ScavengerHistory,
  deployment: string,
  launch: LaunchRecord,
  status: LaunchStatus | undefined,
  now_ms: number,
): void {
  const job = launch.phase === 'ended' ? launch.last : (status?.job ?? launch.last);
  if (!job) return;
  const restart = job.restart_count ?? 0;
  const own = history.runs.filter((run) => run.launch_id === launch.launch_id);
  for (const run of own)
    if (run.ended_ms === undefined && run.restart < restart) close(run, now_ms, 'PREEMPTED');
  const add = (at: number, started_ms: number): ScavengerRun => {
    const { planned } = launch;
    const added: ScavengerRun = {
      launch_id: launch.launch_id,
      restart: at,
      deployment,
      model: planned.units[0]?.model.name ?? '',
      node_kind: planned.node_kind,
      job_id: job.job_id,
      devices: devicesOf(launch),
      started_ms,
    };
    history.runs.push(added);
    return added;
  };
  // Nobody looked while it ran: how long is not known, that it was preempted is.
  for (let missed = 0; missed < restart; missed++)
    if (!own.some((each) => each.restart === missed)) close(add(missed, now_ms), now_ms, 'PREEMPTED');
  let run = own.find((each) => each.restart === restart);
  if (!run && job.start_time_ms !== undefined && job.phase !== 'pending')
    run = add(restart, job.start_time_ms);
  if (!run || run.ended_ms !== undefined) return;
  if (launch.phase === 'ended') close(run, launch.ended_at_ms ?? now_ms, job.state);
  // Requeued by its own script: Slurm shows it as waiting before it counts the restart.
  else if (job.phase === 'pending') close(run, now_ms, 'PREEMPTED');
  else if (run.served_ms === undefined && allServe(launch, status)) run.served_ms = now_ms;
}

function close(run: ScavengerRun, now_ms: number, end: string): void {
  run.ended_ms = Math.max(run.started_ms, now_ms);
  run.end = end;
}

/** Devices that a launch computes on. */
export function devicesOf({ planned }: LaunchRecord): number {
  const { count } = planned.devices_per_node;
  return planned.node_count * Math.max(1, count);
}

/** Adds what was idle, or was ours, since the last round. */
export function recordIdle(history: ScavengerHistory, devices: number, now_ms: number): void {
  const { looked_ms } = history;
  history.looked_ms = now_ms;
  if (looked_ms === undefined || now_ms - looked_ms > gap_ms || now_ms < looked_ms) return;
  const hour = Math.floor(now_ms / hour_ms) * hour_ms;
  const idle_device_s = (devices * (now_ms - looked_ms)) / 1000;
  const entry = history.idle.find((each) => each.hour_ms === hour);
  if (entry) entry.idle_device_s += idle_device_s;
  else history.idle.push({ hour_ms: hour, idle_device_s });
}

/** How often jobs were preempted lately, by node kind. */
export function preemptionsByKind(
  { runs }: ScavengerHistory,
  now_ms: number,
): Map<string, PreemptionHistory> {
  const byKind = new Map<string, PreemptionHistory>();
  for (const { node_kind, started_ms, ended_ms = now_ms, end } of runs) {
    if (ended_ms < now_ms - counted_ms) continue;
    const { preemptions, job_hours } = byKind.get(node_kind) ?? { preemptions: 0, job_hours: 0 };
    byKind.set(node_kind, {
      preemptions: preemptions + Number(end === 'PREEMPTED'),
      job_hours: job_hours + (ended_ms - started_ms) / hour_ms,
    });
  }
  return byKind;
}

/** Seconds from start to serving, by the last runs of a model on a node kind; undefined where it never served. */
export function loadTime_s({ runs }: ScavengerHistory, model: string, node_kind: string): number | undefined {
  const loads_s = runs
    .filter((run) => run.model === model && run.node_kind === node_kind && run.served_ms !== undefined)
    .slice(-10)
    .map((run) => Math.max(0, (run.served_ms! - run.started_ms) / 1000));
  return loads_s.length === 0 ? undefined : loads_s.reduce((sum, each) => sum + each, 0) / loads_s.length;
}

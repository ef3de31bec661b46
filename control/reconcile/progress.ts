/** Two observations in, the events between them out: the only source of progress, pure. */
import type { ProgressEvent } from '../../spec/events.ts';
import type { LoadPhase } from '../../spec/session-record.ts';
import { describeDevices, type LaunchObservation, type Observation, type UnitStatus } from './observe.ts';

/**
 * @param logFile where people look when a job of this launch went wrong.
 */
export function eventsBetween(
  before: Observation | undefined,
  now: Observation,
  logFile: (launchId: string) => string,
): ProgressEvent[] {
  const events: ProgressEvent[] = [];
  for (const problem of now.problems) {
    if (!before?.problems.includes(problem))
      events.push({ at_ms: now.at_ms, kind: 'warning', message: problem });
  }
  for (const [launchId, launch] of now.launches)
    events.push(...launchEvents(before, launch, now.at_ms, () => logFile(launchId)));
  return events;
}

function launchEvents(
  earlier: Observation | undefined,
  launch: LaunchObservation,
  at_ms: number,
  logFile: () => string,
): ProgressEvent[] {
  const before = earlier?.launches.get(launch.launch_id);
  const events: ProgressEvent[] = [];
  const { job } = launch;
  const job_id = job?.job_id;
  // Of launches on their way out only the end is news.
  if (launch.superseded) return endEvents(before, launch, at_ms, logFile);
  const agentsSpoke = launch.units.some((unit) => unit.state !== 'pending');
  if (job?.phase === 'pending' && job.pending && !agentsSpoke) {
    const was = before?.job;
    const isNews =
      was?.phase !== 'pending' ||
      was.pending?.reason !== job.pending.reason ||
      was.estimated_start_ms !== job.estimated_start_ms;
    if (isNews)
      events.push({
        at_ms,
        kind: 'pending',
        job_id: job.job_id,
        ...job.pending,
        estimated_start_ms: job.estimated_start_ms,
      });
  }
  if (job?.phase === 'running' && before?.job?.phase !== 'running')
    events.push({ at_ms, kind: 'running', job_id: job.job_id, nodes: job.nodes ?? '(unknown)' });
  for (const agent of launch.agents) {
    const known = before?.agents.some(
      (other) => other.node === agent.node && other.started_at_ms === agent.started_at_ms,
    );
    const alive = agent.phase !== 'stopped' && agent.phase !== 'failed' && job?.phase !== 'ended';
    if (!known && alive)
      events.push({
        at_ms,
        kind: 'agent_up',
        node: agent.node,
        devices: describeDevices(agent.devices),
        job_id,
      });
  }
  for (const unit of launch.units) {
    const was = before?.units.find((other) => other.unit === unit.unit);
    events.push(...unitEvents(was, unit, earlier?.at_ms, at_ms));
  }
  events.push(...endEvents(before, launch, at_ms, logFile));
  return events;
}

function endEvents(
  before: LaunchObservation | undefined,
  { job }: LaunchObservation,
  at_ms: number,
  logFile: () => string,
): ProgressEvent[] {
  if (job?.phase !== 'ended' || before?.job === undefined || before.job.phase === 'ended') return [];
  return [
    {
      at_ms,
      kind: 'job_ended',
      job_id: job.job_id,
      state: job.state,
      exit_code: job.exit_code,
      reason: job.reason,
      log_file: logFile(),
    },
  ];
}

function unitEvents(
  was: UnitStatus | undefined,
  unit: UnitStatus,
  before_ms: number | undefined,
  at_ms: number,
): ProgressEvent[] {
  const node = unit.node ?? '(unknown)';
  if (unit.state === 'loading' && unit.phase !== undefined && unit.phase !== was?.phase)
    return [phaseEvent(unit, unit.phase, node, at_ms)];
  if (unit.state === 'loading' && unit.bytes_loaded !== undefined && unit.bytes_total !== undefined) {
    if (was?.state === 'loading' && was.bytes_loaded === unit.bytes_loaded) return [];
    const elapsed_s = before_ms === undefined ? 0 : (at_ms - before_ms) / 1000;
    const loaded = unit.bytes_loaded - (was?.bytes_loaded ?? unit.bytes_loaded);
    return [
      {
        at_ms,
        kind: 'loading',
        node,
        model: unit.model,
        bytes_loaded: unit.bytes_loaded,
        bytes_total: unit.bytes_total,
        bytes_per_s: elapsed_s > 0 ? Math.max(0, Math.round(loaded / elapsed_s)) : 0,
      },
    ];
  }
  if (unit.state === 'serving' && was?.state !== 'serving')
    return [
      {
        at_ms,
        kind: 'replica_serving',
        node,
        model: unit.model,
        engine: unit.engine,
        device: unit.device ?? '(unknown)',
      },
    ];
  if (unit.state === 'failed' && was?.state !== 'failed')
    return [
      {
        at_ms,
        kind: 'warning',
        message: `${unit.model} failed on ${node}${unit.error ? `: ${unit.error}` : ''}${unit.log_file ? ` (log: ${unit.log_file})` : ''}`,
      },
    ];
  return [];
}

function phaseEvent(unit: UnitStatus, phase: LoadPhase, node: string, at_ms: number): ProgressEvent {
  const { model, engine, loading_since_ms, usual_load_s } = unit;
  // Clocks of nodes may be wrong; a negative time is nobody's.
  const elapsed_s =
    loading_since_ms === undefined ? undefined : Math.max(0, Math.round((at_ms - loading_since_ms) / 1000));
  return { at_ms, kind: 'engine_phase', node, model, engine, phase, elapsed_s, usual_s: usual_load_s };
}

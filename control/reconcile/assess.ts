/** What a deployment amounts to, in one word and with the reasons; pure. */
import type { AgentState } from '../../spec/agent-state.ts';
import type { ErrorJson } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { describeJobEnd } from '../runner/agent-end.ts';
import { type DeploymentState, isKept, liveLaunches, wantedLaunches } from '../state/deployment-state.ts';
import { findingOf, sentenceOf } from '../state/findings.ts';
import type { LaunchRecord } from '../state/launch-record.ts';
import type { LaunchObservation, Observation, UnitStatus } from './observe.ts';

export type DeploymentPhase =
  | 'waiting'
  | 'starting'
  | 'loading'
  | 'serving'
  /** A changed version starts, and jobs of the one before serve until it does. */
  | 'updating'
  /** Nothing of it serves, and the keeper starts others in place of what ended. */
  | 'replacing'
  /** Nobody asks, so it has no replicas; a request wakes it. */
  | 'asleep'
  /** Some replicas serve, others failed, ended, or are about to. */
  | 'degraded'
  | 'failed'
  | 'stopping'
  | 'stopped';

export interface Assessment {
  phase: DeploymentPhase;
  /** Observations that explain it, most important first. */
  reasons: string[];
  replicas_wanted: number;
  replicas_serving: number;
  replicas_failed: number;
  /** Of an earlier version, which serve until those that are wanted do. */
  replicas_old_serving: number;
}

export function assess(state: DeploymentState, observation: Observation): Assessment {
  const wanted = wantedLaunches(state);
  const units = replicasOf(wanted, observation);
  const is = (...states: UnitStatus['state'][]) => units.filter((unit) => states.includes(unit.state));
  const serving = is('serving').length;
  const failed = is('failed', 'lost').length;
  const old = liveLaunches(state)
    .filter((launch) => launch.superseded)
    .flatMap((launch) => observation.launches.get(launch.launch_id)?.units ?? []);
  const counts = {
    replicas_wanted: units.length,
    replicas_serving: serving,
    replicas_failed: failed,
    replicas_old_serving: old.filter((unit) => unit.state === 'serving').length,
  };
  const reasons = [...observation.problems];
  if (state.desired === 'stopped') {
    const left = liveLaunches(state).filter(
      (launch) => observation.launches.get(launch.launch_id)?.job?.phase !== 'ended',
    );
    reasons.push(...left.map((launch) => `job ${launch.job_id ?? launch.launch_id} is still ending`));
    if (left.length > 0) return { phase: 'stopping', reasons, ...counts };
    if (state.failure)
      return { phase: 'failed', reasons: [...failureReasons(state.failure), ...reasons], ...counts };
    return { phase: 'stopped', reasons, ...counts };
  }
  /** Jobs that wait, by why. */
  const waiting = new Map<string, string[]>();
  for (const launch of wanted) {
    const status = observation.launches.get(launch.launch_id);
    const job = launch.phase === 'ended' ? launch.last : status?.job;
    if (job && (job.phase === 'ended' || job.phase === 'unknown'))
      reasons.push(`job ${job.job_id || launch.launch_id} ended: ${describeJobEnd(job)}`);
    if (launch.given_up !== undefined)
      reasons.push(`nothing more is started in its place: ${launch.given_up}`);
    // An engine that ends with its cancelled job is no finding of its own.
    const ended = job?.phase === 'ended' && job.state !== 'FAILED';
    if (!ended) reasons.push(...unitErrors(status?.units ?? []), ...stageErrors(status));
    reasons.push(...noticesOf(status?.agents ?? []));
    if (job?.phase === 'completing') reasons.push(`job ${job.job_id} is ending (${job.state})`);
    if (job?.phase === 'pending' && job.pending) {
      const why = `${job.pending.explanation} (${job.pending.reason})`;
      waiting.set(why, [...(waiting.get(why) ?? []), job.job_id]);
    }
  }
  for (const [why, jobs] of waiting)
    reasons.push(jobs.length === 1 ? `job ${jobs[0]} waits: ${why}` : `${describeJobs(jobs)} wait: ${why}`);
  const sleeping = Object.entries(state.scaled ?? {}).filter(
    ([, { asleep_since_ms }]) => asleep_since_ms !== undefined,
  );
  for (const [model, { asleep_since_ms, wake_s }] of sleeping)
    reasons.push(
      `${model} sleeps since ${minuteOf(asleep_since_ms!)}; a request wakes it in about ${Math.ceil(wake_s)} s`,
    );
  if (wanted.length === 0 && sleeping.length > 0) return { phase: 'asleep', reasons, ...counts };
  const running = wanted.some((launch) => {
    const status = observation.launches.get(launch.launch_id);
    return status?.job?.phase === 'running' || status?.units.some((unit) => unit.node !== undefined);
  });
  const sound = observation.problems.length === 0;
  const phase = phaseOf(units, { serving, failed, running, sound });
  return { phase: withOthers(phase, state, counts), reasons, ...counts };
}

/**
 * Replicas as they stand; one over several jobs is lost with any of them, until another replaces it: but where the
 * others have all of its stages.
 */
function replicasOf(wanted: readonly LaunchRecord[], { launches }: Observation): UnitStatus[] {
  const lost = new Set(
    wanted.flatMap(({ launch_id, phase, planned: { part } }) => {
      const isOver = phase === 'ended' || launches.get(launch_id)?.job?.phase === 'ended';
      return part && isOver ? [part.group] : [];
    }),
  );
  return wanted.flatMap(({ launch_id, planned: { part, units: planned } }) => {
    const units = launches.get(launch_id)?.units ?? [];
    if (part === undefined || !lost.has(part.group)) return units;
    return units.map((unit): UnitStatus => {
      const isWhole = unit.state === 'serving' && hasAllStages(unit, planned);
      return isWhole || unit.state === 'failed' ? unit : { ...unit, state: 'lost' };
    });
  });
}

/** Whether processes that run have all of a pipeline, however it is cut now. */
function hasAllStages({ unit, stages = [] }: UnitStatus, planned: readonly UnitSpec[]): boolean {
  const operators = planned.find((each) => each.unit === unit)?.stages?.at(-1)?.end;
  const running = stages.filter(({ runs }) => runs).sort((a, b) => a.begin - b.begin);
  let next = 0;
  for (const { begin, end } of running) if (begin === next) next = end;
  return next === operators;
}

/** The word that is true of all of it: of those that are wanted, those before them, and who acts on it. */
function withOthers(
  phase: DeploymentPhase,
  state: DeploymentState,
  { replicas_old_serving }: Pick<Assessment, 'replicas_old_serving'>,
): DeploymentPhase {
  const starts = phase === 'waiting' || phase === 'starting' || phase === 'loading';
  if (starts && replicas_old_serving > 0) return 'updating';
  const given_up = wantedLaunches(state).some((launch) => launch.given_up !== undefined);
  return phase === 'failed' && isKept(state) && !given_up ? 'replacing' : phase;
}

/** `jobs 7, 8, 9 and 472 more`. */
function describeJobs(jobs: readonly string[]): string {
  const named = jobs.slice(0, jobs.length > named_max ? named_max - 1 : named_max);
  const more = jobs.length - named.length;
  return `jobs ${named.join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}
/** So many jobs of one reason are named. */
const named_max = 4;

/** One line for all units of a node that went wrong in the same way. */
export function unitErrors(units: readonly UnitStatus[]): string[] {
  const groups = new Map<string, string[]>();
  for (const { unit, node, error, next_try_ms } of units) {
    if (error === undefined) continue;
    const again = next_try_ms === undefined ? '' : `; it is tried again at ${minuteOf(next_try_ms)}`;
    const where = `on ${node ?? 'its node'}: ${error}${again}`;
    groups.set(where, [...(groups.get(where) ?? []), unit]);
  }
  return [...groups].map(([where, names]) => `${names.join(', ')} ${where}`);
}

const minuteOf = (at_ms: number): string => `${new Date(at_ms).toISOString().slice(0, 16)}Z`;

/** What went wrong in a job that has later stages alone, and answers for no replica. */
function stageErrors(status: LaunchObservation | undefined): string[] {
  if (!status || status.units.length > 0) return [];
  return status.agents.flatMap(({ node, sessions }) =>
    sessions.flatMap(({ unit, error }) => {
      const finding = findingOf(error);
      return finding ? [`${unit} on ${node}: ${sentenceOf(finding)}`] : [];
    }),
  );
}

/** What agents that run say is wrong and does not stop them. */
function noticesOf(agents: readonly AgentState[]): string[] {
  return agents
    .filter((agent) => agent.phase !== 'stopped' && agent.phase !== 'failed')
    .flatMap((agent) => (agent.notices ?? []).map((notice) => `${agent.node}: ${sentenceOf(notice)}`));
}

function phaseOf(
  units: readonly UnitStatus[],
  {
    serving,
    failed,
    running,
    sound,
  }: {
    serving: number;
    failed: number;
    /** Some job of it runs. */
    running: boolean;
    /** Nothing is wrong with the place itself. */
    sound: boolean;
  },
): DeploymentPhase {
  if (failed > 0) {
    if (serving > 0) return 'degraded';
    if (failed === units.length) return 'failed';
  }
  if (units.some((unit) => unit.state === 'draining' || unit.state === 'stalled')) return 'degraded';
  if (serving === units.length) return sound ? 'serving' : 'degraded';
  if (units.some((unit) => unit.state === 'loading')) return 'loading';
  return running ? 'starting' : 'waiting';
}

function failureReasons(failure: ErrorJson): string[] {
  return [failure.what, ...failure.because];
}

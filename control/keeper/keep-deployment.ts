/** One round of keeping one deployment: inspect, decide, write the decision down, act. */
import { hostname } from 'node:os';
import { isAlive } from '../../host/process-identity.ts';
import { type KeepAction, type KeepSettings, keep } from '../../solver/keeping/keep.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { allServe, keptLaunches } from '../reconcile/kept-launch.ts';
import type { Observation } from '../reconcile/observe.ts';
import { everyAction, type Reconciler } from '../reconcile/reconciler.ts';
import { type DeploymentState, forgetOldest, isKept, replaceLaunches } from '../state/deployment-state.ts';
import { type DeploymentStore, lockWait_ms, type Writer } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import { inPhase, type LaunchRecord } from '../state/launch-record.ts';
import { givenUp, served, successorOf, superseded } from '../state/launch-transitions.ts';
import { withRenewed } from '../state/pipeline-groups.ts';
import type { RepeatedTrouble } from './repeated-trouble.ts';

export interface KeepingDeployment extends Writer {
  store: DeploymentStore;
  reconciler: Reconciler;
  settings: KeepSettings;
  emit: (event: ProgressEvent) => void;
  trouble: RepeatedTrouble;
  /** Gives those of the launches that are over another place whose own is gone; with how many came to nothing. */
  replaceLost: (
    state: DeploymentState,
    observation: Observation,
    ended: ReadonlyMap<string, number>,
  ) => Promise<boolean>;
  /** Absent: how jobs end is the scheduler's word alone. */
  findLost?: FindLost | undefined;
}

/** Launches whose node is lost, by launch id, with what says so. */
export type FindLost = (
  state: DeploymentState,
  observation: Observation,
) => Promise<ReadonlyMap<string, string>>;

export interface KeptRound {
  /** False where nothing is kept: it is stopped, or its `deploy` still follows it. */
  kept: boolean;
  /** When the next thing is due, Unix ms; Infinity: whenever something happens. */
  next_at_ms: number;
  /** What was seen of a deployment that is kept, and whether its budget is used up. */
  seen?: { state: DeploymentState; observation: Observation; spent: boolean };
}

interface SeenDeployment {
  state: DeploymentState;
  observation: Observation;
  /** The scheduler did not do what was asked of it. */
  is_troubled?: boolean;
}

/** @throws HpcserveError where the state cannot be read or the lock is not to be had; the next round tries again */
export async function keepDeployment(keeping: KeepingDeployment, name: string): Promise<KeptRound> {
  const { reconciler, settings, now_ms, store } = keeping;
  // Two that submit the same launches would take them from each other.
  if (isFollowed(store.require(name), now_ms())) return { kept: false, next_at_ms: now_ms() };
  const first_seen = await reconciler.pass(name).catch((error: unknown) => recorded(keeping, name, error));
  noteTrouble(keeping, name, first_seen);
  const seen = await withoutLost(keeping, first_seen);
  const { state, observation } = seen;
  if (!isKept(state)) return { kept: false, next_at_ms: Number.POSITIVE_INFINITY };
  const decided = keep(keptLaunches(state, observation.launches), now_ms(), settings);
  const spent = decided.gpu_hours_used >= (settings.gpu_hours ?? Number.POSITIVE_INFINITY);
  const first = state.launches.some((launch) => servesFirst(launch, observation));
  const { next_at_ms } = decided;
  if (decided.actions.length === 0 && !first)
    return { kept: true, next_at_ms, seen: { state, observation, spent } };
  const ended = decided.actions.flatMap((action) =>
    action.do === 'replace' ? [[action.launch_id, action.tries] as const] : [],
  );
  if (ended.length > 0) await keeping.replaceLost(state, observation, new Map(ended));
  await write(keeping, name, observation);
  // What was decided is planned now; this submits it.
  const after = await reconciler.pass(name).catch((error: unknown) => recorded(keeping, name, error));
  return { kept: true, next_at_ms, seen: { ...after, spent } };
}

/** Whether a `deploy` still submits and follows it: told at once on its own host, and elsewhere guessed for a while. */
function isFollowed({ followed_by, kept }: DeploymentState, now_ms: number): boolean {
  if (followed_by === undefined || kept === true) return false;
  if (followed_by.host === hostname()) return isAlive(followed_by);
  return now_ms - followed_by.since_ms < elsewhere_ms;
}
/** For so long a `deploy` of another host is left to submit. Lower: both may; higher: jobs of a dead one come late. */
const elsewhere_ms = 60_000;

/** Ends jobs whose node is lost: what follows sees them as ended, and replaces them. */
async function withoutLost(
  { reconciler, findLost, emit, now_ms }: KeepingDeployment,
  seen: Awaited<ReturnType<Reconciler['pass']>>,
): Promise<Awaited<ReturnType<Reconciler['pass']>>> {
  const { name } = seen.state;
  if (!isKept(seen.state) || findLost === undefined) return seen;
  const lost = await findLost(seen.state, seen.observation);
  if (lost.size === 0) return seen;
  for (const [launch_id, because] of lost)
    emit({ at_ms: now_ms(), kind: 'kept', deployment: name, do: 'end', launch_id, because });
  return reconciler.pass(name, everyAction, lost);
}

/**
 * A submission that was refused is written down as a launch that came to nothing: the decision counts it. What is
 * wrong with the place itself is the caller's.
 */
async function recorded(
  { reconciler, trouble }: KeepingDeployment,
  name: string,
  thrown: unknown,
): Promise<SeenDeployment> {
  const error = HpcserveError.from(thrown);
  const ofItsPlace = error.code === 'E_JOBS_LIMIT' || error.code === 'E_JOINED_NODE_GONE';
  if (!error.code.startsWith('E_SLURM_') && !ofItsPlace) throw thrown;
  trouble.happened(jobsOf(name), [error.message, ...error.because].join(': '));
  return { ...(await reconciler.pass(name, new Set())), is_troubled: true };
}

/** What the reconciler has said of a scheduler that does not answer goes on until it does. */
function noteTrouble(
  { trouble }: KeepingDeployment,
  name: string,
  { observation: { problems }, is_troubled = false }: SeenDeployment,
): void {
  for (const problem of problems) trouble.happened(jobsOf(name), problem, true);
  if (problems.length === 0 && !is_troubled) trouble.over(jobsOf(name));
}

/** What trouble with them is about. */
export const jobsOf = (name: string): string => `jobs of ${name}`;

function servesFirst(launch: LaunchRecord, observation: Observation): boolean {
  return launch.served_at_ms === undefined && allServe(launch, observation.launches.get(launch.launch_id));
}

/** Decides again on the state as it is under the lock: another command may have acted meanwhile. */
function write(keeping: KeepingDeployment, name: string, observation: Observation): Promise<void> {
  const { store, settings, now_ms, emit } = keeping;
  return store.locked(name, { ...keeping, lock_wait_ms: lockWait_ms.service }, async (record) => {
    if (!isKept(record.state)) return;
    const state = withServing(record.state, observation, now_ms());
    const { actions } = keep(keptLaunches(state, observation.launches), now_ms(), settings);
    const next = actions.reduce(apply, state);
    record.save(forgetOldest(next));
    for (const action of actions) emit({ at_ms: now_ms(), kind: 'kept', deployment: name, ...action });
  });
}

/** What serves for the first time is written down, and what failed before it is over. */
function withServing(state: DeploymentState, observation: Observation, now_ms: number): DeploymentState {
  const first = state.launches.filter((launch) => servesFirst(launch, observation));
  if (first.length === 0) return state;
  const launches = first.map((launch) => served(inPhase(launch, 'submitted'), now_ms));
  return { ...replaceLaunches(state, launches), failure: undefined };
}

/** A successor stands where its predecessor stood, so that units keep their order. */
function apply(state: DeploymentState, action: KeepAction): DeploymentState {
  const at = state.launches.findIndex((launch) => launch.launch_id === action.launch_id);
  const launch = state.launches[at]!;
  // Renewed already, together with another part of its pipeline.
  if (launch.superseded) return state;
  if (action.do === 'give_up')
    return replaceLaunches(state, [givenUp(inPhase(launch, 'ended'), action.because)]);
  // Derived, so that a keeper that died between deciding and writing decides the same again.
  const newId = ({ launch_id: predecessor }: LaunchRecord): string =>
    digestOf({ predecessor, deployment: state.name }).slice(0, 16);
  if (action.do === 'renew' && launch.planned.part !== undefined)
    return { ...state, launches: withRenewed(state.launches, launch, newId) };
  const successor = successorOf(launch, newId(launch), action.do === 'replace' ? action.tries : undefined);
  return { ...state, launches: state.launches.toSpliced(at, 1, successor, superseded(launch)) };
}

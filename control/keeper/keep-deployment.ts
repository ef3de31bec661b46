/** One round of keeping one deployment: look, decide, write the decision down, act. */
import { type KeepAction, type KeepSettings, keep } from '../../solver/keeping/keep.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { allServe, keptLaunches } from '../reconcile/kept-launch.ts';
import type { Observation } from '../reconcile/observe.ts';
import type { Reconciler } from '../reconcile/reconciler.ts';
import { type DeploymentState, forgetOldest, type LaunchRecord } from '../state/deployment-state.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';

export interface KeepingDeployment {
  store: DeploymentStore;
  reconciler: Reconciler;
  settings: KeepSettings;
  command: string;
  now_ms: () => number;
  emit: (event: ProgressEvent) => void;
  signal: AbortSignal;
}

export interface KeptRound {
  /** False where nothing is kept: it is stopped, or its `deploy` still follows it. */
  kept: boolean;
  /** When the next thing is due, Unix ms; Infinity: whenever something happens. */
  next_at_ms: number;
  /** What was seen of a deployment that is kept, and whether its budget is used up. */
  seen?: { state: DeploymentState; observation: Observation; spent: boolean };
}

/** @throws HpcserveError where the state cannot be read or the lock is not to be had; the next round tries again */
export async function keepDeployment(keeping: KeepingDeployment, name: string): Promise<KeptRound> {
  const { reconciler, settings, now_ms } = keeping;
  const seen = await reconciler.pass(name).catch((error: unknown) => recorded(keeping, name, error));
  const { state, observation } = seen;
  if (state.desired !== 'serving' || state.kept !== true)
    return { kept: false, next_at_ms: Number.POSITIVE_INFINITY };
  const decided = keep(keptLaunches(state, observation.launches), now_ms(), settings);
  const spent = decided.gpu_hours_used >= (settings.gpu_hours ?? Number.POSITIVE_INFINITY);
  const first = state.launches.some((launch) => servesFirst(launch, observation));
  const { next_at_ms } = decided;
  if (decided.actions.length === 0 && !first)
    return { kept: true, next_at_ms, seen: { state, observation, spent } };
  await write(keeping, name, observation);
  // What was decided is planned now; this submits it.
  const after = await reconciler.pass(name).catch((error: unknown) => recorded(keeping, name, error));
  return { kept: true, next_at_ms, seen: { ...after, spent } };
}

/**
 * A submission that was refused is written down as a launch that came to nothing: the decision counts it. What is
 * wrong with the place itself is the caller's.
 */
async function recorded(
  { reconciler, emit, now_ms }: KeepingDeployment,
  name: string,
  thrown: unknown,
): Promise<{ state: DeploymentState; observation: Observation }> {
  const error = HpcserveError.from(thrown);
  const ofItsPlace = error.code === 'E_JOBS_LIMIT' || error.code === 'E_JOINED_NODE_GONE';
  if (!error.code.startsWith('E_SLURM_') && !ofItsPlace) throw thrown;
  emit({
    at_ms: now_ms(),
    kind: 'warning',
    message: `${name}: ${[error.message, ...error.because].join(': ')}`,
  });
  return reconciler.pass(name, new Set());
}

function servesFirst(launch: LaunchRecord, observation: Observation): boolean {
  return launch.served_at_ms === undefined && allServe(launch, observation.launches.get(launch.launch_id));
}

/** Decides again on the state as it is under the lock: another command may have acted meanwhile. */
async function write(keeping: KeepingDeployment, name: string, observation: Observation): Promise<void> {
  const { store, settings, command, now_ms, emit, signal } = keeping;
  const lock = await store.lock(name, { command, timeout_ms: 30_000, signal });
  try {
    const state = store.require(name);
    if (state.desired !== 'serving' || state.kept !== true) return;
    for (const launch of state.launches)
      if (servesFirst(launch, observation)) {
        launch.served_at_ms = now_ms();
        delete state.failure;
      }
    const { actions } = keep(keptLaunches(state, observation.launches), now_ms(), settings);
    for (const action of actions) {
      apply(state, action);
      emit({ at_ms: now_ms(), kind: 'kept', deployment: name, ...action });
    }
    state.launches = forgetOldest(state.launches);
    store.save(state, now_ms());
  } finally {
    lock.release();
  }
}

/** A successor stands where its predecessor stood, so that units keep their order. */
function apply(state: DeploymentState, action: KeepAction): void {
  const at = state.launches.findIndex((launch) => launch.launch_id === action.launch_id);
  const launch = state.launches[at]!;
  if (action.do === 'give_up') {
    launch.given_up = action.because;
    return;
  }
  launch.superseded = true;
  const successor: LaunchRecord = {
    // Derived, so that a keeper that died between deciding and writing decides the same again.
    launch_id: digestOf({ predecessor: launch.launch_id, deployment: state.name }).slice(0, 16),
    phase: 'planned',
    fingerprint: launch.fingerprint,
    planned: launch.planned,
    superseded: false,
    ...(action.do === 'replace' ? { tries: action.tries } : {}),
  };
  state.launches.splice(at, 0, successor);
}

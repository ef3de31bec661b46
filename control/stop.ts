/** `stop`: no job, no process is left, or an error says which. */
import { setTimeout as sleep } from 'node:timers/promises';
import { HpcserveError } from '../spec/errors/error.ts';
import { isGatewayNeeded, stopGateway } from './gateway/gateway.ts';
import { stopKeeper } from './keeper/keeper-process.ts';
import { Reconciler } from './reconcile/reconciler.ts';
import type { JobRunner } from './runner/job-runner.ts';
import type { Operations } from './runner/operations.ts';
import { type DeploymentState, isActive, liveLaunches } from './state/deployment-state.ts';
import type { DeploymentStore } from './state/deployment-store.ts';
import type { LaunchRecord } from './state/launch-record.ts';

export interface StopOptions {
  keep_gateway: boolean;
  /** Why it is stopped, where it failed; shown by `status`. */
  failure?: HpcserveError;
  timeout_ms?: number;
}

/** @throws E_DEPLOYMENT_UNKNOWN; E_DEPLOYMENT_STOP with what is still there. */
export async function stopDeployment(
  operations: Operations,
  name: string,
  options: StopOptions,
): Promise<void> {
  const { store, runner, now_ms, emit, loaded } = operations;
  const before = store.require(name);
  try {
    await store.update(name, operations, (state) => ({
      ...state,
      desired: 'stopped',
      failure: options.failure?.toJSON(),
    }));
  } catch (thrown) {
    throw withWayByHand(thrown, runner, before);
  }
  await waitForEnd(operations, name, liveLaunches, options.timeout_ms ?? endTimeout_ms);
  if (!options.keep_gateway && !isGatewayNeeded(store)) await stopGateway(operations);
  for (const error of store.loadAll().unreadable)
    emit({ at_ms: now_ms(), kind: 'warning', message: [error.message, ...error.because].join(': ') });
  // One in the gateway's job ends with it.
  if (loaded.site.keeper.place !== 'job' && !isKeeperNeeded(store))
    await stopKeeper(store.layout, operations, () => isKeeperNeeded(store));
  emit({ at_ms: now_ms(), kind: 'stopped', deployment: name });
}

/**
 * Ends them one after the other; what is wrong with one leaves no other running.
 * @throws the error of the only one that was not ended, or E_DEPLOYMENT_STOP with those of all
 */
export async function stopDeployments(
  operations: Operations,
  names: readonly string[],
  options: StopOptions,
): Promise<void> {
  const failed: { name: string; error: HpcserveError }[] = [];
  for (const name of names)
    try {
      await stopDeployment(operations, name, options);
    } catch (thrown) {
      if (operations.signal.aborted) throw thrown;
      failed.push({ name, error: HpcserveError.from(thrown) });
    }
  const [first] = failed;
  if (!first) return;
  if (failed.length === 1) throw first.error;
  throw new HpcserveError('E_DEPLOYMENT_STOP', {
    what: `${failed.length} of ${names.length} deployments were not ended`,
    because: failed.map(
      ({ name, error }) => `${name}: ${[error.message, ...error.because].join(': ')} [${error.code}]`,
    ),
    try: [...new Set(failed.flatMap(({ error }) => error.try)), 'then run the same command again'],
    details: { failed: failed.map(({ error }) => error.toJSON()) },
  });
}

/** One whose file cannot be read may want to be kept. */
function isKeeperNeeded(store: DeploymentStore): boolean {
  const { states, unreadable } = store.loadAll();
  return unreadable.length > 0 || states.some(isActive);
}

/** Nothing can be written down (a full disk): jobs can be ended all the same. */
function withWayByHand(thrown: unknown, runner: JobRunner, state: DeploymentState): HpcserveError {
  const error = HpcserveError.from(thrown);
  const jobs = liveLaunches(state).flatMap((launch) => launch.job_id ?? []);
  if (error.exit_code !== 12 || runner.kind !== 'slurm' || jobs.length === 0) return error;
  return new HpcserveError(error.code, {
    what: error.message,
    because: error.because,
    try: [...error.try, `or end its jobs without hpcserve: scancel ${jobs.join(' ')}`],
    details: error.details,
    cause: error,
  });
}

/** Waits until the launches that are on their way out have ended; the others go on. @throws E_DEPLOYMENT_STOP */
export function endSuperseded(operations: Operations, name: string): Promise<void> {
  const superseded = (state: DeploymentState): LaunchRecord[] =>
    liveLaunches(state).filter((launch) => launch.superseded);
  return waitForEnd(operations, name, superseded, endTimeout_ms);
}

/** How long jobs may take to end, ms: Slurm's KillWait (30 s) and an epilog lie within. */
const endTimeout_ms = 180_000;

async function waitForEnd(
  operations: Operations,
  name: string,
  whatEnds: (state: DeploymentState) => LaunchRecord[],
  timeout_ms: number,
): Promise<void> {
  const { store, runner, facts, loaded, command, signal, now_ms, emit } = operations;
  const reconciler = new Reconciler({
    site: loaded.site,
    store,
    runner,
    facts,
    now_ms,
    // What runs until it ends is no news to who ends it.
    emit: (event) => {
      if (event.kind === 'warning') emit(event);
      if (event.kind !== 'job_ended') return;
      const { at_ms, kind, job_id, state } = event;
      // Why it was cancelled is known to who asked for it.
      emit(state === 'CANCELLED' ? { at_ms, kind, job_id, state } : event);
    },
    command,
    signal,
    poll_interval_ms: Math.min(runner.poll_interval_ms, 2_000),
  });
  const deadline = now_ms() + timeout_ms;
  for (;;) {
    const { state } = await reconciler.pass(name);
    const left = whatEnds(state);
    if (left.length === 0) return;
    if (now_ms() >= deadline)
      throw new HpcserveError('E_DEPLOYMENT_STOP', {
        what: `${name} has not ended after ${Math.round(timeout_ms / 1000)} s`,
        because: left.map(
          (launch) => `job ${launch.job_id ?? launch.launch_id}: ${launch.last?.state ?? launch.phase}`,
        ),
      });
    await sleep(100, undefined, { signal });
  }
}

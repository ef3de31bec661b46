/** `deploy`: from a specification to a serving deployment, or to the reason why not. */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { copyPrivately } from '../host/copy-privately.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { DeploymentSpec, Objective } from '../spec/model-yaml.ts';
import type { Plan } from '../spec/plan.ts';
import { deploymentFiles, type GatewayEndpoint } from '../spec/state-layout.ts';
import { ensureGateway, ensureKey, waitForModels } from './gateway/gateway.ts';
import { baseUrl, type GatewayWays, waysOf } from './gateway/gateway-url.ts';
import { warningLines } from './gateway/gateway-warnings.ts';
import { ensureKeeper } from './keeper/keeper-process.ts';
import { planNow } from './plan/plan-now.ts';
import { launchIds, type PlannedDeployment, requireFeasible, useFresh } from './plan/planning.ts';
import { assess } from './reconcile/assess.ts';
import { mergePlan } from './reconcile/decide.ts';
import { diagnose } from './reconcile/diagnose.ts';
import { bookkeepingActions, Reconciler } from './reconcile/reconciler.ts';
import { forgetPrevious, previousOf, rollBack } from './reconcile/roll-back.ts';
import type { Operations } from './runner/operations.ts';
import type { CredentialFile } from './state/credentials.ts';
import {
  type DeploymentState,
  forgetOldest,
  liveLaunches,
  wantedLaunches,
} from './state/deployment-state.ts';
import { endSuperseded, stopDeployment } from './stop.ts';

export interface DeployRequest {
  spec: DeploymentSpec;
  /** Absolute path of model.yaml. */
  spec_file: string;
  /** A plan made before, which must still be fresh. */
  plan?: Plan;
  /** Instead of the one in model.yaml. */
  objective?: Objective;
  /** Return as soon as everything is submitted. */
  detach: boolean;
  /** 0: wait without end. */
  timeout_ms: number;
  /** End what runs of an older version before the new one is started, instead of after it serves. */
  stop_first: boolean;
  credentials: CredentialFile;
  /** Asked before running jobs are replaced. */
  confirm: (question: string) => Promise<boolean>;
}

export interface DeployResult extends GatewayWays {
  deployment: string;
  site: string;
  url: string;
  key: string;
  models: string[];
  /** False with --detach: submitted, not yet serving. */
  serving: boolean;
}

/** Time between two looks at state files while following, ms. Lower: news sooner; higher: less load on the filesystem. */
const follow_ms = 500;

export async function deploy(operations: Operations, request: DeployRequest): Promise<DeployResult> {
  const { spec } = request;
  const { store, emit, now_ms } = operations;
  const objective = request.plan?.objective ?? request.objective;
  const made = await planNow(operations, spec, request.spec_file, objective ? { objective } : {});
  const planned = request.plan ? useFresh(request.plan, made) : made;
  requireFeasible(planned.plan);
  for (const message of planned.plan.warnings) emit({ at_ms: now_ms(), kind: 'warning', message });

  const reconciler = new Reconciler({
    site: operations.loaded.site,
    store,
    runner: operations.runner,
    facts: operations.facts,
    now_ms,
    emit,
    command: operations.command,
    signal: operations.signal,
  });
  store.prepareDeployment(spec.name);
  const isNew = store.load(spec.name) === undefined;
  // Jobs may have ended while nobody looked: what is started anew depends on it.
  if (!isNew) await reconciler.pass(spec.name, bookkeepingActions);
  await accept(operations, request, planned).catch((error: unknown) => {
    if (isNew && store.load(spec.name) === undefined) store.remove(spec.name);
    throw error;
  });
  const { endpoint, started } = await ensureGateway(operations).catch(async (error: unknown) => {
    // Nothing was submitted yet: leave no deployment behind that says it wants to serve.
    throw await abandon(operations, spec.name, isNew, error);
  });
  const url = baseUrl(endpoint);
  if (started) emit({ at_ms: now_ms(), kind: 'gateway_up', url });
  const key = await ensureKey(operations, endpoint, request.credentials);
  for (const message of await warningLines(operations.loaded.site, store.layout, endpoint))
    emit({ at_ms: now_ms(), kind: 'warning', message });

  const models = spec.models.map((model) => model.name);
  const result = {
    deployment: spec.name,
    site: operations.loaded.site.name,
    url,
    key,
    models,
    ...waysOf(endpoint),
  };
  const deadline_ms = request.timeout_ms > 0 ? now_ms() + request.timeout_ms : Number.POSITIVE_INFINITY;
  let waiting: number;
  try {
    waiting = await submitAll(operations, reconciler, spec.name, deadline_ms);
  } catch (error) {
    throw await abandon(operations, spec.name, isNew, error);
  }
  if (waiting > 0)
    throw new HpcserveError('E_DEPLOYMENT_TIMEOUT', {
      what: `${waiting} job(s) of ${spec.name} are not submitted after ${Math.round(request.timeout_ms / 1000)} s`,
      because: 'the site allows only so many submissions a minute',
      try: 'run the same command again: it goes on where this one stopped',
    });
  if (request.detach) {
    await leaveToKeeper(operations, spec.name);
    return { ...result, serving: false };
  }
  await follow(operations, reconciler, request, deadline_ms, endpoint, key, models);
  await leaveToKeeper(operations, spec.name);
  emit({ at_ms: now_ms(), kind: 'serving', url, models });
  return { ...result, serving: true };
}

/**
 * From here on the keeper replaces what ends. While it was followed, a job that ended was this command's to report.
 * Where no keeper can be started the deployment serves all the same, as long as its jobs last.
 */
async function leaveToKeeper(operations: Operations, name: string): Promise<void> {
  const { store, command, signal, now_ms, loaded, emit } = operations;
  const lock = await store.lock(name, { command, timeout_ms: 120_000, signal });
  try {
    const state = store.require(name);
    if (state.kept !== true) store.save({ ...state, kept: true }, now_ms());
  } finally {
    lock.release();
  }
  if (loaded.site.keeper.place !== 'login') return;
  try {
    await ensureKeeper(loaded, signal);
  } catch (error) {
    if (!(error instanceof HpcserveError)) throw error;
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `jobs that end will not be replaced: ${[error.message, ...error.because].join(': ')} [${error.code}]`,
    });
  }
}

/**
 * Passes until every launch is submitted: the site may allow only so many a minute.
 * @returns how many still wait when the time is over.
 */
async function submitAll(
  { signal, now_ms }: Operations,
  reconciler: Reconciler,
  name: string,
  deadline_ms: number,
): Promise<number> {
  for (;;) {
    const { state } = await reconciler.pass(name);
    const waiting = state.launches.filter((launch) => launch.phase === 'planned').length;
    if (waiting === 0 || state.desired === 'stopped' || now_ms() >= deadline_ms) return waiting;
    await sleep(follow_ms, undefined, { signal });
  }
}

/** Writes down what is wanted now; keeps what runs and is unchanged. */
async function accept(
  operations: Operations,
  request: DeployRequest,
  { plan, spec_digest, fingerprint }: PlannedDeployment,
): Promise<void> {
  const { spec } = request;
  const { store, emit, now_ms, command, signal } = operations;
  if (request.stop_first && isChanged(store.load(spec.name), spec_digest))
    await stopDeployment(operations, spec.name, { keep_gateway: true });
  const lock = await store.lock(spec.name, { command, timeout_ms: 120_000, signal });
  try {
    const before = store.load(spec.name);
    const unchanged =
      before?.desired === 'serving' &&
      before.spec_digest === spec_digest &&
      wantedLaunches(before).every((launch) => launch.phase !== 'ended');
    if (unchanged) {
      emit({
        at_ms: now_ms(),
        kind: 'checking',
        what: `${spec.name}, which is deployed already and unchanged`,
      });
      return;
    }
    const generation = (before?.generation ?? 0) + 1;
    const ids = launchIds(store.layout.root, spec.name, generation);
    const launches = mergePlan(before?.launches ?? [], plan.launches, fingerprint, ids);
    const kept = launches.filter((launch) => !launch.superseded && launch.phase !== 'planned').length;
    emit({
      at_ms: now_ms(),
      kind: 'planned',
      launches: plan.launches.length,
      replicas: plan.models.reduce((sum, model) => sum + model.replicas, 0),
    });
    const replaced = launches.filter((launch) => launch.superseded && launch.phase !== 'ended').length;
    if (
      replaced > 0 &&
      !(await request.confirm(`${replaced} running job(s) of ${spec.name} will be replaced. Go on?`))
    )
      throw new HpcserveError('E_INTERRUPTED', {
        what: 'nothing was changed',
        because: 'the question was answered with no',
        try: 'see what would change with `hpcserve plan`',
      });
    if (replaced > 0)
      emit({
        at_ms: now_ms(),
        kind: 'warning',
        message: `${replaced} running job(s) are replaced once the new ones serve${kept > 0 ? `; ${kept} unchanged one(s) go on` : ''}; where there is no room for both, use --stop-first`,
      });
    const previous = previousOf(before);
    const file = (key: 'spec' | 'previous_spec'): string =>
      join(store.folder(spec.name), deploymentFiles[key]);
    if (previous && !before?.previous) copyPrivately(file('spec'), file('previous_spec'));
    const state: DeploymentState = {
      format: 1,
      name: spec.name,
      site: operations.loaded.site.name,
      owner: operations.facts.user,
      generation,
      spec_digest,
      spec_file: request.spec_file,
      spec,
      desired: 'serving',
      created_at_ms: before?.created_at_ms ?? now_ms(),
      updated_at_ms: now_ms(),
      models: plan.models,
      ...(previous ? { previous } : {}),
      launches: forgetOldest(launches),
    };
    copyPrivately(request.spec_file, file('spec'));
    store.save(state, now_ms());
  } finally {
    lock.release();
  }
}

function isChanged(before: DeploymentState | undefined, digest: string): boolean {
  return before !== undefined && before.spec_digest !== digest && liveLaunches(before).length > 0;
}

/**
 * After a refusal: what was already submitted of this version is taken back, and the reason kept. The
 * version before it, if there is one, goes on.
 * @returns the error to show.
 */
async function abandon(
  operations: Operations,
  name: string,
  isNew: boolean,
  thrown: unknown,
): Promise<HpcserveError> {
  const error = HpcserveError.from(thrown);
  if (error.details.may_have_been_submitted === true || operations.signal.aborted) return error;
  const rolledBack = await goBack(operations, name, error);
  if (rolledBack) return rolledBack;
  await stopDeployment(operations, name, { keep_gateway: false, failure: error });
  const state = operations.store.load(name);
  const ran = state?.launches.some((launch) => launch.job_id !== undefined) ?? false;
  if (isNew && !ran) operations.store.remove(name);
  return error;
}

/** Back to the version before, with the jobs of the change ended. */
async function goBack(
  operations: Operations,
  name: string,
  error: HpcserveError,
): Promise<HpcserveError | undefined> {
  const rolledBack = await rollBack(operations, name, error);
  if (!rolledBack) return undefined;
  await endSuperseded(operations, name);
  return rolledBack;
}

async function follow(
  operations: Operations,
  reconciler: Reconciler,
  request: DeployRequest,
  deadline_ms: number,
  endpoint: GatewayEndpoint,
  key: string,
  models: readonly string[],
): Promise<void> {
  const { spec } = request;
  const { store, signal, emit, now_ms } = operations;
  for (;;) {
    signal.throwIfAborted();
    const { state, observation } = await reconciler.pass(spec.name);
    if (state.desired === 'stopped')
      throw new HpcserveError('E_DEPLOYMENT_FAILED', {
        what: `${spec.name} was stopped while it started`,
        because: 'another command asked for it',
        try: 'deploy it again',
      });
    const { phase, replicas_serving, replicas_failed, replicas_wanted } = assess(state, observation);
    if (
      (phase === 'serving' || phase === 'asleep') &&
      liveLaunches(state).every((launch) => !launch.superseded)
    )
      break;
    if (
      phase === 'failed' ||
      (phase === 'degraded' && replicas_failed > 0 && replicas_serving + replicas_failed === replicas_wanted)
    ) {
      const launch =
        wantedLaunches(state).find((each) => {
          const sight = observation.launches.get(each.launch_id);
          return sight?.units.some((unit) => unit.state === 'failed' || unit.state === 'lost');
        }) ?? wantedLaunches(state)[0]!;
      const error = state.failure
        ? HpcserveError.fromJSON(state.failure)
        : diagnose(state, store, launch, observation.launches.get(launch.launch_id));
      // Jobs in which nothing can serve any more would only burn their allocation.
      if (phase !== 'failed') throw error;
      const rolledBack = await goBack(operations, spec.name, error);
      if (rolledBack) throw rolledBack;
      await stopDeployment(operations, spec.name, { keep_gateway: false, failure: error });
      throw error;
    }
    if (now_ms() >= deadline_ms)
      throw new HpcserveError('E_DEPLOYMENT_TIMEOUT', {
        what: `${spec.name} does not serve after ${Math.round(request.timeout_ms / 1000)} s`,
        because: assess(state, observation).reasons,
      });
    await sleep(follow_ms, undefined, { signal });
  }
  await forgetPrevious(operations, spec.name);
  const missing = await waitForModels(endpoint, key, models, signal);
  if (missing.length > 0)
    emit({
      at_ms: now_ms(),
      kind: 'warning',
      message: `the gateway does not list ${missing.join(', ')} yet, although its replicas serve: see \`hpcserve doctor\``,
    });
}

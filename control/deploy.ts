/** `deploy`: from a specification to a serving deployment, or to the reason why not. */
import { setTimeout as sleep } from 'node:timers/promises';
import { HpcserveError } from '../spec/errors/error.ts';
import type { DeploymentSpec, ModelSpec, Objective } from '../spec/model-yaml.ts';
import type { Plan } from '../spec/plan.ts';
import type { GatewayEndpoint } from '../spec/state-layout.ts';
import { type AcceptRequest, acceptPlan, type Consent } from './accept-plan.ts';
import { ensureGatewayAndKey, waitForModels } from './gateway/gateway.ts';
import { baseUrl, type GatewayWays, waysOf } from './gateway/url.ts';
import { warningLines } from './gateway/warnings.ts';
import { ensureKeeper } from './keeper/keeper-process.ts';
import { brokenPromises } from './plan/broken-promises.ts';
import { planNow } from './plan/plan-now.ts';
import { type PlannedDeployment, requireFeasible, useFresh } from './plan/planning.ts';
import { refuseTakenNames } from './plan/taken-names.ts';
import { type Assessment, assess } from './reconcile/assess.ts';
import { diagnose } from './reconcile/diagnose.ts';
import type { Observation } from './reconcile/observe.ts';
import { bookkeepingActions, Reconciler } from './reconcile/reconciler.ts';
import { forgetPrevious, rollBack } from './reconcile/roll-back.ts';
import type { Operations } from './runner/operations.ts';
import type { CredentialFile } from './state/credentials.ts';
import { type DeploymentState, liveLaunches, wantedLaunches } from './state/deployment-state.ts';
import type { DeploymentStore } from './state/deployment-store.ts';
import type { LaunchRecord } from './state/launch-record.ts';
import { endSuperseded, stopDeployment } from './stop.ts';

export interface DeployRequest extends AcceptRequest {
  /** A plan made before, which must still be fresh. */
  plan?: Plan;
  /** Instead of the one in model.yaml. */
  objective?: Objective;
  /** Return as soon as everything is submitted. */
  detach: boolean;
  /** 0: wait without end. */
  timeout_ms: number;
  credentials: CredentialFile;
  /** Asked before running jobs are replaced; no lock is held meanwhile. */
  confirm: (question: string) => Promise<boolean>;
  /** Asked before what cannot keep its promise is submitted; the plan's own words were said. */
  confirm_promise: (question: string) => Promise<boolean>;
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

/**
 * Time between two looks at state files while following, ms. Lower: news sooner; higher: less load on the filesystem.
 */
const follow_ms = 500;

export async function deploy(operations: Operations, request: DeployRequest): Promise<DeployResult> {
  const { spec } = request;
  const { emit, now_ms } = operations;
  const deployment = await acceptedPlan(operations, request);
  const { result, endpoint } = await deployment.openGateway();
  const deadline_ms = request.timeout_ms > 0 ? now_ms() + request.timeout_ms : Number.POSITIVE_INFINITY;
  await deployment.submit(deadline_ms);
  if (!request.detach) {
    await deployment.follow(deadline_ms);
    await forgetPrevious(operations, spec.name);
    await expectModels(operations, endpoint, { ...result, models: servedModels(spec.models) });
  }
  await leaveToKeeper(operations, spec.name);
  if (!request.detach) emit({ at_ms: now_ms(), kind: 'serving', url: result.url, models: result.models });
  return { ...result, serving: !request.detach };
}

/**
 * Plans, and writes the plan down. A person is asked between two plans, while nobody waits for a lock: what was agreed
 * to holds for the second one as far as that asks for no more.
 * @throws E_INTERRUPTED where the person says no, E_PLAN_INFEASIBLE; nothing is changed then
 */
async function acceptedPlan(operations: Operations, request: DeployRequest): Promise<DeploymentInProgress> {
  const { spec } = request;
  const consent = { replaced: new Set<string>(), promise: false };
  for (;;) {
    const { deployment, questions } = await operations.store.whilePlanning(operations, () =>
      planOnce(operations, request, consent),
    );
    if (questions.replaced.length === 0 && questions.broken.length === 0) return deployment;
    if (questions.broken.length > 0) {
      consent.promise = true;
      const question = `${spec.name} cannot keep its promise (see above). Deploy it all the same?`;
      if (!(await request.confirm_promise(question))) throw declined();
    }
    if (questions.replaced.length === 0) continue;
    const ends = request.stop_first ? 'end now' : 'be replaced';
    const question = `${questions.replaced.length} running job(s) of ${spec.name} will ${ends}. Go on?`;
    if (!(await request.confirm(question))) throw declined();
    for (const { launch_id } of questions.replaced) consent.replaced.add(launch_id);
  }
}

function declined(): HpcserveError {
  return new HpcserveError('E_INTERRUPTED', {
    what: 'nothing was changed',
    because: 'the question was answered with no',
    try: 'see what would change with `hpcserve plan`',
  });
}

/** @returns the deployment, accepted where there is no question left */
async function planOnce(
  operations: Operations,
  request: DeployRequest,
  consent: Consent & { promise: boolean },
): Promise<{
  deployment: DeploymentInProgress;
  questions: { replaced: readonly LaunchRecord[]; broken: readonly string[] };
}> {
  const { spec } = request;
  const { emit, now_ms } = operations;
  const objective = request.plan?.objective ?? request.objective;
  const made = await planNow(operations, spec, request.spec_file, { objective });
  const planned = request.plan ? useFresh(request.plan, made) : made;
  requireFeasible(planned.plan, { may_be_empty: spec.share !== undefined });
  refuseTakenNames(spec, othersThatServe(operations, spec.name));
  const deployment = await DeploymentInProgress.open(operations, request);
  const isFirst = !consent.promise && consent.replaced !== 'all' && consent.replaced.size === 0;
  const broken = brokenPromises(planned.plan);
  if (isFirst) {
    for (const message of planned.plan.warnings) emit({ at_ms: now_ms(), kind: 'warning', message });
    for (const message of broken) emit({ at_ms: now_ms(), kind: 'warning', message, severe: true });
  }
  if (broken.length > 0 && !consent.promise && !deployment.isUnchanged(planned))
    return { deployment, questions: { replaced: [], broken } };
  const replaced = await deployment.accept(planned, consent);
  return { deployment, questions: { replaced, broken: [] } };
}

/**
 * One deployment on its way from a plan to serving replicas:
 *
 *   accept ──► openGateway ──► submit ──► follow ──► the keeper's
 *      │            │             │          └─ all fail: the version before goes on, or everything is ended
 *      │            └─────────────┴─ refused: the same, and of a new deployment nothing is left
 *      └─ refused: nothing was changed
 */
class DeploymentInProgress {
  readonly #operations: Operations;
  readonly #request: DeployRequest;
  readonly #reconciler: Reconciler;
  readonly #name: string;
  /** There is none of that name yet. */
  readonly #isNew: boolean;

  private constructor(operations: Operations, request: DeployRequest, reconciler: Reconciler) {
    this.#operations = operations;
    this.#request = request;
    this.#reconciler = reconciler;
    this.#name = request.spec.name;
    this.#isNew = operations.store.load(this.#name) === undefined;
  }

  static async open(operations: Operations, request: DeployRequest): Promise<DeploymentInProgress> {
    const { loaded, store, runner, facts, now_ms, emit, command, signal } = operations;
    store.prepareDeployment(request.spec.name);
    const { site } = loaded;
    const reconciler = new Reconciler({ site, store, runner, facts, now_ms, emit, command, signal });
    const deployment = new DeploymentInProgress(operations, request, reconciler);
    // Jobs may have ended while nobody looked: what is started anew depends on it.
    if (!deployment.#isNew) await reconciler.pass(request.spec.name, bookkeepingActions);
    return deployment;
  }

  /** It is deployed as it is: nothing is asked again. */
  isUnchanged({ spec_digest }: PlannedDeployment): boolean {
    const before = this.#operations.store.load(this.#name);
    return before?.desired === 'serving' && before.spec_digest === spec_digest;
  }

  /** @returns launches whose end nobody has agreed to; nothing was changed then */
  async accept(planned: PlannedDeployment, consent: Consent): Promise<readonly LaunchRecord[]> {
    const { store } = this.#operations;
    try {
      return await acceptPlan(this.#operations, this.#request, planned, consent);
    } catch (error) {
      if (this.#isNew && store.load(this.#name) === undefined) store.remove(this.#name);
      throw error;
    }
  }

  /** The gateway, and the key for it. */
  async openGateway(): Promise<{ endpoint: GatewayEndpoint; result: Omit<DeployResult, 'serving'> }> {
    const { spec, credentials } = this.#request;
    const { emit, now_ms, loaded, store } = this.#operations;
    // Nothing was submitted yet: no deployment is left behind that says it wants to serve.
    const { endpoint, started, key } = await this.#orAbandon(() =>
      ensureGatewayAndKey(this.#operations, credentials),
    );
    const url = baseUrl(endpoint);
    if (started) emit({ at_ms: now_ms(), kind: 'gateway_up', url });
    for (const message of await warningLines(loaded.site, store.layout, endpoint))
      emit({ at_ms: now_ms(), kind: 'warning', message });
    const models = spec.models.map((model) => model.name);
    const result = { deployment: this.#name, site: loaded.site.name, url, key, models, ...waysOf(endpoint) };
    return { endpoint, result };
  }

  /** Passes until every launch is submitted: the site may allow only so many a minute. @throws E_DEPLOYMENT_TIMEOUT */
  async submit(deadline_ms: number): Promise<void> {
    const waiting = await this.#orAbandon(() => this.#submitUntil(deadline_ms));
    if (waiting === 0) return;
    throw new HpcserveError('E_DEPLOYMENT_TIMEOUT', {
      what: `${waiting} job(s) of ${this.#name} are not submitted after ${Math.round(this.#request.timeout_ms / 1000)} s`,
      because: 'the site allows only so many submissions a minute',
      try: 'run the same command again: it goes on where this one stopped',
    });
  }

  /** @returns how many still wait when the time is over */
  async #submitUntil(deadline_ms: number): Promise<number> {
    const { signal, now_ms } = this.#operations;
    for (;;) {
      const { state } = await this.#reconciler.pass(this.#name);
      const waiting = state.launches.filter((launch) => launch.phase === 'planned').length;
      if (waiting === 0 || state.desired === 'stopped' || now_ms() >= deadline_ms) return waiting;
      await sleep(follow_ms, undefined, { signal });
    }
  }

  /** Until it serves. @throws E_DEPLOYMENT_FAILED, E_DEPLOYMENT_TIMEOUT */
  async follow(deadline_ms: number): Promise<void> {
    const { signal, now_ms } = this.#operations;
    for (;;) {
      signal.throwIfAborted();
      const seen = await this.#reconciler.pass(this.#name);
      if (seen.state.desired === 'stopped')
        throw new HpcserveError('E_DEPLOYMENT_FAILED', {
          what: `${this.#name} was stopped while it started`,
          because: 'another command asked for it',
          try: 'deploy it again',
        });
      const assessment = assess(seen.state, seen.observation);
      const isUp = assessment.phase === 'serving' || assessment.phase === 'asleep';
      if (isUp && liveLaunches(seen.state).every((launch) => !launch.superseded)) return;
      if (cannotServe(assessment)) throw await this.#failed(assessment, seen);
      if (now_ms() >= deadline_ms)
        throw new HpcserveError('E_DEPLOYMENT_TIMEOUT', {
          what: `${this.#name} does not serve after ${Math.round(this.#request.timeout_ms / 1000)} s`,
          because: assessment.reasons,
        });
      await sleep(follow_ms, undefined, { signal });
    }
  }

  /**
   * @returns the error to show; where nothing of it serves, it is ended, for its jobs would only burn their allocation
   */
  async #failed(
    { phase }: Assessment,
    { state, observation }: { state: DeploymentState; observation: Observation },
  ): Promise<HpcserveError> {
    const wanted = wantedLaunches(state);
    const launch =
      wanted.find((each) => {
        const units = observation.launches.get(each.launch_id)?.units ?? [];
        return units.some((unit) => unit.state === 'failed' || unit.state === 'lost');
      }) ?? wanted[0]!;
    const error = state.failure
      ? HpcserveError.fromJSON(state.failure)
      : diagnose(state, this.#operations.store, launch, observation.launches.get(launch.launch_id));
    if (phase !== 'failed') return error;
    const rolledBack = await goBack(this.#operations, this.#name, error);
    if (rolledBack) return rolledBack;
    await stopDeployment(this.#operations, this.#name, { keep_gateway: false, failure: error });
    return error;
  }

  /** After a refusal what was submitted of this version is taken back; see `abandon`. */
  async #orAbandon<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw await abandon(this.#operations, this.#name, this.#isNew, error);
    }
  }
}

function othersThatServe({ store }: Operations, name: string): DeploymentSpec[] {
  return store
    .list()
    .filter((each) => each !== name)
    .flatMap((each) => {
      const state = loadIfWhole(store, each);
      return state?.desired === 'serving' ? [state.spec] : [];
    });
}

/** One whose file is damaged is told of where it is asked for, and keeps nobody else from being deployed. */
function loadIfWhole(store: DeploymentStore, name: string): DeploymentState | undefined {
  try {
    return store.load(name);
  } catch (error) {
    if (error instanceof HpcserveError && error.code === 'E_DEPLOYMENT_STATE') return undefined;
    throw error;
  }
}

/** All that is not serving has failed: waiting changes nothing. */
function cannotServe(assessment: Assessment): boolean {
  const { phase, replicas_serving, replicas_failed, replicas_wanted } = assessment;
  if (phase === 'failed') return true;
  return (
    phase === 'degraded' && replicas_failed > 0 && replicas_serving + replicas_failed === replicas_wanted
  );
}

/** Those that have a replica from the start; over several sites others may have it. */
function servedModels(models: readonly ModelSpec[]): string[] {
  return models.flatMap(({ name, replicas }) => (replicas === 0 ? [] : [name]));
}

/** The gateway finds replicas by itself; that it has not yet is worth a word. */
async function expectModels(
  { signal, emit, now_ms }: Operations,
  endpoint: GatewayEndpoint,
  { key, models }: Pick<DeployResult, 'key' | 'models'>,
): Promise<void> {
  const missing = await waitForModels(endpoint, key, models, signal);
  if (missing.length === 0) return;
  emit({
    at_ms: now_ms(),
    kind: 'warning',
    message: `the gateway does not list ${missing.join(', ')} yet, although its replicas serve: see \`hpcserve doctor\``,
  });
}

/**
 * From here on the keeper replaces what ends. While it was followed, a job that ended was this command's to report.
 * Where no keeper can be started the deployment serves all the same, as long as its jobs last.
 */
async function leaveToKeeper(operations: Operations, name: string): Promise<void> {
  const { store, now_ms, loaded, emit } = operations;
  await store.update(name, operations, (state) =>
    state.kept === true ? undefined : { ...state, kept: true, followed_by: undefined },
  );
  if (loaded.site.keeper.place !== 'login') return;
  try {
    await ensureKeeper(loaded, operations);
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

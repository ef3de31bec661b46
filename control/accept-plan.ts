/** The first step of `deploy`: what is wanted from now on is written down, and what runs and is unchanged is kept. */
import { hostname } from 'node:os';
import { join } from 'node:path';
import { copyPrivately } from '../host/copy-privately.ts';
import { identityOf } from '../host/process-identity.ts';
import { assumptions } from '../solver/keeping/replan.ts';
import type { DeploymentSpec } from '../spec/model-yaml.ts';
import { deploymentFiles } from '../spec/state-layout.ts';
import { launchIds, loadsOf, type PlannedDeployment } from './plan/planning.ts';
import { mergePlan } from './reconcile/decide.ts';
import { previousOf } from './reconcile/roll-back.ts';
import type { Operations } from './runner/operations.ts';
import {
  type DeploymentState,
  forgetOldest,
  liveLaunches,
  wantedLaunches,
} from './state/deployment-state.ts';
import type { LaunchRecord } from './state/launch-record.ts';
import { stopDeployment } from './stop.ts';

export interface AcceptRequest {
  spec: DeploymentSpec;
  /** Absolute path of model.yaml. */
  spec_file: string;
  /** End what runs of an older version before the new one is started, instead of after it serves. */
  stop_first: boolean;
}

/** What a person has agreed to. */
export interface Consent {
  /** Launches whose jobs may end, by id; all of those there are, where it is `all`. */
  replaced: ReadonlySet<string> | 'all';
}

/**
 * Writes down what is wanted from now on. Nobody is asked here, since the lock is held.
 * @returns launches whose jobs it would end and whose end nobody has agreed to; nothing is changed then
 */
export async function acceptPlan(
  operations: Operations,
  request: AcceptRequest,
  planned: PlannedDeployment,
  consent: Consent,
): Promise<readonly LaunchRecord[]> {
  const { spec } = request;
  const { store, emit, now_ms } = operations;
  const { plan } = planned;
  const may = ({ launch_id }: LaunchRecord): boolean =>
    consent.replaced === 'all' || consent.replaced.has(launch_id);
  if (request.stop_first) {
    const before = store.load(spec.name);
    if (isChanged(before, planned.spec_digest)) {
      const ended = liveLaunches(before!);
      if (!ended.every(may)) return ended;
      await stopDeployment(operations, spec.name, { keep_gateway: true });
    }
  }
  return store.locked(spec.name, operations, async (record) => {
    const before = record.found;
    if (isDeployed(before, planned.spec_digest)) {
      const what = `${spec.name}, which is deployed already and unchanged`;
      emit({ at_ms: now_ms(), kind: 'checking', what });
      return [];
    }
    const next = nextState(operations, request, planned, before);
    const replaced = next.launches.filter((launch) => launch.superseded && launch.phase !== 'ended');
    if (!replaced.every(may)) return replaced;
    emit({
      at_ms: now_ms(),
      kind: 'planned',
      launches: plan.launches.length,
      replicas: plan.models.reduce((sum, model) => sum + model.replicas, 0),
    });
    warnOfReplacing(operations, next.launches, replaced.length);
    const file = (key: 'spec' | 'previous_spec'): string =>
      join(store.folder(spec.name), deploymentFiles[key]);
    if (next.previous && !before?.previous) copyPrivately(file('spec'), file('previous_spec'));
    copyPrivately(request.spec_file, file('spec'));
    record.save(forgetOldest(next));
    return [];
  });
}

/** The next generation, with the launches of the plan merged into those there are. Pure but for the clock. */
function nextState(
  { store, loaded, facts, now_ms }: Operations,
  { spec, spec_file }: AcceptRequest,
  { plan, question, spec_digest, fingerprint }: PlannedDeployment,
  before: DeploymentState | undefined,
): DeploymentState {
  const generation = (before?.generation ?? 0) + 1;
  const ids = launchIds(store, spec.name, generation);
  return {
    format: 1,
    name: spec.name,
    site: loaded.site.name,
    owner: facts.user,
    generation,
    spec_digest,
    spec_file,
    spec,
    desired: 'serving',
    followed_by: { ...identityOf(process.pid)!, host: hostname(), since_ms: now_ms() },
    created_at_ms: before?.desired === 'serving' ? before.created_at_ms : now_ms(),
    updated_at_ms: now_ms(),
    models: plan.models,
    planning: assumptions(now_ms(), plan.offline ? undefined : question.node_kinds, loadsOf(plan.models)),
    previous: previousOf(before),
    launches: mergePlan(before?.launches ?? [], plan.launches, fingerprint, ids),
    gpu_hours_forgotten: before?.gpu_hours_forgotten,
  };
}

function warnOfReplacing(
  { emit, now_ms }: Operations,
  launches: readonly LaunchRecord[],
  replaced: number,
): void {
  if (replaced === 0) return;
  const kept = launches.filter((launch) => !launch.superseded && launch.phase !== 'planned').length;
  emit({
    at_ms: now_ms(),
    kind: 'warning',
    message: `${replaced} running job(s) are replaced once the new ones serve${kept > 0 ? `; ${kept} unchanged one(s) go on` : ''}; where there is no room for both, use --stop-first`,
  });
}

/** This version is what is wanted already, and nothing of it is over. */
function isDeployed(before: DeploymentState | undefined, digest: string): boolean {
  return (
    before?.desired === 'serving' &&
    before.spec_digest === digest &&
    wantedLaunches(before).every((launch) => launch.phase !== 'ended')
  );
}

function isChanged(before: DeploymentState | undefined, digest: string): boolean {
  return before !== undefined && before.spec_digest !== digest && liveLaunches(before).length > 0;
}

/** `status`: what a deployment is now, found by one poll and by reading state files; changes nothing. */

import { alwaysOnReplicas } from '../solver/locality/always-on-floor.ts';
import { type ErrorJson, HpcserveError } from '../spec/errors/error.ts';
import { concurrencyOf } from '../spec/launch.ts';
import { plannedName } from '../spec/model-pools.ts';
import { stageBounds } from '../spec/model-yaml.ts';
import type { PlannedGroup, PlannedLaunch, PlannedWorkload } from '../spec/plan.ts';
import { inspectGateway } from './gateway/process.ts';
import { inspectProcesses, type ProcessesReport } from './gateway/processes.ts';
import { baseUrl } from './gateway/url.ts';
import { readGranularityFile, type SeenPipeline } from './pipelines/granularity-file.ts';
import { liveFacts } from './plan/live-facts.ts';
import { kindsOfNodes } from './plan/site-offers.ts';
import { type Assessment, assess } from './reconcile/assess.ts';
import { type ActualUnit, differences, type PlannedUnit, plannedUnit } from './reconcile/confirm.ts';
import { nodeLost } from './reconcile/decide.ts';
import { jobLog } from './reconcile/diagnose.ts';
import {
  describeDevices,
  type Observation,
  observe,
  pollJobsIfReachable,
  type UnitStatus,
} from './reconcile/observe.ts';
import type { Operations } from './runner/operations.ts';
import { readSitesFile, type SitesModel } from './scaler/sites/sites-file.ts';
import { guaranteesOf, type ModelGuarantee } from './scavenger/guarantees.ts';
import { type DeploymentState, liveLaunches, wantedLaunches } from './state/deployment-state.ts';
import type { DeploymentStore } from './state/deployment-store.ts';
import type { JobSnapshot } from './state/job-snapshot.ts';
import type { LaunchRecord } from './state/launch-record.ts';

export interface GatewayReport {
  state: 'running' | 'elsewhere' | 'silent' | 'not_running';
  url?: string;
  hostname?: string;
  because?: string;
  /** Absent unless it runs. */
  relays?: ProcessesReport;
}

export interface LaunchReport {
  launch_id: string;
  job_id?: string;
  node_kind: string;
  where?: string;
  /** Of an earlier version of the deployment, on its way out. */
  superseded: boolean;
  /** Beyond what the deployment has, on idle nodes; see docs/scavenging.md. */
  scavenged: boolean;
  phase: string;
  job?: JobSnapshot;
  nodes: {
    node: string;
    phase: string;
    devices: string[];
    /** What its agent says is wrong and does not stop it. */
    notices: ErrorJson[];
  }[];
  units: UnitReport[];
  /** It answers for no replica, and computes stages of these: part `number` of `of` jobs, from 1. */
  lends_to?: { units: string[]; number: number; of: number } | undefined;
  log_file: string;
}

/** A replica as it stands, as it was planned, and whether the two agree. */
export interface UnitReport extends Omit<UnitStatus, 'given'> {
  planned: PlannedUnit;
  /** Absent until its agent says what it was given, and after its end. */
  actual?: ActualUnit;
  /** Absent as long as there is nothing to compare. */
  matches?: boolean;
  /** Where it does not match: in what, one sentence each. */
  differences?: string[];
}

export interface ModelReport {
  name: string;
  engine: string;
  replicas_wanted: number;
  replicas_serving: number;
  /** What the plan was made for, and what it expects of the replicas, by where they run. */
  workload?: PlannedWorkload;
  groups: PlannedGroup[];
}

/** Node kinds by node name; undefined where nobody can be asked. */
export type NodeKinds = () => Promise<ReadonlyMap<string, readonly string[]> | undefined>;

/** Asks Slurm once: what a node is does not change while one looks. */
export function nodeKindsOf(operations: Operations): NodeKinds {
  let known: ReadonlyMap<string, readonly string[]> | undefined;
  return async () => {
    if (known || !operations.slurm) return known;
    try {
      const live = await liveFacts(operations);
      known = live && kindsOfNodes(operations.loaded.site, live);
    } catch (error) {
      // That Slurm does not answer is said where jobs are asked for.
      if (!(error instanceof HpcserveError) || error.code !== 'E_SLURM_UNREACHABLE') throw error;
    }
    return known;
  };
}

export interface DeploymentReport extends Assessment {
  name: string;
  site: string;
  owner: string;
  generation: number;
  spec_file: string;
  created_at_ms: number;
  updated_at_ms: number;
  models: ModelReport[];
  launches: LaunchReport[];
  /** When it was planned, since when cluster or load differ from that, and what came of planning it again last. */
  planning?: Pick<NonNullable<DeploymentState['planning']>, 'planned_ms' | 'differs_since_ms' | 'last'>;
  /** The last of its jobs that was ended because its node was lost, before Slurm had noticed. */
  node_loss?: { at_ms: number; job_id: string; because: string };
  /** What may be promised of its replicas on preemptible nodes. */
  guarantees: ModelGuarantee[];
  /** Sites of the deployment that this is a share of, those without a replica left out. */
  shared_with?: string[];
  /** Models whose replicas follow demand over those sites, as the keeper of this one last saw them. */
  over_sites?: OverSitesReport[];
  /** Pipelines whose stages follow the load, as the keeper last saw them. */
  pipelines?: SeenPipeline[];
}

export interface OverSitesReport extends SitesModel {
  /** Replicas of all sites together. */
  replicas_min: number;
  replicas_max: number;
}

/**
 * Asks about the jobs of all of them at once.
 * @param nodeKinds lets each replica's node be confirmed; without it only engine and devices are.
 */
export async function reportDeployments(
  operations: Operations,
  states: readonly DeploymentState[],
  nodeKinds?: NodeKinds,
): Promise<DeploymentReport[]> {
  const { store, runner, now_ms, loaded } = operations;
  const now = now_ms();
  const guarantees = (state: DeploymentState): ModelGuarantee[] =>
    state.desired !== 'serving'
      ? []
      : guaranteesOf(
          {
            deployment: state.name,
            models: state.spec.models,
            launches: wantedLaunches(state).map(({ planned }) => planned),
          },
          loaded.site,
          store.layout,
          now,
        );
  const lives = states.some((state) => liveLaunches(state).length > 0);
  const [poll, kinds] = await Promise.all([
    pollJobsIfReachable(states, store, runner, now),
    lives ? nodeKinds?.() : undefined,
  ]);
  return states.map((state) => ({
    ...reportDeployment(store, state, observe(state, store, poll, now), kinds),
    guarantees: guarantees(state),
  }));
}

function reportDeployment(
  store: DeploymentStore,
  state: DeploymentState,
  observation: Observation,
  kinds: Awaited<ReturnType<NodeKinds>>,
): Omit<DeploymentReport, 'guarantees'> {
  const launches = state.launches
    .filter((launch) => !launch.superseded || launch.phase !== 'ended')
    .map((launch): LaunchReport => {
      const status = observation.launches.get(launch.launch_id);
      const job = launch.phase === 'ended' ? launch.last : status?.job;
      return {
        launch_id: launch.launch_id,
        node_kind: launch.planned.node_kind,
        superseded: launch.superseded,
        scavenged: launch.planned.scavenged !== undefined,
        phase: launch.phase,
        nodes: (status?.agents ?? []).map((agent) => ({
          node: agent.node,
          phase: agent.phase,
          devices: describeDevices(agent.devices),
          notices: agent.notices ?? [],
        })),
        units: (status?.units ?? []).map((unit) => unitReport(launch, unit, kinds)),
        lends_to: lendsTo(launch.planned),
        log_file: jobLog(state, store, launch.launch_id),
        job_id: launch.job_id,
        where: launch.where,
        job,
      };
    });
  const units = launches
    .filter((launch) => !launch.superseded && !launch.scavenged)
    .flatMap((launch) => launch.units);
  return {
    name: state.name,
    site: state.site,
    owner: state.owner,
    generation: state.generation,
    spec_file: state.spec_file,
    created_at_ms: state.created_at_ms,
    updated_at_ms: state.updated_at_ms,
    planning: state.planning && planningReport(state.planning),
    node_loss: lastLoss(state),
    shared_with: state.spec.share?.sites.flatMap(({ site, models }) => (models.length > 0 ? [site] : [])),
    over_sites: overSites(store, state),
    pipelines: pipelinesOf(store, state, units),
    ...assess(state, observation),
    models: state.models.map((model) => {
      const own = units.filter((unit) => plannedName(unit.model, unit.pool) === model.model);
      return {
        name: model.model,
        engine: model.engine,
        replicas_wanted: model.replicas,
        replicas_serving: own.filter((unit) => unit.state === 'serving').length,
        workload: model.workload,
        groups: model.groups ?? [],
      };
    }),
    launches,
  };
}

function lendsTo({ part }: PlannedLaunch): LaunchReport['lends_to'] {
  if (part === undefined || part.lends_to.length === 0) return undefined;
  const units = part.lends_to.map(({ unit }) => unit);
  return { units, number: part.node_index + 1, of: part.jobs };
}

/** Undefined where no model of it follows demand over several sites, or no keeper has looked yet. */
function overSites(
  { layout }: DeploymentStore,
  { name, spec, desired }: DeploymentState,
): OverSitesReport[] | undefined {
  const { share, models } = spec;
  if (share === undefined || desired !== 'serving' || models.every(({ scaling }) => !scaling))
    return undefined;
  const seen = readSitesFile(layout).filter(({ deployment, of }) => deployment === name && of === share.of);
  const reports = models.flatMap(({ name: model, scaling }) => {
    const found = seen.find((each) => each.model === model);
    if (!scaling || !found) return [];
    return [{ ...found, replicas_min: alwaysOnReplicas(scaling), replicas_max: scaling.max }];
  });
  return reports.length > 0 ? reports : undefined;
}

/** Of units that there are; undefined where no pipeline of it changes its stages. */
function pipelinesOf(
  { layout }: DeploymentStore,
  { name, spec, desired }: DeploymentState,
  units: readonly UnitReport[],
): SeenPipeline[] | undefined {
  const changes = spec.models.some((model) => {
    const { stages_min, stages_max } = stageBounds(model);
    return stages_min < stages_max;
  });
  if (!changes || desired !== 'serving') return undefined;
  const own = readGranularityFile(layout).filter(
    ({ deployment, unit }) => deployment === name && units.some((each) => each.unit === unit),
  );
  return own.length > 0 ? own : undefined;
}

function lastLoss({ launches }: DeploymentState): DeploymentReport['node_loss'] {
  const losses = launches.flatMap((launch) =>
    launch.phase === 'ended' && launch.last.state === nodeLost
      ? [{ at_ms: launch.ended_at_ms, job_id: launch.last.job_id, because: launch.last.reason ?? '' }]
      : [],
  );
  return losses.sort((a, b) => a.at_ms - b.at_ms).at(-1);
}

function planningReport({
  planned_ms,
  differs_since_ms,
  last,
}: NonNullable<DeploymentState['planning']>): DeploymentReport['planning'] {
  return { planned_ms, differs_since_ms, last };
}

function unitReport(
  { planned: launch }: LaunchRecord,
  { given, ...status }: UnitStatus,
  kinds: Awaited<ReturnType<NodeKinds>>,
): UnitReport {
  const unit = launch.units.find((each) => each.unit === status.unit)!;
  const planned = plannedUnit(launch, unit);
  // The native engine takes what it is told.
  if (unit.engine === 'native' && status.state === 'serving')
    status.limits = {
      max_sequences: concurrencyOf(unit),
      context_tokens: unit.context_tokens,
      kv_tokens: unit.kv_tokens,
    };
  const over = status.state === 'lost' || status.state === 'unloaded' || status.state === 'pending';
  if (given === undefined || status.node === undefined || over) return { ...status, planned };
  const node_kinds = kinds?.get(status.node);
  const actual: ActualUnit = {
    node: status.node,
    node_kinds: node_kinds && [...node_kinds],
    ...given,
  };
  const found = differences(planned, actual);
  return {
    ...status,
    planned,
    actual,
    matches: found.length === 0,
    differences: found.length > 0 ? found : undefined,
  };
}

export async function reportGateway(operations: Operations): Promise<GatewayReport> {
  const { layout } = operations.store;
  const status = await inspectGateway(layout);
  if (status.state === 'not_running') return { state: status.state, because: status.because };
  const report: GatewayReport = {
    state: status.state,
    url: baseUrl(status.endpoint),
    hostname: status.endpoint.hostname,
    because: 'because' in status ? status.because : undefined,
  };
  const relays = await inspectProcesses(layout, status);
  if (relays) report.relays = relays;
  return report;
}

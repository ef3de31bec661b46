/** From model.yaml and a site to a plan: models are looked at, offers collected, placement asked. */
import { statSync } from 'node:fs';
import { dirname } from 'node:path';
import { offeredDevice } from '../../solver/catalog/offered-device.ts';
import type { AllocationLimits } from '../../solver/placement/allocation.ts';
import { checkPlacement } from '../../solver/placement/check.ts';
import { comparableLaunch } from '../../solver/placement/comparable-launch.ts';
import { place } from '../../solver/placement/placement.ts';
import { poolsOf } from '../../solver/placement/pools.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { servedNameOf } from '../../spec/model-pools.ts';
import type { DeploymentSpec, ModelSpec, Objective } from '../../spec/model-yaml.ts';
import {
  defaultPlacementSettings,
  type EngineSeen,
  type NodeKindOffer,
  type PlacementModel,
  type PlacementQuestion,
  type Plan,
  type PlannedLaunch,
  type PlannedModel,
  type PlannedWorkload,
  type RejectedOption,
  type RunningReplicas,
} from '../../spec/plan.ts';
import type { SiteConfig } from '../../spec/site.ts';
import { parseSlurmDuration_s } from '../../spec/slurm-types.ts';
import type { DeploymentStore } from '../state/deployment-store.ts';
import { digestOf } from '../state/digest.ts';
import { checkModels } from './check-models.ts';
import { refuseWithoutEffect } from './engine-fields.ts';
import { sealPlan } from './plan-file.ts';
import { unusedDevices } from './whole-nodes.ts';

export interface PlanningInput {
  spec: DeploymentSpec;
  /** Path of model.yaml; relative sources start at its folder. */
  spec_file: string;
  site: SiteConfig;
  offers: readonly NodeKindOffer[];
  /** Looks at a model's files. @throws HpcserveError E_MODEL_… */
  inspect: (model: ModelSpec, folder: string, site: SiteConfig) => Promise<PlacementModel>;
  now_ms: number;
  /** The offers come from the site config alone. */
  offline?: boolean;
  /** Instead of the one in model.yaml. */
  objective?: Objective;
  /** What runs of this deployment now; absent where it is not deployed. */
  running?: RunningReplicas[];
  /** What the gateways measured, by model name; model.yaml's own words come first. */
  measured?: ReadonlyMap<string, PlannedWorkload>;
  /** What engines of its replicas said that they chose, by model name. */
  seen?: ReadonlyMap<string, EngineSeen[]>;
  /** When the search for a better plan ends. */
  limits?: AllocationLimits;
  /** That no such nodes are offered as model.yaml names is no mistake: other sites have them, or they are gone. */
  kinds_may_lack?: boolean;
}

export interface PlannedDeployment {
  plan: Plan;
  /** What the plan answers. */
  question: PlacementQuestion;
  /** Equal digests: the same specification over the same model files. */
  spec_digest: string;
  /** For `mergePlan`: launches of equal fingerprint run the same thing. */
  fingerprint: (launch: PlannedLaunch) => string;
}

/** A question with what tells later whether its answer still holds. */
export interface AskedDeployment extends Omit<PlannedDeployment, 'plan'> {
  /** See `Plan.inputs_digest`. */
  inputs_digest: string;
  /** What people should know of the site, whatever the answer. */
  warnings: string[];
}

/** Looks at the models and writes down what placement is asked. @throws HpcserveError of the model's files */
export async function buildPlacementQuestion(input: PlanningInput): Promise<AskedDeployment> {
  const { spec, site } = input;
  const folder = dirname(input.spec_file);
  checkModels(
    spec,
    site.name,
    input.kinds_may_lack ? undefined : [...new Set(input.offers.map((offer) => offer.node_kind))],
    site.runtime.remote_media_domains,
  );
  const models: PlacementModel[] = [];
  for (const model of spec.models) {
    const workload = workloadOf(model, input.measured);
    const seen = input.seen?.get(model.name);
    const inspected = await input.inspect(model, folder, site);
    if (workload !== undefined) inspected.workload = workload;
    if (seen !== undefined) inspected.seen = seen;
    models.push(...poolsOf(inspected));
  }
  const stamps = Object.fromEntries(models.map((model) => [model.model_path, stampOf(model.model_path)]));
  const limit = spec.slurm.time_limit === undefined ? undefined : parseSlurmDuration_s(spec.slurm.time_limit);
  const { partition } = spec.slurm;
  const question: PlacementQuestion = {
    deployment: spec.name,
    site: site.name,
    models,
    node_kinds: [...input.offers],
    settings: placementSettings(site, spec),
    objective: input.objective ?? spec.objective,
  };
  if (limit !== undefined) question.time_limit_s = limit;
  if (partition !== undefined)
    question.partitions = typeof partition === 'string' ? partition.split(',') : partition;
  if (input.running) question.running = input.running;
  return {
    question,
    inputs_digest: digestOf({ spec, stamps, site, offers: input.offers.map(withoutCounts) }),
    spec_digest: digestOf({ spec, stamps }),
    fingerprint: (launch) => {
      const kept = comparableLaunch(launch);
      const units = kept.units.map((unit) => ({ ...unit, model: { ...unit.model, ...plannedWith } }));
      const files = units.map((unit) => stamps[unit.model_path]);
      return digestOf({ launch: { ...kept, units }, slurm: spec.slurm, files });
    },
    warnings: [...unknownDevices(input.offers), ...slurmWithoutEffect(spec, site)],
  };
}

/** @throws HpcserveError of the model's files; an infeasible plan is returned, not thrown. */
export async function planDeployment(input: PlanningInput): Promise<PlannedDeployment> {
  const { inputs_digest, warnings, ...asked } = await buildPlacementQuestion(input);
  const placement = place(asked.question, input.limits);
  refuseWithoutEffect(input.spec.models, placement.models);
  const plan: Parameters<typeof sealPlan>[0] = {
    format: 1,
    deployment: input.spec.name,
    site: input.site.name,
    made_at_ms: input.now_ms,
    inputs_digest,
    ...placement,
    warnings: [
      ...new Set([...warnings, ...placement.warnings, ...unusedDevices(placement.launches, input.offers)]),
    ],
  };
  if (input.offline) plan.offline = true;
  return { ...asked, plan: sealPlan(plan) };
}

/** What decides where replicas run, and is no matter of one that runs. */
const plannedWith = {
  replicas: 0,
  min_stable_replicas: 0,
  workload: undefined,
  precision_choices: [],
  devices: undefined,
  scavenger: undefined,
  scaling: undefined,
} as const;

function workloadOf(
  { name, workload }: ModelSpec,
  measured: PlanningInput['measured'],
): PlannedWorkload | undefined {
  return workload ? { ...workload, source: 'given' } : measured?.get(name);
}

/** What a plan was made for, by served name: pools of one model have the same. */
export function loadsOf(models: readonly PlannedModel[]): Record<string, PlannedWorkload> {
  return Object.fromEntries(models.map(({ model, workload }) => [servedNameOf(model), workload]));
}

function placementSettings(
  site: SiteConfig,
  { share, sites }: DeploymentSpec,
): PlacementQuestion['settings'] {
  const { penalties, ...rest } = defaultPlacementSettings;
  const { shared_time_max } = site.planning;
  // Looks from cron change no stages; and of several sites, requests come to the gateway of one.
  const changes_stages = site.keeper.place !== 'none' && share === undefined && sites === undefined;
  return {
    ...rest,
    shared_time_max,
    changes_stages,
    penalties: { ...penalties, ...site.planning.penalties },
  };
}

/**
 * @param may_be_empty a share of a deployment over several sites, whose replicas come by demand
 * @throws E_PLAN_INFEASIBLE with what rejected each option, in the user's words
 */
export function requireFeasible(plan: Plan, { may_be_empty = false } = {}): void {
  if (plan.unplaced.length === 0 && (plan.launches.length > 0 || may_be_empty)) return;
  const because = [
    ...plan.too_large.map((model) => model.because),
    ...(plan.clash ? [plan.clash.because] : []),
    ...plan.unplaced.flatMap(({ model, replicas }) => [
      `${replicas} replica(s) of ${model} found no place`,
      ...rejectionLines(plan.rejected.filter((option) => option.model === model)).map(({ line }) => line),
    ]),
    ...(plan.unplaced.length > 0 && plan.rejected.length === 0
      ? [`node_kinds of the site config of ${plan.site} is empty: there is nothing to place them on`]
      : []),
  ];
  throw new HpcserveError('E_PLAN_INFEASIBLE', {
    what:
      plan.launches.length === 0 && plan.unplaced.length === 0
        ? 'the deployment asks for no replica at all'
        : `${plan.deployment} cannot be placed on ${plan.site}`,
    because: because.length > 0 ? because : 'replicas is 0 for every model',
    details: { rejected: plan.rejected, unplaced: plan.unplaced },
  });
}

/** Options of one model that were rejected for the same reason are one line; what the person asked for comes last. */
export function rejectionLines(
  rejected: readonly RejectedOption[],
): { line: string; constraint: RejectedOption['constraint'] }[] {
  const groups = new Map<string, { first: RejectedOption; kinds: string[] }>();
  for (const option of rejected) {
    const key = JSON.stringify([option.engine, option.constraint, option.because]);
    const group = groups.get(key) ?? { first: option, kinds: [] };
    group.kinds.push(option.node_kind);
    groups.set(key, group);
  }
  const asked = ({ first }: { first: RejectedOption }): number => Number(first.constraint.endsWith('_asked'));
  return [...groups.values()]
    .sort((a, b) => asked(a) - asked(b))
    .map(({ first: { engine, because, constraint }, kinds }) => ({
      line: `${[...new Set(kinds)].join(', ')}${engine ? ` (${engine})` : ''}: ${because}`,
      constraint,
    }));
}

/**
 * The plan that was made before, to be carried out as it is.
 * @throws E_PLAN_STALE when the world has moved on since it was made, or a rule is broken by it.
 */
export function useFresh(plan: Plan, made: PlannedDeployment): PlannedDeployment {
  requireFresh(plan, made.plan);
  const wrong = checkPlacement(made.question, plan);
  if (wrong.length > 0)
    throw new HpcserveError('E_PLAN_STALE', {
      what: `the plan of ${new Date(plan.made_at_ms).toISOString()} cannot be carried out on what there is now`,
      because: wrong,
      try: 'see which nodes are down or drained with `hpcserve nodes`, or make the plan again with `hpcserve plan FILE --out PLAN`',
    });
  return { ...made, plan };
}

function requireFresh(plan: Plan, now: Plan): void {
  if (plan.inputs_digest === now.inputs_digest && plan.deployment === now.deployment) return;
  throw new HpcserveError('E_PLAN_STALE', {
    what: `the plan of ${new Date(plan.made_at_ms).toISOString()} is stale`,
    because:
      plan.deployment !== now.deployment || plan.site !== now.site
        ? `it was made for ${plan.deployment} on ${plan.site}, not for ${now.deployment} on ${now.site}`
        : plan.offline
          ? 'it was made without asking Slurm, and Slurm says other things than the site config'
          : 'model.yaml, a model file, the site config or what the nodes offer has changed since',
  });
}

/**
 * Names of launches are derived, so that `render` shows the very script that the next `deploy` submits:
 * 64 bits over where the state lies, the deployment, its generation, and what the launch is. One that was forgotten
 * begins at generation 1 again, and Slurm may still tell of its jobs.
 */
export function launchIds(store: DeploymentStore, deployment: string, generation: number) {
  const { root } = store.layout;
  const forgotten = store.lastForgotten();
  return (fingerprint: string, index: number): string =>
    digestOf({ root, forgotten, deployment, generation, fingerprint, index }).slice(0, 16);
}

/**
 * GPUs whose names nobody knows, whether or not they were chosen: the guess at their figures may be why not.
 * The words are those of the placement's own warning.
 */
function unknownDevices(offers: readonly NodeKindOffer[]): string[] {
  return offers.flatMap(({ node_kind, devices, cpus, isa = [], architecture }) => {
    if (devices.kind === 'cpu' || devices.emulated) return [];
    const { note } = offeredDevice(devices, { cpus, isa, architecture }, devices.figures);
    return note === undefined ? [] : [`${node_kind}: ${note}`];
  });
}

function slurmWithoutEffect({ slurm }: DeploymentSpec, site: SiteConfig): string[] {
  const { extra, remove, ...rest } = slurm;
  const keys = [
    ...Object.keys(rest),
    ...(extra.length > 0 ? ['extra'] : []),
    ...(remove.length > 0 ? ['remove'] : []),
  ];
  if (site.kind !== 'local' || keys.length === 0) return [];
  return [
    `${site.name} has no Slurm: ${keys.map((key) => `slurm.${key}`).join(', ')} of the deployment has no effect`,
  ];
}

/** How many nodes are there, idle and waited for changes by the minute and makes no plan stale. */
function withoutCounts(offer: NodeKindOffer): Partial<NodeKindOffer> {
  const {
    nodes_total: _total,
    nodes_idle: _idle,
    pool: _pool,
    free: _free,
    queue_wait_s: _wait,
    ...rest
  } = offer;
  return rest;
}

function stampOf(path: string): { bytes: number; modified_ms: number } {
  const { size, mtimeMs } = statSync(path);
  return { bytes: size, modified_ms: mtimeMs };
}

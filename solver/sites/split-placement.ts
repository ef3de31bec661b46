/**
 * A placement over several sites, divided: what each site is to have of it, and the part of the plan that is its own.
 */
import type { UnitSpec } from '../../spec/launch.ts';
import type {
  NodeKindOffer,
  Placement,
  PlacementQuestion,
  PlannedLaunch,
  PlannedModel,
} from '../../spec/plan.ts';
import type { ModelShare, SiteShare } from '../../spec/site-share.ts';
import { asDecided } from '../placement/decided-model.ts';
import { unitName } from '../placement/packing.ts';
import { type KindCost, replicaCosts } from '../placement/placement.ts';
import { kindAt, kindOfSite } from './kind-names.ts';

/** A share of requests is never written as 0: where replicas are, some come. */
const request_share_min = 1e-6;
/** Nothing is for free: what is compared is divided by it. */
const cost_min = 1e-6;

/**
 * @param question the merged one
 * @param budget_gpu_hours of the whole
 */
export function siteShares(
  placement: Placement,
  sites: readonly string[],
  question: PlacementQuestion,
  budget_gpu_hours?: number,
): SiteShare[] {
  const costs = costsOfScaled(placement, question);
  const shares = sites.map((site): SiteShare & { gpus: number } => ({
    site,
    models: [],
    gpus: gpusOf(launchesAt(placement, site)),
  }));
  for (const { spec } of question.models) {
    const counts = sites.map((site) => replicasAt(placement, site, spec.name));
    const having = counts.filter(({ replicas }) => replicas > 0).length;
    let stable = spec.min_stable_replicas;
    let nth = 0;
    for (const [at, share] of shares.entries()) {
      const { replicas, onStable, requests } = counts[at]!;
      const own = spec.scaling && costsAt(share.site, costs.get(spec.name) ?? []);
      // What follows demand is known to every site that can run it, also where it has no replica yet.
      if (replicas === 0 && !own?.length) continue;
      const min_stable_replicas = Math.min(stable, onStable);
      stable -= min_stable_replicas;
      const told: ModelShare = {
        name: spec.name,
        replicas,
        min_stable_replicas,
        scavenger_replicas: replicas === 0 ? 0 : part(spec.scavenger.replicas, having, nth++),
        request_share:
          replicas === 0 ? 1 / spec.scaling!.max : Math.min(1, Math.max(request_share_min, requests)),
      };
      if (own) told.costs = own;
      share.models.push(told);
    }
  }
  const gpus = shares.reduce((sum, share) => sum + share.gpus, 0);
  return shares.map(({ gpus: own, ...share }) => ({
    ...share,
    // Sites without a GPU use none of it.
    gpu_hours: budget_gpu_hours === undefined || own === 0 ? undefined : (budget_gpu_hours * own) / gpus,
  }));
}

/** Of the models that follow demand. */
function costsOfScaled(placement: Placement, question: PlacementQuestion): ReadonlyMap<string, KindCost[]> {
  const models = question.models.filter(({ spec }) => spec.scaling !== undefined);
  if (models.length === 0) return new Map();
  return replicaCosts(
    { ...question, models },
    (name) => placement.models.find(({ model }) => model === name)?.replicas ?? 1,
  );
}

/** By the kinds' own names there. */
function costsAt(site: string, costs: readonly KindCost[]): KindCost[] {
  return costs.flatMap(({ node_kind, cost }) => {
    const own = kindOfSite(site, node_kind);
    return own === undefined
      ? []
      : [{ node_kind: own, cost: Number(Math.max(cost_min, cost).toPrecision(4)) }];
  });
}

/** Of `total` among `parts`, as even as whole numbers are; the first ones have what remains. */
function part(total: number, parts: number, nth: number): number {
  return Math.floor(total / parts) + (nth < total % parts ? 1 : 0);
}

function launchesAt({ launches }: Placement, site: string): PlannedLaunch[] {
  return launches.filter(({ node_kind }) => kindOfSite(site, node_kind) !== undefined);
}

function gpusOf(launches: readonly PlannedLaunch[]): number {
  return launches.reduce(
    (sum, { devices_per_node: { kind, count }, node_count }) =>
      sum + (kind === 'cpu' ? 0 : count * node_count),
    0,
  );
}

function replicasAt(
  placement: Placement,
  site: string,
  model: string,
): { replicas: number; onStable: number; requests: number } {
  const count = (launches: readonly PlannedLaunch[]): number =>
    launches.flatMap(({ units }) => units).filter((unit) => unit.model.name === model).length;
  const launches = launchesAt(placement, site);
  const groups = placement.models.find((each) => each.model === model)?.groups ?? [];
  return {
    replicas: count(launches),
    onStable: count(launches.filter(({ tier }) => tier === 'stable')),
    requests: groups
      .filter(({ node_kind }) => kindOfSite(site, node_kind) !== undefined)
      .reduce((sum, { traffic_share }) => sum + traffic_share, 0),
  };
}

/**
 * The part of a placement that one site carries out, in the site's own names: as if it had been asked for its share
 * alone.
 * @param own what the site was asked for its share: its paths, its kinds, its number of replicas
 */
export function placementOfSite(
  placement: Placement,
  share: SiteShare,
  own: Pick<PlacementQuestion, 'models' | 'node_kinds'>,
): Placement {
  const { site } = share;
  const next = new Map<string, number>();
  const launches = launchesAt(placement, site).map(
    (launch): PlannedLaunch => ({
      ...launch,
      node_kind: kindOfSite(site, launch.node_kind)!,
      units: launch.units.map((unit) => unitAt(unit, share, own, next)),
    }),
  );
  const gpus = gpusOf(launches);
  const bounded = launches.every((launch) => gpusOf([launch]) === 0 || launch.time_limit_s !== undefined);
  const { objective, search } = placement;
  const here = inOwnNames(site, own.node_kinds);
  return {
    objective,
    search,
    launches,
    models: share.models.flatMap((each) => {
      const planned = placement.models.find(({ model }) => model === each.name);
      return planned ? [modelAt(planned, each, site, here)] : [];
    }),
    rejected: placement.rejected.flatMap((option) => {
      const node_kind = kindOfSite(site, option.node_kind);
      const asked = share.models.some(({ name }) => name === option.model);
      return node_kind === undefined || !asked
        ? []
        : [{ ...option, node_kind, because: here(option.because) }];
    }),
    warnings: placement.warnings.map(here),
    unplaced: [],
    too_large: [],
    gpu_count: gpus,
    gpu_hours: bounded
      ? launches.reduce((sum, launch) => sum + (gpusOf([launch]) * (launch.time_limit_s ?? 0)) / 3600, 0)
      : undefined,
  };
}

/** Replicas of a site are counted from 0 there. */
function unitAt(
  unit: UnitSpec,
  { models }: SiteShare,
  own: Pick<PlacementQuestion, 'models'>,
  next: Map<string, number>,
): UnitSpec {
  const { name } = unit.model;
  const { spec, model_path } = own.models.find((model) => model.spec.name === name)!;
  const { replicas } = models.find((each) => each.name === name)!;
  const at = next.get(name) ?? 0;
  next.set(name, at + 1);
  return { ...unit, unit: unitName(name, at), model_path, model: asDecided({ ...spec, replicas }, unit) };
}

function modelAt(
  planned: PlannedModel,
  { replicas, request_share }: ModelShare,
  site: string,
  here: (text: string) => string,
): PlannedModel {
  const groups = planned.groups.flatMap((group) => {
    const node_kind = kindOfSite(site, group.node_kind);
    return node_kind === undefined ? [] : [{ ...group, node_kind }];
  });
  const carried = groups.reduce((sum, { traffic_share }) => sum + traffic_share, 0);
  return {
    ...planned,
    engine: groups[0]?.engine ?? planned.engine,
    reasons: planned.reasons.map(here),
    replicas,
    workload: { ...planned.workload, rate_per_s: planned.workload.rate_per_s * request_share },
    groups: groups.map((group) => ({
      ...group,
      traffic_share: carried > 0 ? group.traffic_share / carried : group.replicas / replicas,
    })),
    // What could have been was weighed for all replicas on all sites, which is not what this site has.
    runners_up: [],
  };
}

/** Sentences in which the site's kinds have the names that they have there. */
function inOwnNames(site: string, offers: readonly NodeKindOffer[]): (text: string) => string {
  // The longest first: one name may begin like another.
  const kinds = [...new Set(offers.map(({ node_kind }) => node_kind))].sort((a, b) => b.length - a.length);
  return (text) => kinds.reduce((words, kind) => words.replaceAll(kindAt(site, kind), kind), text);
}

/** What may be promised of a model's replicas on preemptible nodes, from what became of such replicas lately. */
import { type Guarantee, guaranteeOf, type PresenceHistory } from '../../solver/scavenging/guarantee.ts';
import type { ModelSpec } from '../../spec/model-yaml.ts';
import type { PlannedLaunch } from '../../spec/plan.ts';
import type { SiteConfig } from '../../spec/site.ts';
import type { StateLayout } from '../../spec/state-layout.ts';
import { readHistory, type ScavengerHistory, type ScavengerRun } from './history.ts';
import { scavengerKinds } from './idle-holes.ts';

/** So much of the past counts: a week has its nights and its weekend. */
export const guarantee_days = 7;
const day_ms = 86_400_000;

export interface ModelGuarantee extends Guarantee {
  model: string;
  /** Replicas on stable nodes, which are there beside them. */
  stable: number;
  /** Preemptible kinds that the model may run on. */
  node_kinds: string[];
  /** What it is by: runs of the model, of others on these nodes, or nothing that was seen. */
  source: 'model' | 'node_kinds' | 'assumed';
  seen: PresenceHistory & { preemptions: number };
}

/**
 * One for each model that has or wants replicas on preemptible nodes.
 * @param launches of the plan, or those that the deployment is to consist of
 */
export function guaranteesOf(
  {
    deployment,
    models,
    launches,
  }: {
    deployment: string;
    models: readonly ModelSpec[];
    launches: readonly PlannedLaunch[];
  },
  site: SiteConfig,
  layout: StateLayout,
  now_ms: number,
): ModelGuarantee[] {
  const preemptible = scavengerKinds(site).map(({ name }) => name);
  if (preemptible.length === 0) return [];
  const history = readHistory(layout);
  return models.flatMap((model): ModelGuarantee[] => {
    const count = (tier: PlannedLaunch['tier']): number =>
      launches
        .filter((launch) => launch.tier === tier && !launch.scavenged)
        .reduce((sum, { units }) => sum + units.filter((unit) => unit.model.name === model.name).length, 0);
    const replicas = count('scavenger') + model.scavenger.replicas;
    const asked = model.devices.node_kinds;
    const node_kinds = preemptible.filter((kind) => asked.length === 0 || asked.includes(kind));
    if (replicas === 0 || node_kinds.length === 0) return [];
    const own = presenceOf(
      history,
      (run) => run.deployment === deployment && run.model === model.name,
      now_ms,
    );
    const there = presenceOf(history, (run) => node_kinds.includes(run.node_kind), now_ms);
    const [source, seen] =
      own.runs > 0
        ? (['model', own] as const)
        : there.runs > 0
          ? (['node_kinds', there] as const)
          : (['assumed', there] as const);
    return [
      {
        model: model.name,
        stable: count('stable'),
        node_kinds,
        source,
        seen,
        ...guaranteeOf(replicas, seen),
      },
    ];
  });
}

/** Ends by our own doing are no departures. */
const withdrawn = /^CANCELLED|^COMPLETED|^NEVER_SUBMITTED/;

/** What was seen of some runs within the last days. */
export function presenceOf(
  { runs }: ScavengerHistory,
  concerns: (run: ScavengerRun) => boolean,
  now_ms: number,
): PresenceHistory & { preemptions: number; runs: number } {
  const since_ms = now_ms - guarantee_days * day_ms;
  const seen = runs.filter((run) => concerns(run) && (run.ended_ms ?? now_ms) > since_ms);
  const departed = seen.filter(
    ({ ended_ms, end, served_ms }) =>
      ended_ms !== undefined && served_ms !== undefined && !withdrawn.test(end ?? ''),
  );
  const serving_ms = seen.reduce((sum, { served_ms, ended_ms = now_ms }) => {
    return served_ms === undefined ? sum : sum + Math.max(0, ended_ms - Math.max(since_ms, served_ms));
  }, 0);
  return {
    runs: seen.length,
    preemptions: seen.filter(({ end }) => end === 'PREEMPTED').length,
    departures: departed.length,
    serving_hours: serving_ms / 3_600_000,
    absences: departed.length,
    absent_s: absentTime_ms(departed, seen, now_ms) / 1000,
  };
}

/** Whoever of the same model and deployment serves next stands for the one that left; nobody yet: until now. */
function absentTime_ms(
  departed: readonly ScavengerRun[],
  seen: readonly ScavengerRun[],
  now_ms: number,
): number {
  const followers = seen
    .filter(({ served_ms }) => served_ms !== undefined)
    .sort((a, b) => a.served_ms! - b.served_ms!);
  const taken = new Set<ScavengerRun>();
  let absent_ms = 0;
  for (const run of [...departed].sort((a, b) => a.ended_ms! - b.ended_ms!)) {
    const next = followers.find(
      (other) =>
        !taken.has(other) &&
        other.deployment === run.deployment &&
        other.model === run.model &&
        other.served_ms! >= run.ended_ms!,
    );
    if (next) taken.add(next);
    absent_ms += (next?.served_ms ?? now_ms) - run.ended_ms!;
  }
  return absent_ms;
}

/** How a deployment is divided over sites: what each has, what stands, and what is left of before. Pure. */

import { alwaysOnReplicas } from '../../solver/locality/always-on-floor.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { SiteQuestion } from '../../spec/site-question.ts';
import type { Share, SiteShare } from '../../spec/site-share.ts';
import { digestOf } from '../state/digest.ts';
import type { AskOptions } from './ask-sites.ts';
import type { YamlMapping } from './model-file.ts';

/** Equal where nothing was changed of what is divided: the file, the models, the sites, what was typed. */
export function digestOfWhole(
  { site: _site, sites: _sites, ...whole }: YamlMapping,
  answers: readonly SiteQuestion[],
  { slurm, objective }: AskOptions,
): string {
  const [first] = answers;
  return digestOf({
    whole,
    sites: answers.map(({ site }) => site),
    slurm,
    objective,
    // Told where a model follows demand: whose word counts is part of a share.
    providers: answers.some(({ provider_id }) => provider_id !== undefined)
      ? answers.map(({ provider_id }) => provider_id)
      : undefined,
    models: first?.question.models.map(({ architecture, weight_bytes, summary }) => ({
      architecture,
      weight_bytes,
      quantization: summary?.quantization,
    })),
  });
}

/** A division that stands: some site runs its share of just this. */
export function standingShare(answers: readonly SiteQuestion[], of: string): Share | undefined {
  return answers
    .map(({ deployed }) => deployed)
    .find((deployed) => deployed?.desired === 'serving' && deployed.share?.of === of)?.share;
}

/** What a site gets; undefined where that is nothing. */
export function shareOf({ sites }: Share, name: string): SiteShare | undefined {
  return sites.find(({ site, models }) => site === name && models.length > 0);
}

/** Whether a site has replicas of before, and none by the new division. */
export function isLeft({ site, deployed }: SiteQuestion, share: Share): boolean {
  const runs = deployed !== undefined && (deployed.desired === 'serving' || deployed.live_launches > 0);
  return runs && shareOf(share, site) === undefined;
}

/** Sites that have a share of before and were left out this time: they are not asked, and not touched. */
export function sitesNotNamed(answers: readonly SiteQuestion[]): string[] {
  const named = new Set(answers.map(({ site }) => site));
  const before = answers.flatMap(({ deployed }) =>
    deployed?.desired === 'serving' ? (deployed.share?.sites ?? []) : [],
  );
  const left = before.flatMap(({ site, models }) => (models.length > 0 && !named.has(site) ? [site] : []));
  return [...new Set(left)];
}

/** `2 running job(s) on near`, of every site whose jobs belong to another division. */
export function jobsToReplace(answers: readonly SiteQuestion[], of: string): string[] {
  return answers.flatMap(({ site, deployed }) =>
    deployed && deployed.live_launches > 0 && deployed.share?.of !== of
      ? [`${deployed.live_launches} running job(s) on ${site}`]
      : [],
  );
}

/** `near: 2 replicas of toy, 1 of other`. */
export function describeShare({ sites }: Pick<Share, 'sites'>): string[] {
  return sites.map(({ site, models }) => {
    const counts = models.map(({ name, replicas }, at) =>
      at === 0
        ? `${replicas} ${replicas === 1 ? 'replica' : 'replicas'} of ${name}`
        : `${replicas} of ${name}`,
    );
    return `${site}: ${counts.join(', ') || 'nothing'}`;
  });
}

/** Where replicas of models that follow demand may come, the cheapest first: a sentence each. */
export function describeScaled({ models }: Pick<DeploymentSpec, 'models'>, { sites }: Share): string[] {
  return models.flatMap(({ name, scaling }) => {
    const kinds = sites.flatMap(({ site, models: own }) =>
      (own.find((model) => model.name === name)?.costs ?? []).map((each) => ({ site, ...each })),
    );
    if (!scaling || kinds.length === 0) return [];
    kinds.sort((a, b) => a.cost - b.cost);
    const places = kinds.map(
      ({ site, node_kind, cost }) => `${site}/${node_kind} (${Number(cost.toPrecision(2))})`,
    );
    return [
      `${name} follows demand, ${alwaysOnReplicas(scaling)} to ${scaling.max} replicas over all sites; what a replica costs: ${places.join(', ')}`,
    ];
  });
}

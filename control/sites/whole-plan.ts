/**
 * One plan over several sites: from what each of them answered, one search decides. Pure but for the clock of the
 * search.
 */
import { place } from '../../solver/placement/placement.ts';
import { kindOfSite } from '../../solver/sites/kind-names.ts';
import { mergeQuestions } from '../../solver/sites/merge-questions.ts';
import { meshFindings } from '../../solver/sites/mesh-links.ts';
import { siteShares } from '../../solver/sites/split-placement.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { PlacementQuestion, Plan, PlannedLaunch } from '../../spec/plan.ts';
import type { SiteQuestion } from '../../spec/site-question.ts';
import type { Share } from '../../spec/site-share.ts';
import { refuseWithoutEffect } from '../plan/engine-fields.ts';
import { sealPlan } from '../plan/plan-file.ts';
import { searchDeadline } from '../plan/search-deadline.ts';
import { unusedDevices } from '../plan/whole-nodes.ts';
import { digestOf } from '../state/digest.ts';

/** @throws E_CONFIG_CONFLICT where the file is of one site alone */
export function requireDivisible({ name, share }: DeploymentSpec): void {
  if (share !== undefined)
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `this file is one site's share of ${name}`,
      because: 'it has a key share, which deploy --sites writes',
      try: 'give the file of the whole',
    });
}

/**
 * @returns what looks odd and may be right all the same
 * @throws E_SITES_APART where the sites cannot be one mesh
 */
export function requireOneMesh(answers: readonly SiteQuestion[]): string[] {
  const { faults, advice, doubts } = meshFindings(answers.map(({ site, mesh }) => ({ site, mesh })));
  if (faults.length === 0) return doubts;
  throw new HpcserveError('E_SITES_APART', {
    what: `${answers.map(({ site }) => site).join(' and ')} are not one mesh: one URL would not answer for all of them`,
    because: faults,
    try: [...advice, 'see docs/several-sites.md'],
  });
}

export interface WholePlan {
  question: PlacementQuestion;
  plan: Plan;
  share: Share;
}

/**
 * Makes the one plan, and says what each site has of it.
 * @param of see `digestOfWhole`
 * @throws E_SITES_DIFFER, E_CONFIG_CONFLICT; an infeasible plan is returned, not thrown
 */
export function planWhole(
  answers: readonly SiteQuestion[],
  spec: DeploymentSpec,
  of: string,
  { search_ms, now_ms }: { search_ms: number; now_ms: number },
): WholePlan {
  const question = mergeQuestions(answers.map((answer) => answer.question));
  const placement = place(
    question,
    searchDeadline(search_ms, () => performance.now()),
  );
  refuseWithoutEffect(spec.models, placement.models);
  const launches = placement.launches.map((launch) => withPathsThere(launch, answers));
  const warnings = [
    ...answers.flatMap((answer) => answer.warnings.map((warning) => `${answer.site}: ${warning}`)),
    ...placement.warnings,
    ...unusedDevices(launches, question.node_kinds),
  ];
  const plan = sealPlan({
    format: 1,
    deployment: spec.name,
    site: question.site,
    made_at_ms: now_ms,
    offline: answers.some(({ offline }) => offline) || undefined,
    inputs_digest: digestOf(answers.map(({ inputs_digest }) => inputs_digest)),
    ...placement,
    launches,
    warnings: [...new Set(warnings)],
  });
  const names = answers.map(({ site }) => site);
  const sites = siteShares(placement, names, question, spec.budget?.gpu_hours).map((share, at) => ({
    ...share,
    provider_id: answers[at]!.provider_id,
  }));
  return { question, plan, share: { of, sites } };
}

/** A model lies elsewhere on each site. */
function withPathsThere(launch: PlannedLaunch, answers: readonly SiteQuestion[]): PlannedLaunch {
  const { question } = answers.find(({ site }) => kindOfSite(site, launch.node_kind) !== undefined)!;
  return {
    ...launch,
    units: launch.units.map((unit) => ({
      ...unit,
      model_path: question.models.find(({ spec }) => spec.name === unit.model.name)!.model_path,
    })),
  };
}

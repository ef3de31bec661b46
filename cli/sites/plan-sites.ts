/** `plan --sites`. */
import { search_ms } from '../../control/plan/plan-now.ts';
import { requireFeasible } from '../../control/plan/planning.ts';
import { type AskOptions, askSites } from '../../control/sites/ask-sites.ts';
import { describeScaled, describeShare, digestOfWhole, standingShare } from '../../control/sites/division.ts';
import { readAsWritten } from '../../control/sites/model-file.ts';
import { planWhole, requireDivisible, requireOneMesh } from '../../control/sites/whole-plan.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { SiteQuestion } from '../../spec/site-question.ts';
import type { CliContext } from '../context.ts';
import { printPlan } from '../format/plan-text.ts';
import { progressView } from '../progress/view.ts';
import type { ReadSpec } from '../site-session.ts';
import { loadSites } from './named-sites.ts';
import { SeveralSites } from './open-sites.ts';

export interface PlanSitesOptions extends AskOptions {
  explain: boolean;
  out?: string;
  search_ms?: number;
}

export async function planOverSites(
  context: CliContext,
  { spec, path }: ReadSpec,
  names: readonly string[],
  options: PlanSitesOptions,
): Promise<void> {
  if (options.out !== undefined)
    throw new HpcserveError('E_USAGE', {
      what: '--out does not go with several sites',
      because:
        'a plan in a file is one that a site carries out alone, and deploy --sites makes its own at once',
      try: 'leave --out out; `deploy --sites --dry-run` shows what would be done',
    });
  requireDivisible(spec);
  const loaded = loadSites(context, names);
  const view = progressView(context);
  using several = await SeveralSites.open(context, loaded);
  if (!context.json)
    view.show({
      at_ms: context.now_ms(),
      kind: 'checking',
      what: `what ${loaded.map(({ site }) => site.name).join(' and ')} offer`,
    });
  const asked = await askSites(several.sites, path, options).finally(() => view.close());
  const answers = asked.map(({ answer }) => answer);
  const of = digestOfWhole(readAsWritten(path), answers, options);
  const { plan, share } = planWhole(answers, spec, of, {
    search_ms: options.search_ms ?? search_ms,
    now_ms: context.now_ms(),
  });
  const apart = meshWarnings(answers);
  if (context.json) context.out(JSON.stringify({ ...plan, shares: share.sites, mesh_warnings: apart }));
  else {
    printPlan(context, plan, { explain: options.explain });
    if (plan.unplaced.length === 0)
      for (const line of [...describeShare(share), ...describeScaled(spec, share)]) context.out(line);
    for (const line of apart) context.note(`warning: ${line}`);
    const standing = standingShare(answers, of);
    if (standing)
      context.note(
        `${spec.name} is deployed and nothing has changed since: deploy leaves it as it is (${describeShare(standing).join('; ')})`,
      );
  }
  requireFeasible(plan);
}

/** What deploy would refuse is no reason not to show a plan. */
function meshWarnings(answers: readonly SiteQuestion[]): string[] {
  try {
    return requireOneMesh(answers);
  } catch (thrown) {
    if (!(thrown instanceof HpcserveError) || thrown.code !== 'E_SITES_APART') throw thrown;
    return [`deploy would refuse it: ${[thrown.message, ...thrown.because].join('; ')}`];
  }
}

/** `deploy --sites`: prints and asks what deploying over several sites decides and does (control/sites/). */
import { requireFeasible } from '../../control/plan/planning.ts';
import {
  type DeployedSites,
  type DeploySitesRequest,
  type Division,
  deployDivision,
  divide,
} from '../../control/sites/deploy-sites.ts';
import { describeScaled, describeShare, jobsToReplace, sitesNotNamed } from '../../control/sites/division.ts';
import { requireDivisible } from '../../control/sites/whole-plan.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { CliContext } from '../context.ts';
import { printPlan } from '../format/plan-text.ts';
import { style } from '../format/style.ts';
import { siteProgressView } from '../progress/view.ts';
import type { ReadSpec } from '../site-session.ts';
import { loadSites } from './named-sites.ts';
import { SeveralSites } from './open-sites.ts';

export interface DeploySitesOptions extends Omit<DeploySitesRequest, 'spec' | 'spec_file'> {
  yes: boolean;
  dry_run: boolean;
  plan?: string;
}

export async function deployOverSites(
  context: CliContext,
  read: ReadSpec,
  names: readonly string[],
  options: DeploySitesOptions,
): Promise<void> {
  if (options.plan !== undefined)
    throw new HpcserveError('E_USAGE', {
      what: '--plan does not go with several sites',
      because: 'a plan in a file is one of one site; the plan over several is made and carried out at once',
      try: 'leave --plan out; --dry-run shows what would be done',
    });
  const { spec, path } = read;
  requireDivisible(spec);
  const loaded = loadSites(context, names);
  using several = await SeveralSites.open(context, loaded);
  const { now_ms, signal } = context;
  const request = { ...options, spec, spec_file: path };
  const division = await divide(several.sites, request, { anew: options.dry_run, now_ms });
  announce(context, division, spec, options.dry_run);
  noteSitesNotNamed(context, division, spec.name);
  if (options.dry_run) return;
  if (!division.made)
    context.note(`${spec.name} was divided like this before, and nothing has changed since`);
  await confirmReplacing(context, division, options.yes);
  const view = {
    note: context.note,
    progress: (site: string) => siteProgressView(context, site),
  };
  const result = await deployDivision(division, request, view, { now_ms, signal });
  for (const { name } of result.left)
    context.note(
      `warning: ${name} has nothing of ${spec.name} any more, and its jobs go on; end them once the others serve: hpcserve stop ${spec.name} --site ${name}`,
    );
  report(context, division, result);
}

/** @throws E_PLAN_INFEASIBLE */
function announce(
  context: CliContext,
  { made, share, doubts }: Division,
  spec: DeploymentSpec,
  dryRun: boolean,
): void {
  if (made) {
    if (dryRun) printPlan(context, made.plan, { explain: false });
    else for (const message of made.plan.warnings) context.note(`warning: ${message}`);
    for (const doubt of doubts) context.note(`warning: ${doubt}`);
    requireFeasible(made.plan);
  }
  const lines = [...describeShare(share), ...describeScaled(spec, share)];
  for (const line of lines) (dryRun ? context.out : context.note)(line);
}

function noteSitesNotNamed(context: CliContext, { asked }: Division, name: string): void {
  for (const site of sitesNotNamed(asked.map(({ answer }) => answer)))
    context.note(
      `warning: ${site} had a share of ${name} too and is not named now: what runs there goes on; end it with: hpcserve stop ${name} --site ${site}`,
    );
}

/** @throws E_INTERRUPTED where the person says no */
async function confirmReplacing(context: CliContext, { asked, of }: Division, yes: boolean): Promise<void> {
  if (yes) return;
  const replaced = jobsToReplace(
    asked.map(({ answer }) => answer),
    of,
  );
  if (replaced.length === 0) return;
  if (await context.confirm(`${replaced.join(' and ')} may be replaced. Go on?`)) return;
  throw new HpcserveError('E_INTERRUPTED', {
    what: 'nothing was changed',
    because: 'the question was answered with no',
    try: 'see what would change with `hpcserve plan --sites`',
  });
}

function report(context: CliContext, { share }: Division, { deployed, sites }: DeployedSites): void {
  const [first] = deployed;
  const { deployment, site, url, key } = first!;
  const serving = deployed.every((each) => each.serving);
  const models = [...new Set(share.sites.flatMap((own) => own.models.map(({ name }) => name)))];
  if (context.json) {
    const shares = share.sites.map((own) => ({
      site: own.site,
      replicas: Object.fromEntries(own.models.map(({ name, replicas }) => [name, replicas])),
    }));
    context.out(JSON.stringify({ deployment, site, url, key, models, serving, sites: shares }));
    return;
  }
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  context.out(`URL     ${bold(url)}`);
  context.out(`key     ${key}`);
  context.out(`models  ${models.join(', ')}`);
  for (const line of describeShare(share)) context.out(`        ${line}`);
  const names = share.sites.map((own) => own.site).join(',');
  const { name, host } = sites[0]!;
  if (host !== undefined)
    context.note(`the URL is one of ${host}; bring it here with: hpcserve connect --site ${name}`);
  context.note(
    serving
      ? `ask it: hpcserve chat ${models[0]} "Hello" --site ${name} · look: hpcserve status ${deployment} --sites ${names} · end: hpcserve stop ${deployment} --sites ${names}`
      : `submitted; look with: hpcserve status ${deployment} --sites ${names}`,
  );
}

/** `deploy --sites`: one plan, a share for each site, and one URL. */
import { z } from 'zod';
import { sealPlan } from '../../control/plan/plan-file.ts';
import { search_ms } from '../../control/plan/plan-now.ts';
import { requireFeasible } from '../../control/plan/planning.ts';
import { checkPlacement } from '../../solver/placement/check.ts';
import { placementOfSite } from '../../solver/sites/split-placement.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import type { Plan } from '../../spec/plan.ts';
import type { SiteShare } from '../../spec/site-share.ts';
import type { CliContext } from '../context.ts';
import { printPlan } from '../format/plan-text.ts';
import { style } from '../format/style.ts';
import { siteProgressView } from '../progress/view.ts';
import type { ReadSpec } from '../site-session.ts';
import { loadSites } from './named-sites.ts';
import { waitForOneMesh } from './one-mesh.ts';
import {
  type AskedSite,
  type AskOptions,
  askSite,
  askSites,
  describeShare,
  digestOfWhole,
  planWhole,
  requireDivisible,
  requireOneMesh,
  SeveralSites,
  standingShare,
  type WholePlan,
} from './several-sites.ts';
import { readWhole, shareDocument } from './share-document.ts';
import { atSite } from './site-commands.ts';

export interface DeploySitesOptions extends AskOptions {
  yes: boolean;
  detach: boolean;
  dry_run: boolean;
  stop_first: boolean;
  /** 0: wait without end. */
  timeout_s: number;
  plan?: string;
}

const resultSchema = z.object({
  deployment: z.string(),
  site: z.string(),
  url: z.string(),
  key: z.string(),
  models: z.array(z.string()),
  serving: z.boolean(),
});
type SiteResult = z.infer<typeof resultSchema>;

/** A site, what it is to have, and the plan for it where the division was made just now. */
interface SiteWork extends AskedSite {
  own: SiteShare;
  /** Words of `deploy` there. */
  words: string[];
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
  const asked = await askSites(several, path, options);
  const doubts = requireOneMesh(asked);
  const of = digestOfWhole(path, asked, options);
  const standing = options.dry_run ? undefined : standingShare(asked, of);
  const made = standing ? undefined : planWhole(asked, spec, of, { search_ms, now_ms: context.now_ms() });
  if (made) announce(context, made.plan, options.dry_run, doubts);
  const share = standing ?? made!.share;
  for (const line of describeShare(share)) (options.dry_run ? context.out : context.note)(line);
  noteUnnamed(context, asked, spec.name);
  if (options.dry_run) return;
  if (standing) context.note(`${spec.name} was divided like this before, and nothing has changed since`);
  await confirmReplacing(context, asked, of, options.yes);

  const work = await Promise.all(
    asked.flatMap((site) => {
      const own = share.sites.find((each) => each.site === site.answer.site);
      return own && own.models.length > 0 ? [prepare(site, own)] : [];
    }),
  );
  const left = asked.filter(({ answer }) => isLeft(answer, share.sites));
  if (options.stop_first) await stopLeft(context, left, spec.name);
  const results = await deployAll(context, work, spec.name);
  const first = results[0]!;
  if (options.detach) {
    if (!options.stop_first)
      for (const { answer } of left)
        context.note(
          `warning: ${answer.site} has nothing of ${spec.name} any more, and its jobs go on; end them once the others serve: hpcserve stop ${spec.name} --site ${answer.site}`,
        );
  } else {
    if (!options.stop_first) await stopLeft(context, left, spec.name);
    await waitForOneMesh(context, work[0]!.commands, spec.name, share);
  }
  report(context, { first, work, serving: results.every(({ serving }) => serving), share: share.sites });

  async function prepare(site: AskedSite, own: SiteShare): Promise<SiteWork> {
    const { commands, answer } = site;
    const kinds = answer.question.node_kinds.map(({ node_kind }) => node_kind);
    const whole = {
      whole: readWhole(path),
      spec,
      share,
      ...(options.objective === undefined ? {} : { objective: options.objective }),
    };
    const there = await commands.bringShare(path, spec.name, shareDocument(whole, own, kinds));
    const words = [
      'deploy',
      there,
      ...options.slurm,
      '--progress',
      'json',
      '--yes',
      ...(options.detach ? ['--detach'] : []),
      ...(options.stop_first ? ['--stop-first'] : []),
      ...(options.timeout_s > 0 ? ['--timeout', `${options.timeout_s}s`] : []),
    ];
    if (made === undefined) return { ...site, own, words };
    const plan = await planOfShare(site, own, there, made, options);
    words.push('--plan', await commands.bringPlan(spec.name, JSON.stringify(plan)));
    return { ...site, own, words };
  }
}

/** @throws E_PLAN_INFEASIBLE */
function announce(context: CliContext, plan: Plan, dryRun: boolean, doubts: readonly string[]): void {
  if (dryRun) printPlan(context, plan, { explain: false });
  else for (const message of plan.warnings) context.note(`warning: ${message}`);
  for (const doubt of doubts) context.note(`warning: ${doubt}`);
  requireFeasible(plan);
}

/**
 * What the whole plan has for a site, as a plan that the site carries out itself: made for the file of its share, as it is
 * there.
 * @throws E_PLAN_STALE where the site says other things now than when it was asked for the whole
 */
async function planOfShare(
  { commands }: AskedSite,
  own: SiteShare,
  path: string,
  { plan }: WholePlan,
  options: AskOptions,
): Promise<Plan> {
  const answer = await askSite(commands, path, options);
  const placement = placementOfSite(plan, own, answer.question);
  const wrong = checkPlacement(answer.question, placement);
  if (wrong.length > 0)
    throw atSite(
      own.site,
      new HpcserveError('E_PLAN_STALE', {
        what: 'the share of the plan cannot be carried out on what there is now',
        because: wrong,
        try: 'run the same command again; nothing was submitted',
      }),
    );
  return sealPlan({
    ...placement,
    format: 1,
    deployment: plan.deployment,
    site: own.site,
    made_at_ms: plan.made_at_ms,
    inputs_digest: answer.inputs_digest,
  });
}

/** Sites that have a share of before and were left out this time are not asked, and not touched. */
function noteUnnamed(context: CliContext, asked: readonly AskedSite[], name: string): void {
  const named = new Set(asked.map(({ answer }) => answer.site));
  const before = asked.flatMap(({ answer: { deployed } }) =>
    deployed?.desired === 'serving' ? (deployed.share?.sites ?? []) : [],
  );
  const unnamed = before.flatMap(({ site, models }) => (models.length > 0 && !named.has(site) ? [site] : []));
  for (const site of new Set(unnamed))
    context.note(
      `warning: ${site} had a share of ${name} too and is not named now: what runs there goes on; end it with: hpcserve stop ${name} --site ${site}`,
    );
}

/** Whether a site has replicas of before, and none by the plan. */
function isLeft({ site, deployed }: AskedSite['answer'], shares: readonly SiteShare[]): boolean {
  const own = shares.find((each) => each.site === site);
  const runs = deployed !== undefined && (deployed.desired === 'serving' || deployed.live_launches > 0);
  return runs && (own === undefined || own.models.length === 0);
}

/** @throws E_INTERRUPTED where the person says no */
async function confirmReplacing(
  context: CliContext,
  asked: readonly AskedSite[],
  of: string,
  yes: boolean,
): Promise<void> {
  if (yes || !context.tty.stdin || !context.tty.stderr) return;
  const changed = asked.filter(
    ({ answer: { deployed } }) => deployed && deployed.live_launches > 0 && deployed.share?.of !== of,
  );
  if (changed.length === 0) return;
  const places = changed.map(
    ({ answer: { site, deployed } }) => `${deployed!.live_launches} running job(s) on ${site}`,
  );
  if (await context.confirm(`${places.join(' and ')} may be replaced. Go on?`)) return;
  throw new HpcserveError('E_INTERRUPTED', {
    what: 'nothing was changed',
    because: 'the question was answered with no',
    try: 'see what would change with `hpcserve plan --sites`',
  });
}

async function stopLeft(context: CliContext, left: readonly AskedSite[], name: string): Promise<void> {
  for (const { commands } of left) {
    context.note(`${commands.name}: has nothing of ${name} any more; its jobs end`);
    await commands.run(['stop', name, '--progress', 'json']);
  }
}

/**
 * All sites at the same time: their queues do not wait for each other.
 * @throws E_SITES_PARTLY with what stands where; what runs goes on
 */
async function deployAll(
  context: CliContext,
  work: readonly SiteWork[],
  name: string,
): Promise<SiteResult[]> {
  const outcomes = await Promise.allSettled(work.map((each) => deployOne(context, each)));
  const failed = outcomes.flatMap((outcome) =>
    outcome.status === 'rejected' ? [HpcserveError.from(outcome.reason)] : [],
  );
  const results = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  if (failed.length === 0) return results;
  const [first] = failed;
  if (failed.length === 1 && work.length === 1) throw first!;
  const names = work.map(({ commands }) => commands.name).join(',');
  throw new HpcserveError(results.length === 0 ? first!.code : 'E_SITES_PARTLY', {
    what: `${name} does not serve on ${failed.length} of ${work.length} sites`,
    because: [
      ...failed.map((error) => `${[error.message, ...error.because].join(': ')} [${error.code}]`),
      ...results.map(
        ({ site, url, serving }) => `${site}: ${serving ? 'serves' : 'is submitted'}, and goes on at ${url}`,
      ),
    ],
    try: [
      ...failed.flatMap((error) => error.try.map((advice) => `${String(error.details.at_site)}: ${advice}`)),
      'then run the same command again: shares that stand are left as they are, the others are submitted',
      `or end all of it: hpcserve stop ${name} --sites ${names}`,
    ],
    details: { serving: results.map(({ site }) => site), failed: failed.map((error) => error.toJSON()) },
  });
}

async function deployOne(context: CliContext, { commands, words }: SiteWork): Promise<SiteResult> {
  const view = siteProgressView(context, commands.name);
  let last: SiteResult | undefined;
  try {
    await commands.run(words, (line) => {
      const said = JSON.parse(line) as ProgressEvent | SiteResult;
      if ('kind' in said) view.show(said);
      else last = resultSchema.parse(said);
    });
  } finally {
    view.close();
  }
  if (last !== undefined) return last;
  throw atSite(
    commands.name,
    new HpcserveError('E_SITES_DIFFER', {
      what: 'deploy ended there without saying where it serves',
      try: 'run the same version of hpcserve on all sites',
    }),
  );
}

function report(
  context: CliContext,
  {
    first,
    work,
    serving,
    share,
  }: { first: SiteResult; work: readonly SiteWork[]; serving: boolean; share: readonly SiteShare[] },
): void {
  const { deployment, url, key } = first;
  const models = [...new Set(work.flatMap(({ own }) => own.models.map(({ name }) => name)))];
  const sites = share.map(({ site, models: own }) => ({
    site,
    replicas: Object.fromEntries(own.map(({ name, replicas }) => [name, replicas])),
  }));
  if (context.json) {
    context.out(JSON.stringify({ deployment, site: first.site, url, key, models, serving, sites }));
    return;
  }
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  context.out(`URL     ${bold(url)}`);
  context.out(`key     ${key}`);
  context.out(`models  ${models.join(', ')}`);
  for (const line of describeShare({ of: '', sites: [...share] })) context.out(`        ${line}`);
  const names = share.map(({ site }) => site).join(',');
  const { name, host } = work[0]!.commands;
  if (host !== undefined)
    context.note(`the URL is one of ${host}; bring it here with: hpcserve connect --site ${name}`);
  context.note(
    serving
      ? `ask it: hpcserve chat ${models[0]} "Hello" --site ${name} · look: hpcserve status ${deployment} --sites ${names} · end: hpcserve stop ${deployment} --sites ${names}`
      : `submitted; look with: hpcserve status ${deployment} --sites ${names}`,
  );
}

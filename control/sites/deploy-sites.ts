/**
 * A deployment over several sites, from what they answer to one URL:
 *
 *   askSites ─► requireOneMesh ─┬─► a share of just this stands: it is carried out again ─┐
 *                               └─► one plan over all (whole-plan.ts) ─► shares ──────────┤
 *                                                                                         ▼
 *   with --stop-first: end what is left ─► deploy at all sites at once ─► end what is left ─► waitForOneMesh
 *
 * What is left: a site that had replicas of before and has none now.
 */
import { checkPlacement } from '../../solver/placement/check.ts';
import { placementOfSite } from '../../solver/sites/split-placement.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec } from '../../spec/model-yaml.ts';
import type { Plan } from '../../spec/plan.ts';
import type { Share, SiteShare } from '../../spec/site-share.ts';
import { sealPlan } from '../plan/plan-file.ts';
import { search_ms } from '../plan/plan-now.ts';
import { type AskedSite, type AskOptions, askSite, askSites } from './ask-sites.ts';
import { digestOfWhole, isLeft, shareOf, standingShare } from './division.ts';
import { adviceOf, describeFailure } from './each-site.ts';
import { readAsWritten, type YamlMapping } from './model-file.ts';
import { waitForOneMesh } from './one-mesh.ts';
import { shareDocument } from './share-document.ts';
import { atSite, type SiteCommands, type SitesView } from './site-commands.ts';
import { type DeployedSite, deployLine } from './site-output.ts';
import { planWhole, requireOneMesh, type WholePlan } from './whole-plan.ts';

export interface DivideRequest extends AskOptions {
  spec: DeploymentSpec;
  /** Absolute path of model.yaml. */
  spec_file: string;
}

/** What each site is to have, and by which plan. */
export interface Division {
  asked: readonly AskedSite[];
  whole: YamlMapping;
  /** SHA-256 over what is divided. */
  of: string;
  share: Share;
  /** Absent where the division stands from before. */
  made?: WholePlan;
  /** What looks odd about the mesh of the sites and may be right all the same. */
  doubts: readonly string[];
}

/**
 * @param anew also where the division of before stands
 * @throws E_SITES_APART, E_SITES_DIFFER, E_CONFIG_CONFLICT; an infeasible plan is returned, not thrown
 */
export async function divide(
  sites: readonly SiteCommands[],
  request: DivideRequest,
  { anew, now_ms }: { anew: boolean; now_ms: () => number },
): Promise<Division> {
  const { spec, spec_file } = request;
  const asked = await askSites(sites, spec_file, request);
  const answers = asked.map(({ answer }) => answer);
  const doubts = requireOneMesh(answers);
  const whole = readAsWritten(spec_file);
  const of = digestOfWhole(whole, answers, request);
  const standing = anew ? undefined : standingShare(answers, of);
  if (standing) return { asked, whole, of, share: standing, doubts };
  const made = planWhole(answers, spec, of, { search_ms, now_ms: now_ms() });
  return { asked, whole, of, share: made.share, made, doubts };
}

export interface DeploySitesRequest extends DivideRequest {
  detach: boolean;
  stop_first: boolean;
  /** 0: wait without end. */
  timeout_s: number;
}

export interface DeployedSites {
  /** Of the sites that have a share, in the order in which they were named. */
  deployed: DeployedSite[];
  sites: readonly SiteCommands[];
  /** Sites that have nothing of it any more and whose jobs go on: with `detach`, until the others serve. */
  left: readonly SiteCommands[];
}

/** @throws E_PLAN_STALE, E_SITES_PARTLY, E_SITES_APART, and what the commands at the sites fail with */
export async function deployDivision(
  division: Division,
  request: DeploySitesRequest,
  view: SitesView,
  clock: { now_ms: () => number; signal: AbortSignal },
): Promise<DeployedSites> {
  const { asked, share } = division;
  const { name } = request.spec;
  const work = await Promise.all(
    asked.flatMap((site) => {
      const own = shareOf(share, site.answer.site);
      return own ? [bringShare(site, own, division, request)] : [];
    }),
  );
  const left = asked.filter(({ answer }) => isLeft(answer, share)).map(({ commands }) => commands);
  if (request.stop_first) await endLeft(left, name, view);
  const deployed = await deployAll(work, name, view);
  const sites = work.map(({ commands }) => commands);
  if (request.detach) return { deployed, sites, left: request.stop_first ? [] : left };
  if (!request.stop_first) await endLeft(left, name, view);
  const { timeout_s } = request;
  await waitForOneMesh(sites[0]!, name, share, { ...clock, timeout_s, note: (line) => view.note(line) });
  return { deployed, sites, left: [] };
}

/** A site that has a share, and what is typed there. */
interface SiteWork {
  commands: SiteCommands;
  argv: string[];
}

/** Brings the file of its share to a site, and the plan for it where the division was made just now. */
async function bringShare(
  { commands, answer }: AskedSite,
  own: SiteShare,
  { whole, share, made }: Division,
  request: DeploySitesRequest,
): Promise<SiteWork> {
  const { spec, spec_file, objective, slurm, detach, stop_first, timeout_s } = request;
  const kinds = answer.question.node_kinds.map(({ node_kind }) => node_kind);
  const document = shareDocument({ whole, spec, share, objective }, own, kinds);
  const path = await commands.bringShare(spec_file, spec.name, document);
  const argv = ['deploy', path, ...slurm, '--progress', 'json', '--yes'];
  if (detach) argv.push('--detach');
  if (stop_first) argv.push('--stop-first');
  if (timeout_s > 0) argv.push('--timeout', `${timeout_s}s`);
  if (made) {
    const plan = await planOfShare(commands, own, path, made, request);
    argv.push('--plan', await commands.bringPlan(spec.name, JSON.stringify(plan)));
  }
  return { commands, argv };
}

/**
 * What the whole plan has for a site, as a plan that the site carries out itself: made for the file of its share, as it
 * is there.
 * @throws E_PLAN_STALE where the site says other things now than when it was asked for the whole
 */
async function planOfShare(
  commands: SiteCommands,
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

async function endLeft(left: readonly SiteCommands[], name: string, view: SitesView): Promise<void> {
  for (const commands of left) {
    view.note(`${commands.name}: has nothing of ${name} any more; its jobs end`);
    await commands.run(['stop', name, '--progress', 'json']);
  }
}

/**
 * All sites at the same time: their queues do not wait for each other.
 * @throws E_SITES_PARTLY with what stands where; what runs goes on
 */
async function deployAll(work: readonly SiteWork[], name: string, view: SitesView): Promise<DeployedSite[]> {
  const outcomes = await Promise.allSettled(work.map((each) => deployOne(each, view)));
  const failed = outcomes.flatMap((outcome) =>
    outcome.status === 'rejected' ? [HpcserveError.from(outcome.reason)] : [],
  );
  const deployed = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? [outcome.value] : []));
  const [first] = failed;
  if (first === undefined) return deployed;
  if (failed.length === 1 && work.length === 1) throw first;
  const names = work.map(({ commands }) => commands.name).join(',');
  throw new HpcserveError(deployed.length === 0 ? first.code : 'E_SITES_PARTLY', {
    what: `${name} does not serve on ${failed.length} of ${work.length} sites`,
    because: [
      ...failed.map(describeFailure),
      ...deployed.map(
        ({ site, url, serving }) => `${site}: ${serving ? 'serves' : 'is submitted'}, and goes on at ${url}`,
      ),
    ],
    try: [
      ...failed.flatMap(adviceOf),
      'then run the same command again: shares that stand are left as they are, the others are submitted',
      `or end all of it: hpcserve stop ${name} --sites ${names}`,
    ],
    details: { serving: deployed.map(({ site }) => site), failed: failed.map((error) => error.toJSON()) },
  });
}

async function deployOne({ commands, argv }: SiteWork, view: SitesView): Promise<DeployedSite> {
  const progress = view.progress(commands.name);
  let last: DeployedSite | undefined;
  try {
    await commands.run(argv, (line) => {
      const said = deployLine(commands.name, line);
      if ('event' in said) progress.show(said.event);
      else last = said.deployed;
    });
  } finally {
    progress.close();
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

/** One plan over several sites: every site is asked, one search decides, and each site gets its share. */

import { sealPlan } from '../../control/plan/plan-file.ts';
import { modelsWithoutEffect } from '../../control/plan/planning.ts';
import { searchDeadline } from '../../control/plan/search-deadline.ts';
import { unusedDevices } from '../../control/plan/whole-nodes.ts';
import { digestOf } from '../../control/state/digest.ts';
import type { LoadedSite } from '../../control/state/site-files.ts';
import { place } from '../../solver/placement/placement.ts';
import { kindOfSite } from '../../solver/sites/kind-names.ts';
import { mergeQuestions } from '../../solver/sites/merge-questions.ts';
import { meshFindings } from '../../solver/sites/mesh-links.ts';
import { sharesOf } from '../../solver/sites/split-placement.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { DeploymentSpec, Objective } from '../../spec/model-yaml.ts';
import type { PlacementQuestion, Plan, PlannedLaunch } from '../../spec/plan.ts';
import { type SiteQuestion, siteQuestionSchema } from '../../spec/site-question.ts';
import type { Share } from '../../spec/site-share.ts';
import type { CliContext } from '../context.ts';
import { readWhole } from './share-document.ts';
import { openSiteCommands, type SiteCommands } from './site-commands.ts';

/** Sites that a command works on; closed with `dispose`. */
export class SeveralSites implements Disposable {
  readonly sites: readonly SiteCommands[];

  private constructor(sites: readonly SiteCommands[]) {
    this.sites = sites;
  }

  /** One after the other: each may ask at the terminal. @throws HpcserveError of the first that cannot be reached, with its name */
  static async open(context: CliContext, loaded: readonly LoadedSite[]): Promise<SeveralSites> {
    const sites: SiteCommands[] = [];
    const several = new SeveralSites(sites);
    try {
      for (const site of loaded) sites.push(await openSiteCommands(context, site));
      return several;
    } catch (error) {
      several[Symbol.dispose]();
      throw error;
    }
  }

  [Symbol.dispose](): void {
    for (const site of this.sites) site.close();
  }
}

/** What was said on the command line of how to plan. */
export interface AskOptions {
  /** Options of Slurm, as they were typed. */
  slurm: readonly string[];
  offline: boolean;
  objective?: Objective;
}

export interface AskedSite {
  commands: SiteCommands;
  answer: SiteQuestion;
}

/** @throws E_CONFIG_UNSUPPORTED, E_CONFIG_CONFLICT where what the file asks for is for one site alone */
export function requireDivisible({ name, models, share }: DeploymentSpec): void {
  if (share !== undefined)
    throw new HpcserveError('E_CONFIG_CONFLICT', {
      what: `this file is one site's share of ${name}`,
      because: 'it has a key share, which deploy --sites writes',
      try: 'give the file of the whole',
    });
  const scaled = models.filter(({ scaling }) => scaling !== undefined).map((model) => model.name);
  if (scaled.length > 0)
    throw new HpcserveError('E_CONFIG_UNSUPPORTED', {
      what: `scaling of ${scaled.join(', ')} does not go over several sites`,
      because:
        'each site scales by the requests that its own gateways see, and the gateways of one site see those of all',
      try: 'remove scaling and say how many replicas there are to be, or deploy it on one site',
    });
}

/** Asks all sites at once. @throws the first error, with the name of its site */
export async function askSites(
  { sites }: SeveralSites,
  file: string,
  options: AskOptions,
): Promise<AskedSite[]> {
  return Promise.all(
    sites.map(async (commands) => ({
      commands,
      answer: await askSite(commands, await commands.bringFile(file), options),
    })),
  );
}

/** @param path of the file there */
export async function askSite(
  commands: SiteCommands,
  path: string,
  { slurm, offline, objective }: AskOptions,
): Promise<SiteQuestion> {
  const words = [
    ...slurm,
    ...(offline ? ['--offline'] : []),
    ...(objective === undefined ? [] : ['--objective', objective]),
  ];
  const text = await commands.run(['plan', path, '--question', ...words]);
  const read = siteQuestionSchema.safeParse(JSON.parse(text), { jitless: true });
  if (read.success) return read.data;
  throw new HpcserveError('E_SITES_DIFFER', {
    what: `what ${commands.name} answers is not understood here`,
    because: read.error.issues.slice(0, 5).map(({ path: at, message }) => `${at.join('.')}: ${message}`),
    try: 'run the same version of hpcserve on all sites',
  });
}

/**
 * @returns what looks odd and may be right all the same
 * @throws E_SITES_APART where the sites cannot be one mesh
 */
export function requireOneMesh(asked: readonly AskedSite[]): string[] {
  const { faults, advice, doubts } = meshFindings(
    asked.map(({ answer: { site, mesh } }) => ({ site, mesh })),
  );
  if (faults.length === 0) return doubts;
  throw new HpcserveError('E_SITES_APART', {
    what: `${asked.map(({ answer }) => answer.site).join(' and ')} are not one mesh: one URL would not answer for all of them`,
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
  asked: readonly AskedSite[],
  spec: DeploymentSpec,
  of: string,
  { search_ms, now_ms }: { search_ms: number; now_ms: number },
): WholePlan {
  const answers = asked.map(({ answer }) => answer);
  const question = mergeQuestions(answers.map((answer) => answer.question));
  const placement = place(
    question,
    searchDeadline(search_ms, () => performance.now()),
  );
  const launches = placement.launches.map((launch) => withPathsThere(launch, answers));
  const warnings = [
    ...answers.flatMap((answer) => answer.warnings.map((words) => `${answer.site}: ${words}`)),
    ...placement.warnings,
    ...unusedDevices(launches, question.node_kinds),
    ...modelsWithoutEffect(spec.models, placement.models),
  ];
  const plan = sealPlan({
    format: 1,
    deployment: spec.name,
    site: question.site,
    made_at_ms: now_ms,
    ...(answers.some(({ offline }) => offline) ? { offline: true } : {}),
    inputs_digest: digestOf(answers.map(({ inputs_digest }) => inputs_digest)),
    ...placement,
    launches,
    warnings: [...new Set(warnings)],
  });
  const names = answers.map(({ site }) => site);
  return {
    question,
    plan,
    share: { of, sites: sharesOf(placement, names, question, spec.budget?.gpu_hours) },
  };
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

/** Equal where nothing was changed of what is divided: the file, the models, the sites, what was typed. */
export function digestOfWhole(path: string, asked: readonly AskedSite[], options: AskOptions): string {
  const { site: _site, sites: _sites, ...whole } = readWhole(path);
  const [first] = asked;
  return digestOf({
    whole,
    sites: asked.map(({ answer }) => answer.site),
    slurm: options.slurm,
    objective: options.objective,
    models: first?.answer.question.models.map(({ architecture, weight_bytes, summary }) => ({
      architecture,
      weight_bytes,
      quantization: summary?.quantization,
    })),
  });
}

/** A division that stands: some site runs its share of just this. */
export function standingShare(asked: readonly AskedSite[], of: string): Share | undefined {
  return asked
    .map(({ answer }) => answer.deployed)
    .find((deployed) => deployed?.desired === 'serving' && deployed.share?.of === of)?.share;
}

/** `near: 2 replicas of toy, 1 of other`. */
export function describeShare({ sites }: Share): string[] {
  return sites.map(({ site, models }) => {
    const words = models.map(({ name, replicas }, at) =>
      at === 0
        ? `${replicas} ${replicas === 1 ? 'replica' : 'replicas'} of ${name}`
        : `${replicas} of ${name}`,
    );
    return `${site}: ${words.join(', ') || 'nothing'}`;
  });
}

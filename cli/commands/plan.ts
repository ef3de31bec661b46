import type { Command } from 'commander';
import { writePlanFile } from '../../control/plan/plan-file.ts';
import { search_ms as default_search_ms, planNow } from '../../control/plan/plan-now.ts';
import { launchIds, type PlannedDeployment, requireFeasible } from '../../control/plan/planning.ts';
import { searchDeadline } from '../../control/plan/search-deadline.ts';
import { questionNow } from '../../control/plan/site-question.ts';
import type { Operations } from '../../control/runner/operations.ts';
import { describeLaunch } from '../../control/runner/prepare-launch.ts';
import { guaranteesOf } from '../../control/scavenger/guarantees.ts';
import { isJoinedKind } from '../../control/state/joined-nodes.ts';
import { proposeSlices } from '../../solver/placement/mig-proposal.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Objective } from '../../spec/model-yaml.ts';
import type { CliContext } from '../context.ts';
import { describeGuarantee } from '../format/guarantee.ts';
import { migLines } from '../format/mig-text.ts';
import { printPlan } from '../format/plan-text.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { objectiveOption } from '../objective-option.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { formatWhen } from '../progress/describe-event.ts';
import { progressView } from '../progress/view.ts';
import { openSession, type ReadSpec, readSpec } from '../site-session.ts';
import { addSitesOption, sitesAsked } from '../sites/named-sites.ts';
import { addSlurmOptions, slurmArguments } from '../slurm-options.ts';

/** When a job of a plan could start, or what Slurm would answer instead. */
interface StartEstimate {
  launch: number;
  start_time_ms?: number;
  refused?: string;
  /** Slurm did not answer: nothing is known. */
  unknown?: string;
}

interface PlanOptions {
  explain?: true;
  offline?: true;
  mig?: true;
  out?: string;
  objective?: Objective;
  /** Seconds. */
  deadline?: number;
  sites?: string[];
  question?: true;
}

export function registerPlan(command: Command, context: CliContext): void {
  addSlurmOptions(
    command
      .option('--explain', 'also show what was rejected and by which constraint, and all that came close')
      .addOption(objectiveOption())
      .option('--deadline <time>', 'look this long for a better plan (500ms, 10s; default 5s)', parseSeconds)
      .option('--offline', 'do not ask Slurm; plan from the site config alone')
      .option('--mig', 'also say how GPUs could be divided into MIG slices for it; nothing is divided')
      .option('--out <plan>', 'write the plan to a file for `deploy --plan`')
      .option('--question', 'print what the plan would be made from, as JSON, for a plan over several sites'),
  );
  addSitesOption(command, 'make one plan over several sites')
    .addHelpText(
      'after',
      `
On a Slurm site each job is asked about with "sbatch --test-only": the start is Slurm's estimate of this
moment, and what Slurm would refuse is shown before anything is submitted. Where Slurm cannot be reached, and
with --offline, the plan comes from the site config alone and says so.

A plan says what it is for (--objective, or objective: in model.yaml), what each replica may expect by the
serving simulator, and what the next best choices would cost. Where a search is not over at the deadline, the
best plan so far is shown with its proved distance from the optimum.

With --sites the node kinds of all sites are one question, and are shown as SITE/KIND; Slurm is asked what there is, but
not when each job could start.

Examples:
  $ hpcserve plan model.yaml
  $ hpcserve plan model.yaml --objective gpu-hours
  $ hpcserve plan model.yaml --explain
  $ hpcserve plan model.yaml --mig
  $ hpcserve plan model.yaml --sites daint,todi
  $ hpcserve plan model.yaml --out plan.json && hpcserve deploy model.yaml --plan plan.json
  $ hpcserve plan model.yaml --json | jq .launches`,
    )
    .action((file: string, options: PlanOptions) =>
      planFile(context, file, options, slurmArguments(command.opts())),
    );
}

/** @param slurm options of Slurm, as they were typed */
async function planFile(
  context: CliContext,
  file: string,
  options: PlanOptions,
  slurm: readonly string[],
): Promise<void> {
  const read = readSpec(context, file);
  const { objective, deadline, explain, out } = options;
  const search_ms = deadline === undefined ? undefined : deadline * 1000;
  const sites = sitesAsked(context, options.sites, read.spec);
  if (options.question) return printQuestion(context, read, options);
  if (sites !== undefined) {
    if (options.mig)
      throw new HpcserveError('E_USAGE', {
        what: '--mig looks at the GPUs of one site: --sites does not go with it',
      });
    const { planOverSites } = await import('../sites/plan-sites.ts');
    return planOverSites(context, read, sites, {
      slurm,
      offline: options.offline === true,
      explain: explain === true,
      objective,
      out,
      search_ms,
    });
  }
  const view = progressView(context);
  const operations = openSession(context, {
    command: 'hpcserve plan',
    spec: read,
    // With --json the plan is the only object on stdout.
    emit: context.json ? () => {} : (event) => view.show(event),
  });
  const planned = await planNow(operations, read.spec, read.path, {
    ask: options.offline ? 'never' : 'may',
    objective,
    search_ms,
  }).finally(() => view.close());
  const { plan } = planned;
  const mig = options.mig
    ? proposeSlices(planned.question, () =>
        searchDeadline(search_ms ?? default_search_ms, () => performance.now()),
      )
    : undefined;
  const canAsk = plan.unplaced.length === 0 && !plan.offline;
  const estimates = canAsk ? await estimateStarts(operations, planned) : [];
  const guarantees = guaranteesOf(
    { deployment: plan.deployment, models: read.spec.models, launches: plan.launches },
    operations.loaded.site,
    operations.store.layout,
    context.now_ms(),
  );
  if (out !== undefined) writePlanFile(out, plan);
  if (context.json) context.out(JSON.stringify({ ...plan, estimates, guarantees, mig }));
  else {
    printPlan(context, plan, { explain: explain === true });
    const canBeThere = plan.unplaced.length === 0 ? guarantees : [];
    for (const line of canBeThere.flatMap((each) => wrap(describeGuarantee(each), textWidth(context))))
      context.out(line);
    for (const line of estimateLines(estimates, context.now_ms())) context.out(line);
    for (const line of mig === undefined ? [] : migLines(mig))
      for (const part of wrap(line, textWidth(context))) context.out(part);
  }
  requireFeasible(plan);
}

/** What a plan over several sites is made from on this one. */
async function printQuestion(
  context: CliContext,
  read: ReadSpec,
  { offline, objective, sites, out, explain, mig, deadline }: PlanOptions,
): Promise<void> {
  if ((sites ?? out ?? explain ?? mig ?? deadline) !== undefined)
    throw new HpcserveError('E_USAGE', {
      what: '--question makes no plan: --sites, --out, --explain, --mig and --deadline do not go with it',
    });
  const operations = openSession(context, { command: 'hpcserve plan', spec: read });
  const question = await questionNow(operations, read.spec, read.path, {
    ask: offline ? 'never' : 'may',
    objective,
  });
  context.out(JSON.stringify(question));
}

async function estimateStarts(
  operations: Operations,
  { plan, fingerprint }: PlannedDeployment,
): Promise<StartEstimate[]> {
  const { slurm_runner: runner, loaded, store, facts } = operations;
  if (!runner) return [];
  const generation = (store.load(plan.deployment)?.generation ?? 0) + 1;
  const id = launchIds(store, plan.deployment, generation);
  const estimates: StartEstimate[] = [];
  for (const [launch, planned] of plan.launches.entries()) {
    if (isJoinedKind(planned.node_kind)) continue;
    const prepared = describeLaunch(
      plan.deployment,
      id(fingerprint(planned), launch),
      planned,
      loaded.site,
      store,
      facts,
    );
    try {
      const { start_time_ms } = await runner.estimateStart(prepared);
      estimates.push({ launch, start_time_ms });
    } catch (error) {
      if (!(error instanceof HpcserveError)) throw error;
      const reason = [error.message, ...error.because].join(': ');
      const away = error.code === 'E_SLURM_UNREACHABLE';
      estimates.push({ launch, ...(away ? { unknown: reason } : { refused: reason }) });
    }
  }
  return estimates;
}

/** One line for neighbours of which Slurm says the same; it is asked about each as if the others were not there. */
function estimateLines(estimates: readonly StartEstimate[], now_ms: number): string[] {
  const lines: { first: number; last: number; description: string }[] = [];
  for (const estimate of estimates) {
    const number = estimate.launch + 1;
    const description = describeEstimate(estimate, now_ms);
    const before = lines.at(-1);
    if (before?.description === description) before.last = number;
    else lines.push({ first: number, last: number, description });
  }
  return lines.map(({ first, last, description }) =>
    first === last ? `job ${first}: ${description}` : `jobs ${first}-${last}, each by itself: ${description}`,
  );
}

function describeEstimate({ start_time_ms, refused, unknown }: StartEstimate, now_ms: number): string {
  if (unknown !== undefined) return `nobody knows when it could start: ${unknown}`;
  if (refused !== undefined) return `Slurm would refuse it: ${refused}`;
  return `could start ${formatWhen(start_time_ms!, now_ms)} (Slurm's estimate)`;
}

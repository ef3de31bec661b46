import type { Command } from 'commander';
import { type DeployResult, deploy } from '../../control/deploy.ts';
import { readPlanFile } from '../../control/plan/plan-file.ts';
import { planNow } from '../../control/plan/plan-now.ts';
import { requireFeasible, useFresh } from '../../control/plan/planning.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Objective } from '../../spec/model-yaml.ts';
import type { CliContext } from '../context.ts';
import { wayLines } from '../format/gateway-ways.ts';
import { printPlan } from '../format/plan-text.ts';
import { style } from '../format/style.ts';
import { objectiveOption } from '../objective-option.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { progressView } from '../progress/view.ts';
import { credentialFile, openSession, type ReadSpec, readSpec } from '../site-session.ts';
import { addSitesOption, sitesAsked } from '../sites/named-sites.ts';
import { addSlurmOptions, slurmArguments } from '../slurm-options.ts';

interface DeployOptions {
  yes?: true;
  detach?: true;
  dryRun?: true;
  stopFirst?: true;
  plan?: string;
  objective?: Objective;
  sites?: string[];
}

export function registerDeploy(command: Command, context: CliContext): void {
  addSlurmOptions(
    command
      .option(
        '-y, --yes',
        'do not ask, neither before running jobs are replaced nor where the plan cannot keep its promise',
      )
      .option('-d, --detach', 'return when everything is submitted')
      .option('--timeout <time>', 'give up waiting after this time (90s, 10m, 2h); jobs go on', parseSeconds)
      .option('--dry-run', 'plan and check, submit nothing')
      .option('--stop-first', 'end the jobs of an older version before the new ones are submitted')
      .addOption(objectiveOption())
      .option('--plan <plan>', 'apply a plan written by `plan --out`; refused when it went stale'),
  );
  addSitesOption(command, 'divide it over several sites of one mesh')
    .addHelpText(
      'after',
      `
A second deploy of an unchanged file submits nothing and follows what runs. A changed one keeps the jobs
that stay the same, starts the others, and ends the old ones once the new ones serve. Ctrl-C ends the
following, not the jobs. Where running jobs are to be replaced it asks, and without a terminal needs --yes.

With --sites one plan is made over all of them, and each site gets its share as a deployment of the same name; the URL
is that of the first. The same command again leaves shares as they are that stand, and submits those that do not.

Examples:
  $ hpcserve deploy model.yaml
  $ hpcserve deploy model.yaml --partition gpu,scavenge --account proj42 --time 04:00:00
  $ hpcserve deploy model.yaml --detach && hpcserve status --watch
  $ hpcserve deploy model.yaml --sites daint,todi
  $ hpcserve plan model.yaml --out plan.json && hpcserve deploy model.yaml --plan plan.json
  $ hpcserve deploy model.yaml --json | tail -n 1     # {"url": …, "key": …, "models": […]}`,
    )
    .action((file: string, options: DeployOptions) =>
      deployFile(context, file, options, slurmArguments(command.opts())),
    );
}

/** @param slurm options of Slurm, as they were typed */
async function deployFile(
  context: CliContext,
  file: string,
  options: DeployOptions,
  slurm: readonly string[],
): Promise<void> {
  const read = readSpec(context, file);
  const timeout_s = context.configuration.get<number>('deploy_timeout_s') ?? 0;
  const sites = sitesAsked(context, options.sites, read.spec);
  if (sites !== undefined) {
    const { deployOverSites } = await import('../sites/deploy-sites.ts');
    return deployOverSites(context, read, sites, {
      slurm,
      offline: false,
      objective: options.objective,
      plan: options.plan,
      yes: options.yes === true,
      detach: options.detach === true,
      dry_run: options.dryRun === true,
      stop_first: options.stopFirst === true,
      timeout_s,
    });
  }
  return deployOnSite(context, read, options, timeout_s);
}

async function deployOnSite(
  context: CliContext,
  read: ReadSpec,
  options: DeployOptions,
  timeout_s: number,
): Promise<void> {
  const plan = options.plan === undefined ? undefined : readPlanFile(options.plan);
  const view = progressView(context);
  try {
    const operations = openSession(context, {
      command: 'hpcserve deploy',
      spec: read,
      emit: (event) => view.show(event),
    });
    if (options.dryRun) {
      const objective = plan?.objective ?? options.objective;
      const made = await planNow(operations, read.spec, read.path, { objective });
      view.close();
      const planned = plan ? useFresh(plan, made).plan : made.plan;
      printPlan(context, planned, { explain: false });
      requireFeasible(planned);
      return;
    }
    const result = await deploy(operations, {
      spec: read.spec,
      spec_file: read.path,
      plan,
      objective: options.objective,
      detach: options.detach === true,
      timeout_ms: timeout_s * 1000,
      stop_first: options.stopFirst === true,
      credentials: credentialFile(context),
      confirm: async (question) => {
        if (options.yes) return true;
        view.close();
        return context.confirm(question);
      },
      confirm_promise: async (question) => {
        // Nothing that runs is at stake: where nobody can be asked, it was said.
        if (options.yes || !context.tty.stdin || !context.tty.stderr) return true;
        view.close();
        return context.confirm(question);
      },
    });
    view.close();
    printResult(context, result);
  } catch (thrown) {
    view.close();
    const error = HpcserveError.from(thrown);
    if (context.json && !context.signal.aborted)
      view.show({ at_ms: context.now_ms(), kind: 'failed', error: error.toJSON() });
    throw thrown;
  }
}

function printResult(context: CliContext, result: DeployResult): void {
  if (context.json) {
    context.out(JSON.stringify(result));
    return;
  }
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  context.out(`URL     ${bold(result.url)}`);
  for (const line of wayLines(result.url, result)) context.out(line);
  context.out(`key     ${result.key}`);
  context.out(`models  ${result.models.join(', ')}`);
  context.note(
    result.serving
      ? `ask it: hpcserve chat ${result.models[0]} "Hello" · look: hpcserve status ${result.deployment} · end: hpcserve stop ${result.deployment}`
      : `submitted; follow with: hpcserve status ${result.deployment} --watch`,
  );
}

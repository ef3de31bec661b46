import { writeFileSync } from 'node:fs';
import type { Command } from 'commander';
import { planNow } from '../../control/deploy.ts';
import type { Operations } from '../../control/operations.ts';
import { launchIds, type PlannedDeployment, requireFeasible } from '../../control/planning.ts';
import { describeLaunch } from '../../control/prepare-launch.ts';
import { SlurmRunner } from '../../control/slurm-runner.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Plan, PlannedLaunch } from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from '../format/quantities.ts';
import { style } from '../format/style.ts';
import { formatTable } from '../format/table.ts';
import { formatWhen } from '../progress/describe-event.ts';
import { progressView } from '../progress/view.ts';
import { openSession, readSpec } from '../site-session.ts';
import { addSlurmOptions } from '../slurm-options.ts';

/** When a job of a plan could start, or what Slurm would answer instead. */
interface StartEstimate {
  launch: number;
  start_time_ms?: number;
  refused?: string;
  /** Slurm did not answer: nothing is known. */
  unknown?: string;
}

export function registerPlan(program: Command, context: CliContext): void {
  addSlurmOptions(
    program
      .command('plan <file>')
      .description('Show what deploy would run where, and why')
      .option('--explain', 'also show what was rejected and by which constraint')
      .option('--offline', 'do not ask Slurm; plan from the site config alone')
      .option('--out <plan>', 'write the plan to a file for `deploy --plan`'),
  )
    .addHelpText(
      'after',
      `
On a Slurm site each job is asked about with "sbatch --test-only": the start is Slurm's estimate of this
moment, and what Slurm would refuse is shown before anything is submitted. Where Slurm cannot be reached, and
with --offline, the plan comes from the site config alone and says so.

Examples:
  $ hpcserve plan model.yaml
  $ hpcserve plan model.yaml --explain
  $ hpcserve plan model.yaml --out plan.json && hpcserve deploy model.yaml --plan plan.json
  $ hpcserve plan model.yaml --json | jq .launches`,
    )
    .action(async (file: string, options: { explain?: true; offline?: true; out?: string }) => {
      const read = readSpec(context, file);
      const view = progressView(context);
      const operations = openSession(context, {
        command: 'hpcserve plan',
        spec: read,
        // With --json the plan is the only object on stdout.
        emit: context.json ? () => {} : (event) => view.show(event),
      });
      const planned = await planNow(
        operations,
        read.spec,
        read.path,
        options.offline ? 'never' : 'may',
      ).finally(() => view.close());
      const { plan } = planned;
      const canAsk = plan.unplaced.length === 0 && !plan.offline;
      const estimates = canAsk ? await estimateStarts(operations, planned) : [];
      if (options.out !== undefined)
        writeFileSync(options.out, `${JSON.stringify(plan, null, 2)}\n`, { mode: 0o600 });
      if (context.json) context.out(JSON.stringify({ ...plan, estimates }));
      else {
        printPlan(context, plan, { explain: options.explain === true || plan.unplaced.length > 0 });
        for (const estimate of estimates)
          context.out(`job ${estimate.launch + 1}: ${estimateWords(estimate, context.now_ms())}`);
      }
      requireFeasible(plan);
    });
}

async function estimateStarts(
  operations: Operations,
  { plan, fingerprint }: PlannedDeployment,
): Promise<StartEstimate[]> {
  const { runner, loaded, store, facts } = operations;
  if (!(runner instanceof SlurmRunner)) return [];
  const generation = (store.load(plan.deployment)?.generation ?? 0) + 1;
  const id = launchIds(store.layout.root, plan.deployment, generation);
  const estimates: StartEstimate[] = [];
  for (const [launch, planned] of plan.launches.entries()) {
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
      const words = [error.message, ...error.because].join(': ');
      const away = error.code === 'E_SLURM_UNREACHABLE';
      estimates.push({ launch, ...(away ? { unknown: words } : { refused: words }) });
    }
  }
  return estimates;
}

function estimateWords({ start_time_ms, refused, unknown }: StartEstimate, now_ms: number): string {
  if (unknown !== undefined) return `nobody knows when it could start: ${unknown}`;
  if (refused !== undefined) return `Slurm would refuse it: ${refused}`;
  return `could start ${formatWhen(start_time_ms!, now_ms)} (Slurm's estimate)`;
}

export function printPlan(context: CliContext, plan: Plan, { explain }: { explain: boolean }): void {
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  context.out(bold(`${plan.deployment} on ${plan.site}`));
  if (plan.launches.length > 0) {
    const rows = plan.launches.map((launch, index) => [
      String(index + 1),
      launch.node_kind,
      launch.partitions.join(',') || '-',
      devicesOf(launch),
      String(launch.cpus_per_node),
      formatBytes(launch.memory_bytes_per_node),
      launch.time_limit_s === undefined ? '-' : formatSlurmDuration(launch.time_limit_s),
      launch.units.map((unit) => unit.unit).join(', '),
    ]);
    const titles = ['JOB', 'NODE KIND', 'PARTITION', 'DEVICES', 'CPUS', 'MEMORY', 'TIME', 'REPLICAS'];
    for (const line of formatTable(
      titles.map((title) => ({ title })),
      rows,
    ))
      context.out(line);
  }
  for (const model of plan.models) {
    context.out(
      `${bold(model.model)}: ${formatBytes(model.weight_bytes)} of weights, ${formatBytes(model.kv_bytes)} of KV for ${model.kv_tokens} tokens, ${model.context_tokens} tokens of context`,
    );
    for (const reason of model.reasons) context.out(`  ${reason}`);
  }
  for (const warning of plan.warnings) context.note(`warning: ${warning}`);
  if (!explain) return;
  if (plan.rejected.length > 0) context.out(bold('Rejected:'));
  for (const option of plan.rejected)
    context.out(
      `  ${option.model} on ${option.node_kind}${option.engine ? ` (${option.engine})` : ''}: ${option.because} [${option.constraint}]`,
    );
}

function devicesOf({ devices_per_node: devices }: PlannedLaunch): string {
  const name = `${devices.model}${devices.emulated ? ' (emulated on CPU)' : ''}`;
  return devices.count > 0 ? `${devices.count}× ${name}` : name;
}

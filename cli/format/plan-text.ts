/** A plan as people read it: jobs, what each model may expect, and what else could have been. */
import type {
  Plan,
  PlannedGroup,
  PlannedLaunch,
  PlannedModel,
  Prediction,
  RunnerUp,
} from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { CliContext } from '../context.ts';
import { formatBytes } from './quantities.ts';
import { style } from './style.ts';
import { formatTable } from './table.ts';

/** Runners-up that are shown without --explain. */
const runners_up_shown = 2;

export function printPlan(context: CliContext, plan: Plan, { explain }: { explain: boolean }): void {
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  context.out(bold(`${plan.deployment} on ${plan.site}`));
  printJobs(context, plan.launches);
  for (const model of plan.models) {
    context.out(
      `${bold(model.model)}: ${formatBytes(model.weight_bytes)} of weights, ${formatBytes(model.kv_bytes)} of KV for ${model.kv_tokens} tokens, ${model.context_tokens} tokens of context`,
    );
    for (const reason of model.reasons) context.out(`  ${reason}`);
    printPrediction(context, model);
    const shown = explain ? model.runners_up : model.runners_up.slice(0, runners_up_shown);
    for (const runner of shown) context.out(`  not chosen: ${runnerWords(runner)}`);
  }
  if (plan.launches.length > 0) context.out(`plan: ${searchWords(plan)}`);
  for (const warning of plan.warnings) context.note(`warning: ${warning}`);
  if (!explain) return;
  if (plan.rejected.length > 0) context.out(bold('Rejected:'));
  for (const option of plan.rejected)
    context.out(
      `  ${option.model} on ${option.node_kind}${option.engine ? ` (${option.engine})` : ''}: ${option.because} [${option.constraint}]`,
    );
}

function printJobs(context: CliContext, launches: readonly PlannedLaunch[]): void {
  if (launches.length === 0) return;
  const rows = launches.map((launch, index) => [
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

function devicesOf({ devices_per_node: devices }: PlannedLaunch): string {
  const name = `${devices.model}${devices.emulated ? ' (emulated on CPU)' : ''}`;
  return devices.count > 0 ? `${devices.count}× ${name}` : name;
}

function printPrediction(context: CliContext, { workload, groups }: PlannedModel): void {
  if (groups.every(({ predicted }) => predicted === undefined)) return;
  const { rate_per_s, input_tokens, output_tokens, source } = workload;
  context.out(
    `  at ${number(rate_per_s)} requests/s of ${number(input_tokens)} tokens in and ${number(output_tokens)} out (${source}):`,
  );
  for (const group of groups)
    if (group.predicted) context.out(`    ${groupWords(group)}: ${predictionWords(group.predicted)}`);
}

function groupWords({
  node_kind,
  replicas,
  tensor,
  pipeline,
  precision,
  traffic_share,
}: PlannedGroup): string {
  const split = [
    ...(tensor > 1 ? [`tensor ${tensor}`] : []),
    ...(pipeline > 1 ? [`pipeline ${pipeline}`] : []),
    ...(precision === 'auto' ? [] : [precision]),
  ];
  const share = traffic_share > 0.999 ? [] : [`${percent(traffic_share)} of requests`];
  return [`${replicas} on ${node_kind}`, ...split, ...share].join(', ');
}

function predictionWords(predicted: Prediction): string {
  return [
    `TTFT ${milliseconds(predicted.ttft_ms)}`,
    `TPOT ${milliseconds(predicted.tpot_ms)}`,
    `${milliseconds(predicted.e2e_ms)} a request`,
    `${percent(predicted.slo_attainment)} within the SLO`,
    `${number(predicted.output_tokens_per_s)} tokens/s`,
    `${percent(predicted.utilization)} of ${number(predicted.max_rate_per_s)} requests/s`,
    `${Math.round(predicted.power_w)} W`,
  ].join(', ');
}

function runnerWords(runner: RunnerUp): string {
  const split = runner.tensor > 1 ? `, tensor ${runner.tensor}` : '';
  const precision = runner.precision === 'auto' ? '' : `, ${runner.precision}`;
  const expected = runner.predicted
    ? ` (TTFT ${milliseconds(runner.predicted.ttft_ms)}, TPOT ${milliseconds(runner.predicted.tpot_ms)})`
    : '';
  return `${runner.replicas} on ${runner.node_kind} (${runner.device}${split}${precision}), ${costWords(runner.cost_ratio)}: ${runner.because}${expected}`;
}

function costWords(ratio: number): string {
  return ratio > 100 ? 'over 100 times the cost' : `${ratio.toFixed(2)} times the cost`;
}

function searchWords(plan: Plan): string {
  const { status, gap = 0, nodes } = plan.search;
  const proof = {
    optimal: `best by objective ${plan.objective}, proved`,
    feasible: `by objective ${plan.objective}, at most ${(100 * gap).toFixed(1)} % from the best (${nodes} nodes searched)`,
    first_fit: 'first fit: devices do not divide as counted, so each replica took the best that was left',
  }[status];
  const gpus =
    plan.gpu_count === 0
      ? []
      : [
          `${plan.gpu_count} GPU${plan.gpu_count === 1 ? '' : 's'}`,
          ...(plan.gpu_hours === undefined ? [] : [`${number(plan.gpu_hours)} GPU-hours over the wall time`]),
        ];
  return [proof, ...gpus].join('; ');
}

function percent(share: number): string {
  const value = 100 * share;
  return `${value > 0 && value < 10 ? value.toPrecision(2) : Math.round(value)} %`;
}

function milliseconds(ms: number): string {
  return ms >= 1000 ? `${(ms / 1000).toPrecision(3)} s` : `${ms.toPrecision(3)} ms`;
}

function number(value: number): string {
  return value >= 1000 ? Math.round(value).toString() : String(Number(value.toPrecision(3)));
}

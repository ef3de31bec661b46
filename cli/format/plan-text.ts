/** A plan as people read it: jobs, what each model may expect, and what else could have been. */
import { brokenPromises } from '../../control/plan/broken-promises.ts';
import { rejectionLines } from '../../control/plan/planning.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { plannedNameOf } from '../../spec/model-pools.ts';
import type { ModelSpec, Objective } from '../../spec/model-yaml.ts';
import {
  defaultSlo,
  type Plan,
  type PlannedLaunch,
  type PlannedModel,
  type RunnerUp,
  unitsOfJob,
} from '../../spec/plan.ts';
import { formatSlurmDuration } from '../../spec/slurm-types.ts';
import type { CliContext } from '../context.ts';
import { expectations, groupName, milliseconds, number, partOf } from './predictions.ts';
import { formatBytes } from './quantities.ts';
import { style } from './style.ts';
import { fittedTable, formatTable } from './table.ts';
import { textWidth, wrap } from './wrap.ts';

/** Runners-up that are shown without --explain. */
const runners_up_shown = 2;
/** Columns in which it makes sense to fold names of replicas. */
const replicas_column_min = 12;
/** Names of replicas that are listed for one job, or for several alike. */
const replica_names_shown = 4;

export function printPlan(context: CliContext, plan: Plan, { explain }: { explain: boolean }): void {
  const bold = (text: string): string => style('bold', text, context.colour && context.tty.stdout);
  const say = (text: string, indent = 0): void => {
    for (const line of wrap(text, textWidth(context), indent)) context.out(line);
  };
  context.out(bold(`${plan.deployment} on ${plan.site}`));
  if (plan.unplaced.length > 0 && plan.launches.length > 0)
    context.out('Not all replicas find a place. These would:');
  for (const line of jobLines(plan.launches, textWidth(context))) context.out(line);
  if (plan.unplaced.length === 0) {
    const groups = plan.models.flatMap(({ model, groups: own }) =>
      own.map((group) => ({ ...group, name: model })),
    );
    const expected = expectations(groups, textWidth(context));
    if (expected.length > 0) {
      context.out('');
      const title = 'Expected of each group of replicas (mean over requests, by simulation):';
      for (const line of wrap(title, textWidth(context))) context.out(bold(line));
    }
    for (const line of expected) context.out(line);
    const slos = new Map(
      plan.launches.flatMap(({ units }) =>
        units.map((unit) => [plannedNameOf(unit), unit.model.slo] as const),
      ),
    );
    for (const model of plan.models) {
      context.out(`\n${bold(model.model)}`);
      for (const sentence of modelSentences(model, slos.get(model.model))) say(sentence, 2);
      const shown = explain ? model.runners_up : model.runners_up.slice(0, runners_up_shown);
      if (shown.length > 0) context.out('  not chosen:');
      for (const runner of shown) say(describeRunnerUp(runner), 4);
    }
  }
  if (plan.launches.length > 0 && plan.unplaced.length === 0) {
    context.out('');
    say(`plan: ${describeSearch(plan)}`);
  }
  for (const alarm of brokenPromises(plan))
    for (const line of wrap(`warning: ${alarm}`, textWidth(context)))
      context.note(style('red', line, context.colour));
  for (const warning of plan.warnings)
    for (const line of wrap(`warning: ${warning}`, textWidth(context))) context.note(line);
  if (explain) printRejected(plan, (text) => context.out(bold(text)), say);
}

function printRejected(
  { models, unplaced, rejected }: Plan,
  title: (text: string) => void,
  say: (text: string, indent: number) => void,
): void {
  const names = new Set([...models, ...unplaced].map(({ model }) => model));
  for (const name of names) {
    const lines = rejectionLines(rejected.filter(({ model }) => model === name));
    if (lines.length > 0) title(`\n${name} cannot run on`);
    for (const { line, constraint } of lines) say(`${line} [${constraint}]`, 2);
  }
}

interface JobRow {
  first: number;
  last: number;
  cells: string[];
  /** Equal for jobs that are one row. */
  key: string;
  units: UnitSpec[];
  part: PlannedLaunch['part'];
}

/** A table of jobs; neighbours that differ only in the numbers of their replicas are one row. */
function jobLines(launches: readonly PlannedLaunch[], width: number): string[] {
  if (launches.length === 0) return [];
  const rows: JobRow[] = [];
  for (const [index, launch] of launches.entries()) {
    const cells = jobCells(launch);
    const key = JSON.stringify([cells, launch.units.map(plannedNameOf), launch.part]);
    const before = rows.at(-1);
    if (before?.key === key) {
      before.last = index;
      before.units.push(...launch.units);
    } else
      rows.push({ first: index, last: index, cells, key, units: [...unitsOfJob(launch)], part: launch.part });
  }
  const titles = ['JOB', 'NODE KIND', 'PARTITION', 'DEVICES', 'CPUS', 'MEMORY', 'TIME', 'REPLICAS'];
  const columns = titles.map((title) => ({ title }));
  const cells = rows.map(({ first, last, cells: own, units, part }) => [
    first === last ? `${first + 1}` : `${first + 1}-${last + 1}`,
    ...own,
    replicaNames(units) + (part ? ` (part ${part.node_index + 1} of ${part.jobs})` : ''),
  ]);
  const lines = formatTable(columns, cells);
  const at = lines[0]!.indexOf('REPLICAS');
  const folded = lines.flatMap((line) => foldFrom(line, at, width));
  return folded.every((line) => [...line].length <= width) ? folded : fittedTable(columns, cells, width);
}

/** A line whose end is folded under the column where it begins, where there is room for that. */
function foldFrom(line: string, column: number, width: number): string[] {
  if ([...line].length <= width || width - column < replicas_column_min) return [line];
  const folded = wrap([...line].slice(column).join(''), width - column, 0, 0);
  return folded.map(
    (part, at) => (at === 0 ? [...line].slice(0, column).join('') : ' '.repeat(column)) + part,
  );
}

function jobCells(launch: PlannedLaunch): string[] {
  const { devices_per_node: devices, node_count } = launch;
  const name = `${devices.model}${devices.emulated ? ' (emulated)' : ''}`;
  const onNode = devices.count > 0 ? `${devices.count}× ${name}` : name;
  return [
    launch.node_kind,
    launch.partitions.join(',') || '-',
    node_count > 1 ? `${node_count} nodes, each ${onNode}` : onNode,
    String(launch.cpus_per_node),
    formatBytes(launch.memory_bytes_per_node),
    launch.time_limit_s === undefined ? '-' : formatSlurmDuration(launch.time_limit_s),
  ];
}

/** All names, or of many of one model the first, the last, and how many there are. */
function replicaNames(units: readonly UnitSpec[]): string {
  if (units.length <= replica_names_shown) return units.map(({ unit }) => unit).join(', ');
  const byModel = new Map<string, string[]>();
  for (const each of units) {
    const name = plannedNameOf(each);
    byModel.set(name, [...(byModel.get(name) ?? []), each.unit]);
  }
  return [...byModel.values()]
    .map((names) => (names.length > 2 ? `${names[0]} … ${names.at(-1)} (${names.length})` : names.join(', ')))
    .join(', ');
}

function modelSentences(model: PlannedModel, slo: ModelSpec['slo'] = {}): string[] {
  const { workload, groups } = model;
  const { rate_per_s, input_tokens, output_tokens, source } = workload;
  const predicted = groups.flatMap((group) => group.predicted ?? []);
  const most = predicted.reduce((sum, { max_rate_per_s }) => sum + max_rate_per_s, 0);
  const origin = {
    given: 'as model.yaml says',
    measured: 'as measured',
    assumed: 'assumed: model.yaml has no workload',
  }[source];
  return [
    `for ${rate(rate_per_s)} of ${number(input_tokens)} tokens in and ${number(output_tokens)} out (${origin})` +
      (predicted.length > 0 ? `; its replicas can take ${rate(most)}` : ''),
    `SLO: TTFT ${milliseconds(slo.ttft_ms ?? defaultSlo.ttft_ms)}, TPOT ${milliseconds(slo.tpot_ms ?? defaultSlo.tpot_ms)}` +
      (slo.ttft_ms === undefined && slo.tpot_ms === undefined ? ' (the default)' : ''),
    `memory of a replica: ${weightWords(model)}, ${formatBytes(model.kv_bytes)} of KV cache for ${model.kv_tokens} tokens; context ${model.context_tokens} tokens`,
    ...model.reasons,
  ];
}

function weightWords({ weight_bytes, arena_bytes, resident_bytes }: PlannedModel): string {
  if (arena_bytes === undefined) return `${formatBytes(weight_bytes)} of weights`;
  const but = resident_bytes === undefined ? '' : `, but for ${formatBytes(resident_bytes)} that stay`;
  return `${formatBytes(arena_bytes)} through which ${formatBytes(weight_bytes)} of weights are streamed${but}`;
}

function rate(per_s: number): string {
  return `${number(per_s)} ${per_s === 1 ? 'request' : 'requests'}/s`;
}

function describeRunnerUp(runner: RunnerUp): string {
  const expected = runner.predicted
    ? ` (TTFT ${partOf(runner.predicted.ttft_ms)}, TPOT ${partOf(runner.predicted.tpot_ms)})`
    : '';
  return `${groupName(runner)} (${runner.device}), ${describeCost(runner.cost_ratio)}: ${runner.because}${expected}`;
}

function describeCost(ratio: number): string {
  return ratio > 100 ? 'over 100 times the cost' : `${ratio.toFixed(2)} times the cost`;
}

const objectiveDescriptions: Record<Objective, string> = {
  slo: 'most requests within their SLO, then the smallest devices',
  latency: 'the least mean latency',
  'gpu-hours': 'the fewest GPUs that keep the SLO',
  energy: 'the fewest watts that keep the SLO',
};

function describeSearch(plan: Plan): string {
  const { status, gap = 0, nodes, because, repairs = 0 } = plan.search;
  const tried =
    because === 'no_time'
      ? `time ended before there was a plan (${nodes} nodes searched, ${repairs} times a model chose anew): `
      : '';
  const objective = `objective ${plan.objective} (${objectiveDescriptions[plan.objective]})`;
  const proof = {
    optimal: `the best by ${objective}, proved`,
    feasible: `by ${objective}, at most ${(100 * gap).toFixed(1)} % from the best (${nodes} nodes searched)`,
    first_fit: `first fit: ${tried}each replica took the best that was left by ${objective}; how far this is from the best is not known`,
  }[status];
  const gpus =
    plan.gpu_count === 0
      ? []
      : [
          `${plan.gpu_count} GPU${plan.gpu_count === 1 ? '' : 's'}`,
          ...(plan.gpu_hours === undefined
            ? []
            : [`${number(plan.gpu_hours)} GPU-hour${plan.gpu_hours === 1 ? '' : 's'} over the wall time`]),
        ];
  return [proof, ...gpus].join('; ');
}

/** What the serving simulator expects of replicas, as a table, or as sentences where the terminal is narrow. */
import type { PlannedGroup, Prediction, RunnerUp } from '../../spec/plan.ts';
import { formatTable } from './table.ts';
import { wrap } from './wrap.ts';

const indent = 2;

interface Expectation {
  title: string;
  cell: (predicted: Prediction) => string;
  /** The cell where there is no title above it. */
  describe: (cell: string) => string;
}

const columns: Expectation[] = [
  { title: 'TTFT', cell: ({ ttft_ms }) => partOf(ttft_ms), describe: (cell) => `TTFT ${cell}` },
  { title: 'TPOT', cell: ({ tpot_ms }) => partOf(tpot_ms), describe: (cell) => `TPOT ${cell}` },
  { title: 'REQUEST', cell: ({ e2e_ms }) => milliseconds(e2e_ms), describe: (cell) => `${cell} a request` },
  {
    title: 'IN SLO',
    cell: ({ slo_attainment }) => percent(slo_attainment),
    describe: (cell) => `${cell} within the SLO`,
  },
  { title: 'LOAD', cell: ({ utilization }) => percent(utilization), describe: (cell) => `load ${cell}` },
  {
    title: 'TOKENS/S',
    cell: ({ output_tokens_per_s }) => number(output_tokens_per_s),
    describe: (cell) => `${cell} tokens/s`,
  },
  { title: 'POWER', cell: ({ power_w }) => `${Math.round(power_w)} W`, describe: (cell) => cell },
];

/** A pool has no part in what the other one decides. */
export function partOf(ms: number): string {
  return ms === 0 ? '-' : milliseconds(ms);
}

/** @param groups with the names of their models; those of which nothing is known are left out. */
export function expectations(groups: readonly (PlannedGroup & { name: string })[], width: number): string[] {
  const known = groups.flatMap((group) =>
    group.predicted ? [{ group, cells: columns.map(({ cell }) => cell(group.predicted!)) }] : [],
  );
  if (known.length === 0) return [];
  const titles = ['MODEL', 'REPLICAS', ...columns.map(({ title }) => title)];
  const table = formatTable(
    titles.map((title, at) => ({ title, align: at < 2 ? 'left' : 'right' })),
    known.map(({ group, cells }) => [group.name, groupName(group), ...cells]),
  ).map((line) => ' '.repeat(indent) + line);
  if (table.every((line) => [...line].length <= width)) return table;
  return known.flatMap(({ group, cells }) =>
    wrap(
      `${group.name}, ${groupName(group)}: ${cells.map((cell, at) => columns[at]!.describe(cell)).join(', ')}`,
      width,
      indent,
    ),
  );
}

/** `3 on gh200, tensor 4, fp8, 30 % of requests`. */
export function groupName(group: PlannedGroup | RunnerUp): string {
  const { node_kind, replicas, tensor, precision } = group;
  const pipeline = 'pipeline' in group ? group.pipeline : 1;
  const share = 'traffic_share' in group ? group.traffic_share : 1;
  return [
    `${replicas} on ${node_kind}`,
    ...(tensor > 1 ? [`tensor ${tensor}`] : []),
    ...(pipeline > 1 ? [`pipeline ${pipeline}`] : []),
    ...(precision === 'auto' ? [] : [precision]),
    ...(share > 0.999 ? [] : [`${percent(share)} of requests`]),
  ].join(', ');
}

function percent(share: number): string {
  const value = 100 * share;
  return `${value > 0 && value < 10 ? number(Number(value.toPrecision(2))) : Math.round(value)} %`;
}

/** `63.1 ms`, `3.21 s`, `695 min`. */
export function milliseconds(ms: number): string {
  if (ms >= 600_000) return `${Math.round(ms / 60_000)} min`;
  return ms >= 1000 ? `${number(ms / 1000)} s` : `${number(ms)} ms`;
}

/** Three digits that count, without an exponent. */
export function number(value: number): string {
  return value >= 1000 ? Math.round(value).toString() : String(Number(value.toPrecision(3)));
}

/** What was measured of several routers in the same rounds, as rows of the bench and as a table for people. */
import { median } from '../gateway/median.ts';
import type { BenchResult } from '../result.ts';

/** Our gateway alone, and with the node agent that stands between it and an engine. */
export const ours = 'hpcserve';
export const oursWithAgent = 'hpcserve with its agent';

export interface Metric {
  /** What was measured, in words that a reader understands. */
  what: string;
  /** The same over a column. */
  short: string;
  unit: string;
  better: 'more' | 'less';
}

/** One metric of several routers: their figures, one a round, in the order of the rounds. */
export interface Column {
  metric: Metric;
  rounds: ReadonlyMap<string, readonly number[]>;
}

/** By name of the peer, the least ratio of ours to it; larger is better for us. */
export type Bars = Readonly<Record<string, number>>;

/**
 * A row for each router beside ours. The ratio is the median of those of the rounds: what slows a round down slows
 * both. Figures at or below zero, as differences of two measurements may be, have no ratio; their medians are compared.
 *
 * @throws Error where ours was not measured
 */
export function compare(
  { metric, rounds }: Column,
  bars: Bars = {},
  who: typeof ours | typeof oursWithAgent = ours,
): BenchResult[] {
  const own = rounds.get(who);
  if (own === undefined) throw new Error(`${who} was not measured: ${metric.what}`);
  const own_median = median(own);
  const peers = [...rounds].filter(([name]) => name !== ours && name !== oursWithAgent);
  return peers.map(([peer, theirs]) => {
    const bar = bars[peer];
    const ratio = ratioOf(metric, own, theirs);
    const theirs_median = median(theirs);
    const isNoWorse = metric.better === 'less' ? own_median <= theirs_median : own_median >= theirs_median;
    return {
      what: who === ours ? metric.what : `${metric.what}, with its agent`,
      unit: metric.unit,
      ours: own_median,
      peer,
      theirs: theirs_median,
      ratio,
      bar: bar === undefined ? '' : `ratio ≥ ${Number(bar.toFixed(2))}`,
      holds: bar === undefined ? null : ratio === null ? isNoWorse : ratio >= bar,
    };
  });
}

/** A row of ours alone. */
export function alone({ metric, rounds }: Column, bar_max: number): BenchResult {
  const own = median(rounds.get(ours) ?? []);
  return {
    what: metric.what,
    unit: metric.unit,
    ours: own,
    peer: '',
    theirs: null,
    ratio: null,
    bar: `< ${bar_max} ${metric.unit}`,
    holds: own < bar_max,
  };
}

function ratioOf({ better }: Metric, own: readonly number[], theirs: readonly number[]): number | null {
  if ([...own, ...theirs].some((value) => value <= 0)) return null;
  return median(
    own.map((value, round) => (better === 'more' ? value / theirs[round]! : theirs[round]! / value)),
  );
}

/** A table in Markdown: a router a line, a metric a column; `–` where it was not measured. */
export function sideBySide(columns: readonly Column[]): string[] {
  const names = [...new Set(columns.flatMap(({ rounds }) => [...rounds.keys()]))];
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [
    line(['', ...columns.map(({ metric }) => `${metric.short}, ${metric.unit}`)]),
    line(['---', ...columns.map(() => '---:')]),
    ...names.map((name) =>
      line([
        name,
        ...columns.map(({ rounds }) => {
          const values = rounds.get(name);
          return values === undefined ? '–' : figure(median(values));
        }),
      ]),
    ),
  ];
}

/** Three digits, and all that are before the point. */
function figure(value: number): string {
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en-US');
  return String(Number(value.toPrecision(3)));
}

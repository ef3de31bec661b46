/** Wrapped engines that may sleep as lines of text, for `hpcserve top`: a table for each device. */
import type { SleepingEngine } from '../../control/gateway/admin.ts';
import type { SleepState } from '../../spec/sleep-report.ts';
import { formatDuration } from './quantities.ts';
import { printable, type StyleName, style } from './style.ts';
import { type Column, formatTable, plainLength } from './table.ts';
import { wrap } from './wrap.ts';

interface SleepingTextOptions {
  colour: boolean;
  /** Columns of the terminal; Infinity where nothing is to be folded. */
  width: number;
}

const columns: readonly Column[] = [
  { title: 'MODEL' },
  { title: 'STATE', styled: true },
  { title: 'PROMISE' },
  { title: 'RUNNING', align: 'right' },
  { title: 'WAITING', align: 'right' },
  { title: 'WAITED', align: 'right' },
  { title: 'REFUSED', align: 'right' },
  { title: 'TO WAKE', align: 'right' },
];
/** Those that a narrow terminal goes without, first the least missed: positions in `columns`. */
const dispensable = [5, 2, 6, 7];

const styles: Readonly<Record<SleepState, StyleName>> = {
  awake: 'green',
  'falls asleep': 'yellow',
  asleep: 'dim',
  wakes: 'yellow',
};

/** @returns the lines of each device */
export function sleepingLines(engines: readonly SleepingEngine[], options: SleepingTextOptions): string[][] {
  const places = new Map<string, SleepingEngine[]>();
  for (const engine of engines) {
    const { site, node, deployment, job_id, report } = engine;
    const place = JSON.stringify([site, node, deployment, job_id, report.device]);
    places.set(place, [...(places.get(place) ?? []), engine]);
  }
  return [...places.values()].map((own) => deviceOf(own, options));
}

function deviceOf(engines: readonly SleepingEngine[], { colour, width }: SleepingTextOptions): string[] {
  const [{ devices, node, deployment, job_id, report }] = engines as [SleepingEngine];
  const names = devices.map(({ model, emulated }) => (emulated ? `${model} (emulated)` : model)).join(' + ');
  const where = [printable(node), deployment, job_id === undefined ? undefined : `job ${job_id}`];
  const name = `${printable(names)}  ${where.filter(Boolean).join(', ')}`;
  const how =
    report.turns === undefined
      ? 'sleeps while nobody asks'
      : `${engines.length} in turn, one awake at a time`;
  const [first, ...more] = wrap(`${name}  ${printable(report.engine)}: ${how}`, width);
  return [first!.replace(name, style('bold', name, colour)), ...more, ...tableOf(engines, { colour, width })];
}

function tableOf(engines: readonly SleepingEngine[], { colour, width }: SleepingTextOptions): string[] {
  const rows = engines.map(({ report }) => {
    const { model, state, slo, running, waiting, turns, wake_ms } = report;
    const promise = slo && [slo.ttft_ms, slo.tpot_ms].map((ms) => (ms === undefined ? '·' : String(ms)));
    return [
      printable(model),
      style(styles[state], state, colour),
      promise === undefined ? '-' : `${promise.join('/')} ms`,
      String(running),
      String(waiting),
      turns === undefined ? '-' : String(turns.waited),
      turns === undefined ? '-' : String(turns.refused),
      wake_ms === undefined ? '-' : wake_ms < 1000 ? `${Math.round(wake_ms)} ms` : formatDuration(wake_ms),
    ];
  });
  for (let without = 0; ; without++) {
    const dropped = dispensable.slice(0, without);
    const kept = <T>(cells: readonly T[]): T[] => cells.filter((_, at) => !dropped.includes(at));
    const lines = formatTable(kept(columns), rows.map(kept)).map((line) => `  ${line}`);
    if (without === dispensable.length || lines.every((line) => plainLength(line) <= width)) return lines;
  }
}

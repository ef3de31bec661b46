/** One shared device as lines of text, for `hpcserve top`. */
import type { SharedDevice } from '../../control/gateway/admin.ts';
import type { DeviceReport, InstanceReport, MemoryReport } from '../../spec/device-report.ts';
import { describeIsa } from './isa.ts';
import { devicePoolWords } from './moves.ts';
import { formatBytes } from './quantities.ts';
import { streamedWords } from './streamed-weights.ts';
import { printable, type StyleName, style } from './style.ts';
import { type Column, formatTable, plainLength } from './table.ts';
import { wrap } from './wrap.ts';

export interface DeviceTextOptions {
  colour: boolean;
  /** Columns of the terminal; Infinity where nothing is to be folded. */
  width: number;
  /** Decisions shown at most. */
  decisions: number;
  /** What the same worker said a moment before: then shares of time since are shown. */
  before?: DeviceReport | undefined;
}

export function deviceLines(shared: SharedDevice, options: DeviceTextOptions): string[] {
  const { node, deployment, job_id, devices, report, error } = shared;
  const names = devices.map(({ model, emulated }) => (emulated ? `${model} (emulated)` : model)).join(' + ');
  const where = [printable(node), deployment, job_id === undefined ? undefined : `job ${job_id}`];
  const name = `${printable(names)}  ${where.filter(Boolean).join(', ')}`;
  const title = style('bold', name, options.colour);
  if (!report) return [title, `  ${style('red', printable(error ?? 'it says nothing'), options.colour)}`];
  const isa = describeIsa(report.device.isa);
  const { threads } = report.device;
  const description = `${threads} ${threads === 1 ? 'thread' : 'threads'}${isa === '' ? '' : `, ${isa}`}${times(report, options.before)}`;
  const [first, ...more] = wrap(`${name}  ${description}`, options.width);
  return [
    first!.replace(name, title),
    ...more,
    ...report.device.left_out.flatMap((sentence) => {
      const lines = wrap(`left out: ${printable(sentence)}`, options.width, 2);
      return lines.map((line) => style('yellow', line, options.colour));
    }),
    ...memoryLines(report.memory, options),
    ...instanceLines(report.instances, options),
    ...devicePoolWords(report).flatMap((words) => wrap(printable(words), options.width, 2)),
    ...report.instances.flatMap(({ model, streamed }) => {
      if (streamed === undefined) return [];
      const words = `streamed: ${printable(model)}: ${streamedWords(streamed).map(printable).join('; ')}`;
      return wrap(words, options.width, 2);
    }),
    ...linkLines(shared, options),
    ...report.loading.flatMap(({ model, bytes_loaded, bytes_total, bytes_per_s, legs }) => {
      const far = `${formatBytes(bytes_loaded)} of ${formatBytes(bytes_total)} at ${formatBytes(bytes_per_s)}/s`;
      const parts = legs.map((part) => `${printable(part.leg)} ${formatBytes(part.bytes_per_s)}/s`);
      const by = parts.length > 0 ? ` (a thread: ${parts.join(', ')})` : '';
      return wrap(`loading ${printable(model)}: ${far}${by}`, options.width, 2);
    }),
    ...(report.resting.length > 0
      ? wrap(
          `resting until they are asked for: ${report.resting.map(printable).join(', ')}`,
          options.width,
          2,
        )
      : []),
    ...parkedLines(report, options),
    ...decisionLines(report, options),
  ];
}

/** What requests need of the link that weights are streamed over, on all devices that share it. */
function linkLines({ link }: SharedDevice, { width }: DeviceTextOptions): string[] {
  if (link === undefined) return [];
  const { devices, reading, due_bytes_per_s, capacity_bytes_per_s } = link;
  const of = devices > 1 ? `that ${devices} devices share, ${reading} of them reading` : 'of its own';
  const given = capacity_bytes_per_s === undefined ? '' : ` of ${formatBytes(capacity_bytes_per_s)}/s`;
  return wrap(`link to host memory ${of}: ${formatBytes(due_bytes_per_s)}/s are due${given}`, width, 2);
}

/** KV of requests that gave way, and what is wrong with the disk that it may wait on. */
function parkedLines({ scheduler }: DeviceReport, { width }: DeviceTextOptions): string[] {
  const { memory_bytes = 0, disk_bytes = 0, disk_bytes_per_s, disk_trouble } = scheduler.parked ?? {};
  const places = [`${formatBytes(memory_bytes)} in host memory`];
  if (disk_bytes_per_s !== undefined)
    places.push(`${formatBytes(disk_bytes)} on disk (${formatBytes(disk_bytes_per_s)}/s there and back)`);
  const parked = `KV of requests that gave way: ${places.join(', ')}`;
  return [
    ...(memory_bytes + disk_bytes > 0 ? wrap(parked, width, 2) : []),
    ...(disk_trouble === undefined ? [] : wrap(`KV on disk: ${printable(disk_trouble)}`, width, 2)),
  ];
}

/** Share of the time since the last look that went into iterations, and into deciding. */
function times(report: DeviceReport, before: DeviceReport | undefined): string {
  const { computing_ms, deciding_ms, admitted, refused, evicted } = report.scheduler;
  const counts = `${admitted} let in, ${refused} refused${evicted > 0 ? `, ${evicted} evicted` : ''}`;
  if (before?.pid !== report.pid) return `; ${counts}`;
  const computed_ms = computing_ms - before.scheduler.computing_ms;
  const decided_ms = deciding_ms - before.scheduler.deciding_ms;
  const busy = percent(computed_ms, report.at_ms - before.at_ms);
  return `; ${busy} busy, ${percent(decided_ms, computed_ms)} of it deciding; ${counts}`;
}

function memoryLines(
  { pss_bytes, parts, unexplained_bytes, pool }: MemoryReport,
  { width }: DeviceTextOptions,
): string[] {
  const told = parts
    .filter(({ bytes }) => bytes > 0)
    .map(({ name, bytes }) => `${name} ${formatBytes(bytes)}`);
  const memory = `${told.join(' + ')} + unexplained ${formatBytes(unexplained_bytes)}`;
  const lines = wrap(`memory  ${formatBytes(pss_bytes)} = ${memory}`, width, 2, 8);
  if (!pool) return lines;
  const {
    pool_bytes,
    weights_bytes,
    reusable_bytes,
    kv_bytes,
    scratch_bytes,
    arena_bytes = 0,
    lost_bytes,
    free_bytes,
    largest_free_bytes,
  } = pool;
  const shares: [mark: string, name: string, bytes: number][] = [
    ['#', 'weights', weights_bytes],
    ['+', 'reusable', reusable_bytes],
    ['=', 'KV', kv_bytes],
    ['~', 'scratch', scratch_bytes],
    ...(arena_bytes > 0 ? [['>', 'streamed weights', arena_bytes] as [string, string, number]] : []),
    ...(lost_bytes > 0 ? [['!', 'lost', lost_bytes] as [string, string, number]] : []),
    ['.', 'free', free_bytes],
  ];
  const columns = Math.max(10, Math.min(60, width - 12));
  let drawn = 0;
  let bar = '';
  let until_bytes = 0;
  for (const [mark, , bytes] of shares) {
    until_bytes += bytes;
    const end = Math.round((columns * until_bytes) / Math.max(1, pool_bytes));
    bar += mark.repeat(Math.max(0, end - drawn));
    drawn = Math.max(drawn, end);
  }
  const fragmented = free_bytes === 0 ? 0 : 1 - largest_free_bytes / free_bytes;
  lines.push(
    `  pool    [${bar.padEnd(columns, ' ')}]`,
    ...wrap(
      `${shares.map(([mark, name, bytes]) => `${mark} ${name} ${formatBytes(bytes)}`).join('  ')} of ${formatBytes(pool_bytes)}; ${percent(fragmented, 1)} of what is free is in fragments`,
      width,
      10,
      0,
    ),
  );
  return lines;
}

/** Those that a narrow terminal goes without, first the least missed: positions in `columns`. */
const dispensable = [11, 10, 9, 6, 8, 7, 1, 4, 2];

const columns: readonly Column[] = [
  { title: 'MODEL' },
  { title: 'PROMISE', styled: true },
  { title: 'PROMPTS', align: 'right' },
  { title: 'DECODING', align: 'right' },
  { title: 'WAITING', align: 'right' },
  { title: 'HEADROOM', align: 'right', styled: true },
  { title: 'WEIGHTS', align: 'right' },
  { title: 'KV USED', align: 'right' },
  { title: 'SET ASIDE', align: 'right' },
  { title: 'REQUIRED', align: 'right' },
  { title: '512 TOKENS', align: 'right' },
  { title: 'A TOKEN', align: 'right' },
];

function instanceLines(instances: readonly InstanceReport[], { colour, width }: DeviceTextOptions): string[] {
  if (instances.length === 0) return ['  no models'];
  const rows = instances.map((instance) => row(instance, colour));
  for (let without = 0; ; without++) {
    const dropped = dispensable.slice(0, without);
    const kept = <T>(cells: readonly T[]): T[] => cells.filter((_, at) => !dropped.includes(at));
    const lines = formatTable(kept(columns), rows.map(kept)).map((line) => `  ${line}`);
    if (without === dispensable.length || lines.every((line) => plainLength(line) <= width)) return lines;
  }
}

function row(instance: InstanceReport, colour: boolean): string[] {
  const { slo, headroom_ms, profile } = instance;
  const times =
    slo && [slo.ttft_ms, slo.tpot_ms].map((ms) => (ms === undefined ? '·' : String(ms))).join('/');
  const slow = profile.keeps_level === false ? style('yellow', ' (too slow)', colour) : '';
  return [
    printable(instance.model),
    times === undefined ? '-' : `${times} ms${slow}`,
    String(instance.prompts),
    String(instance.decoding),
    String(instance.waiting),
    headroom_ms === undefined ? '-' : milliseconds(headroom_ms, colour && slo !== undefined),
    formatBytes(instance.weight_bytes),
    formatBytes(instance.kv_used_bytes),
    formatBytes(instance.kv_bytes),
    formatBytes(instance.kv_required_bytes),
    `~${milliseconds(profile.prefill_512_ms, false)}`,
    `~${milliseconds(profile.decode_512_ms, false)}`,
  ];
}

function decisionLines(
  { decisions }: DeviceReport,
  { colour, decisions: most, width }: DeviceTextOptions,
): string[] {
  const styles: Partial<Record<string, StyleName>> = { refuse: 'yellow', evict: 'yellow' };
  return decisions.slice(Math.max(0, decisions.length - most)).flatMap(({ at_ms, kind, model, because }) => {
    const time = new Date(at_ms).toISOString().slice(11, 19);
    const word = kind.padEnd(7);
    const shown = styles[kind] ? style(styles[kind], word, colour) : word;
    const [first, ...more] = wrap(`${time} ${word} ${printable(model)}: ${printable(because)}`, width, 2, 17);
    return [first!.replace(word, shown), ...more];
  });
}

function milliseconds(ms: number, alarming: boolean): string {
  const text =
    Math.abs(ms) >= 10_000
      ? `${(ms / 1000).toFixed(0)} s`
      : `${Math.abs(ms) < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  return alarming && ms < 0 ? style('red', text, true) : text;
}

function percent(part: number, whole: number): string {
  return whole <= 0 ? '0 %' : `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 1 : 0)} %`;
}

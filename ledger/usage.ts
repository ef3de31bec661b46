import type Database from 'better-sqlite3';
import type { UsageDimension, UsageQuery, UsageRow } from '../spec/usage.ts';
import { requestAsHour } from './accounting-schema.ts';
import { decodeDay } from './day-block.ts';
import { GroupSums, type PlacedSums } from './group-sums.ts';
import { summedColumns } from './hour-sums.ts';
import type { Steps } from './questions/in-slices.ts';

const hour_ms = 3_600_000;

/** What a dimension is in `series` (s) and `sessions` (e). */
const expressions: Record<Exclude<UsageDimension, TimeDimension>, string> = {
  user: "coalesce(nullif(s.user, ''), '-')",
  key: 's.key_id',
  project: "coalesce(nullif(s.project, ''), '-')",
  account: "coalesce(e.slurm_account, '-')",
  model: "coalesce(nullif(s.served_model, ''), nullif(s.model, ''), '-')",
  engine: "coalesce(e.engine, '-')",
  precision: "coalesce(nullif(s.precision, ''), '-')",
  provider: "coalesce(e.provider, '-')",
  site: "coalesce(e.site, '-')",
  node: "coalesce(e.node, '-')",
  job: "coalesce(e.job_id, '-')",
  deployment: "coalesce(e.deployment, '-')",
  device: "coalesce(e.devices, '-')",
  tier: "coalesce(e.tier, '-')",
  endpoint: 's.endpoint',
};

/** Parts of the time, of UTC, the finest first: which of them an hour is in, and its name. */
const times = {
  hour: { partOf: (hour: number) => hour, nameOf: (iso: string) => `${iso.slice(0, 13)}:00Z` },
  day: { partOf: (hour: number) => Math.floor(hour / 24), nameOf: (iso: string) => iso.slice(0, 10) },
  month: { partOf: monthOf, nameOf: (iso: string) => iso.slice(0, 7) },
};
type TimeDimension = keyof typeof times;
const timeNames = Object.keys(times) as TimeDimension[];

/** Rows of one step of a sum. Lower: shorter steps; higher: fewer questions to SQLite. */
const page_max = 1024;

/** Sums by groups of series and parts of the time, without their names: what another thread can be handed. */
export interface SummedGroups extends PlacedSums {
  /** Of each group, its values of those dimensions of the question that are of series, in their order. */
  labels: string[][];
}

/** Usage by dimensions, ordered by them. */
export function queryUsage(db: Database.Database, query: UsageQuery): UsageRow[] {
  // One transaction: what is written meanwhile is in all parts of the answer or in none.
  const summed = db.transaction(() => {
    const steps = sumSteps(db, query);
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
    }
  })();
  return usageRows(summed, query.group_by);
}

/**
 * Sums usage up in steps of a few milliseconds, between which no statement is open: days that are over from their
 * blocks, other whole hours from their sums, and what is left at both ends of the time from the requests themselves. Of
 * an hour that is not asked for whole, requests that left only counts are not known. What was written before the first
 * step is counted once; what is written between steps counts once or not at all, or not at all in a transaction.
 */
export function* sumSteps(db: Database.Database, query: UsageQuery): Steps<SummedGroups> {
  const { labels, groupOf } = yield* seriesGroups(db, query);
  const finest = timeNames.find((name) => query.group_by.includes(name));
  const sums = new GroupSums(groupOf, labels.length, finest ? times[finest].partOf : () => 0);
  yield* addTime(db, sums, query.since_ms, query.until_ms);
  return { labels, ...sums.placed() };
}

/** Rows of what was summed up for these dimensions, in their order. */
export function usageRows(
  { labels, groups, hours, values }: SummedGroups,
  group_by: readonly UsageDimension[],
): UsageRow[] {
  const namer = groupNamer(group_by);
  const width = values.length / groups.length;
  const rows = Array.from(groups, (group, index) =>
    rowOf(namer(labels[group]!, hours[index]!), values.subarray(width * index, width * (index + 1))),
  );
  return sorted(rows, group_by);
}

/** The groups of series that are asked for, without regard to time, and which of them each series is in. */
function* seriesGroups(
  db: Database.Database,
  { group_by, filter = {}, only }: UsageQuery,
): Steps<{ labels: string[][]; groupOf: Int32Array }> {
  const names = group_by.filter(isOfSeries);
  const conditions: string[] = ['s.ref > ?'];
  const values: string[] = [];
  for (const [name, wanted] of Object.entries(filter)) {
    conditions.push(`${expressions[name as keyof typeof expressions]} IN (${wanted.map(() => '?').join()})`);
    values.push(...wanted);
  }
  if (only) {
    const [column, ids] =
      'key_ids' in only ? ['s.key_id', only.key_ids] : ['e.provider_id', only.provider_ids];
    // One parameter, however many: SQLite has a bound on those.
    conditions.push(`${column} IN (SELECT value FROM json_each(?))`);
    values.push(JSON.stringify(ids));
  }
  const page = db
    .prepare(
      `SELECT ${['s.ref', ...names.map((name) => expressions[name])].join(', ')}
      FROM series s LEFT JOIN sessions e ON e.ref = s.session_ref
      WHERE ${conditions.join(' AND ')} ORDER BY s.ref LIMIT ${page_max}`,
    )
    .raw();
  const last = db.prepare('SELECT coalesce(max(ref), 0) FROM series').pluck().get() as number;
  const known = new Map<string, number>();
  const labels: string[][] = [];
  const groupOf = new Int32Array(1 + last).fill(-1);
  for (let behind = 0; behind <= last; ) {
    const rows = page.all(behind, ...values) as [number, ...string[]][];
    for (const [ref, ...label] of rows) {
      const key = JSON.stringify(label);
      const group = known.get(key) ?? labels.push(label.map(String)) - 1;
      known.set(key, group);
      groupOf[ref] = group;
    }
    if (rows.length < page_max) break;
    behind = rows.at(-1)![0];
    yield;
  }
  return { labels, groupOf };
}

function* addTime(
  db: Database.Database,
  sums: GroupSums,
  since_ms = 0,
  until_ms = Number.MAX_SAFE_INTEGER,
): Steps<void> {
  const first = Math.ceil(since_ms / hour_ms);
  const end = Math.floor(until_ms / hour_ms);
  // All within one hour.
  if (end < first) {
    yield* addRequests(db, sums, since_ms, until_ms);
    return;
  }
  yield* addRequests(db, sums, since_ms, first * hour_ms);
  yield* addHours(db, sums, first, end);
  if (until_ms !== Number.MAX_SAFE_INTEGER) yield* addRequests(db, sums, end * hour_ms, until_ms);
}

function* addRequests(db: Database.Database, sums: GroupSums, from_ms: number, to_ms: number): Steps<void> {
  const page = db
    .prepare(
      `SELECT ${requestAsHour}, sequence FROM request_rows WHERE (time_ms, sequence) > (?, ?) AND time_ms < ?
      ORDER BY time_ms, sequence LIMIT ${page_max}`,
    )
    .raw();
  // The time of a request and its place in the ledger are the last in its row.
  for (let behind = [from_ms, -1]; behind[0]! < to_ms; ) {
    const rows = page.all(...behind, to_ms) as number[][];
    for (const row of rows) sums.addRow(row);
    if (rows.length < page_max) return;
    behind = rows.at(-1)!.slice(-2);
    yield;
  }
}

/** Whole hours: by day where a day has a block. */
function* addHours(db: Database.Database, sums: GroupSums, first: number, end: number): Steps<void> {
  const nextDay = db
    .prepare('SELECT day, sums FROM days WHERE day >= ? AND day < ? ORDER BY day LIMIT 1')
    .raw();
  for (let next = first; next < end; ) {
    const [day, bytes] = (nextDay.get(Math.ceil(next / 24), Math.floor(end / 24)) ?? []) as [
      number?,
      Buffer?,
    ];
    // The block is read anew behind the hours before it: a late request may have taken it away meanwhile.
    const until = day === undefined ? end : 24 * day;
    if (until > next) {
      yield* addHoursOneByOne(db, sums, next, until);
      next = until;
      continue;
    }
    next = until + 24;
    const block = decodeDay(bytes!);
    if (block) sums.addBlock(day!, block.rows, block.columns);
    else yield* addHoursOneByOne(db, sums, until, next);
    yield;
  }
}

function* addHoursOneByOne(db: Database.Database, sums: GroupSums, first: number, end: number): Steps<void> {
  const page = db
    .prepare(
      `SELECT * FROM hours WHERE (hour, series_ref) > (?, ?) AND hour < ? ORDER BY hour, series_ref
      LIMIT ${page_max}`,
    )
    .raw();
  for (let behind = [first, -1]; ; ) {
    const rows = page.all(...behind, end) as number[][];
    for (const row of rows) sums.addRow(row);
    if (rows.length < page_max) return;
    behind = rows.at(-1)!.slice(0, 2);
    yield;
  }
}

/** Names of a group, by the labels of its series and an hour of its time. */
function groupNamer(
  group_by: readonly UsageDimension[],
): (label: readonly string[], hour: number) => UsageRow['group'] {
  const names = group_by.filter(isOfSeries);
  const isoOf = new Map<number, string>();
  return (label, hour) => {
    const group: UsageRow['group'] = {};
    for (const name of group_by) {
      if (isOfSeries(name)) {
        group[name] = label[names.indexOf(name)]!;
        continue;
      }
      const iso = isoOf.get(hour) ?? new Date(hour * hour_ms).toISOString();
      isoOf.set(hour, iso);
      group[name] = times[name].nameOf(iso);
    }
    return group;
  };
}

function sorted(rows: UsageRow[], group_by: readonly UsageDimension[]): UsageRow[] {
  return rows.sort((a, b) => {
    for (const name of group_by) {
      const [one, other] = [a.group[name]!, b.group[name]!];
      if (one !== other) return one < other ? -1 : 1;
    }
    return 0;
  });
}

function isOfSeries(name: UsageDimension): name is keyof typeof expressions {
  return name in expressions;
}

function monthOf(hour: number): number {
  const date = new Date(hour * hour_ms);
  return 12 * date.getUTCFullYear() + date.getUTCMonth();
}

const columnOf = Object.fromEntries(summedColumns.map((name, index) => [name, index])) as Record<
  (typeof summedColumns)[number],
  number
>;

function rowOf(group: UsageRow['group'], values: Float64Array): UsageRow {
  const at = (name: (typeof summedColumns)[number]): number => values[columnOf[name]]!;
  return {
    group,
    requests: at('requests'),
    errors: at('errors'),
    retries: at('retries'),
    prompt_tokens: at('prompt_tokens'),
    completion_tokens: at('completion_tokens'),
    cached_tokens: at('cached_tokens'),
    reasoning_tokens: at('reasoning_tokens'),
    duration_ms: at('duration_us') / 1000,
    ttft_ms: at('ttft_us') / 1000,
    ttft_requests: at('ttft_requests'),
    decode_ms: at('decode_us') / 1000,
    decode_tokens: at('decode_tokens'),
    device_s: at('device_us') / 1e6,
    energy_j: at('energy_mj') / 1000,
    energy_estimated_j: at('energy_estimated_mj') / 1000,
    first_ms: values[summedColumns.length]!,
    last_ms: values[summedColumns.length + 1]!,
  };
}

import type Database from 'better-sqlite3';
import type { UsageDimension, UsageQuery, UsageRow } from '../spec/usage.ts';
import { requestAsHour } from './accounting-schema.ts';
import { decodeDay } from './day-block.ts';
import { GroupSums } from './group-sums.ts';
import { summedColumns } from './hour-sums.ts';

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

/**
 * Usage by dimensions, ordered by them: days that are over from their blocks, other whole hours from their sums, and
 * what is left at both ends of the time from the requests themselves. Of an hour that is not asked for whole, requests
 * that left only counts are not known.
 */
export function queryUsage(db: Database.Database, query: UsageQuery): UsageRow[] {
  const { group_by } = query;
  // One transaction: what is written meanwhile is in all parts of the answer or in none.
  return db.transaction(() => {
    const { labels, groupOf } = seriesGroups(db, query);
    const finest = timeNames.find((name) => group_by.includes(name));
    const sums = new GroupSums(groupOf, labels.length, finest ? times[finest].partOf : () => 0);
    addTime(db, sums, query.since_ms, query.until_ms);
    const namer = groupNamer(group_by);
    const rows: UsageRow[] = [];
    for (const { group, hour, values } of sums.all()) rows.push(rowOf(namer(labels[group]!, hour), values));
    return sorted(rows, group_by);
  })();
}

/** The groups of series that are asked for, without regard to time, and which of them each series is in. */
function seriesGroups(
  db: Database.Database,
  { group_by, filter = {}, only }: UsageQuery,
): { labels: Map<string, string>[]; groupOf: Int32Array } {
  const names = group_by.filter(isOfSeries);
  const conditions: string[] = [];
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
  const rows = db
    .prepare(
      `SELECT ${['s.ref', ...names.map((name) => expressions[name])].join(', ')}
      FROM series s LEFT JOIN sessions e ON e.ref = s.session_ref
      ${conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : ''}`,
    )
    .raw()
    .all(...values) as [number, ...string[]][];
  const known = new Map<string, number>();
  const labels: Map<string, string>[] = [];
  const groupOf = new Int32Array(1 + rows.reduce((largest, [ref]) => Math.max(largest, ref), 0)).fill(-1);
  for (const [ref, ...label] of rows) {
    const key = JSON.stringify(label);
    let group = known.get(key);
    if (group === undefined) {
      group = labels.push(new Map(names.map((name, index) => [name, String(label[index])]))) - 1;
      known.set(key, group);
    }
    groupOf[ref] = group;
  }
  return { labels, groupOf };
}

function addTime(
  db: Database.Database,
  sums: GroupSums,
  since_ms = 0,
  until_ms = Number.MAX_SAFE_INTEGER,
): void {
  const first = Math.ceil(since_ms / hour_ms);
  const end = Math.floor(until_ms / hour_ms);
  const requestRows = db
    .prepare(`SELECT ${requestAsHour} FROM request_rows WHERE time_ms >= ? AND time_ms < ?`)
    .raw();
  const addRequests = (from_ms: number, to_ms: number): void => {
    if (from_ms >= to_ms) return;
    for (const row of requestRows.iterate(from_ms, to_ms)) sums.addRow(row as number[]);
  };
  // All within one hour.
  if (end < first) {
    addRequests(since_ms, until_ms);
    return;
  }
  addRequests(since_ms, first * hour_ms);
  addHours(db, sums, first, end);
  if (until_ms !== Number.MAX_SAFE_INTEGER) addRequests(end * hour_ms, until_ms);
}

/** Whole hours: by day where a day has a block. */
function addHours(db: Database.Database, sums: GroupSums, first: number, end: number): void {
  const hourRows = db.prepare('SELECT * FROM hours WHERE hour >= ? AND hour < ?').raw();
  const dayBlocks = db.prepare('SELECT day, sums FROM days WHERE day >= ? AND day < ? ORDER BY day').raw();
  let next = first;
  const addUntil = (hour: number): void => {
    for (const row of hourRows.iterate(next, hour)) sums.addRow(row as number[]);
    next = hour;
  };
  for (const [day, bytes] of dayBlocks.iterate(Math.ceil(first / 24), Math.floor(end / 24)) as Iterable<
    [number, Buffer]
  >) {
    const block = decodeDay(bytes);
    if (!block) continue;
    if (24 * day > next) addUntil(24 * day);
    sums.addBlock(day, block.rows, block.columns);
    next = 24 * (day + 1);
  }
  if (end > next) addUntil(end);
}

/** Names of a group, by the labels of its series and an hour of its time. */
function groupNamer(
  group_by: readonly UsageDimension[],
): (label: ReadonlyMap<string, string>, hour: number) => UsageRow['group'] {
  const isoOf = new Map<number, string>();
  return (label, hour) => {
    const group: UsageRow['group'] = {};
    for (const name of group_by) {
      if (isOfSeries(name)) {
        group[name] = label.get(name)!;
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

import type Database from 'better-sqlite3';
import type { UsageDimension, UsageQuery, UsageRow } from '../spec/usage.ts';
import { requestAsHour, unsummed } from './accounting-schema.ts';
import { summedColumns } from './hour-sums.ts';

const hour_ms = 3_600_000;

/** What a dimension is in `parts`, `series` (s) and `sessions` (e). */
const expressions: Record<UsageDimension, string> = {
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
  hour: "strftime('%Y-%m-%dT%H:00Z', p.hour * 3600, 'unixepoch')",
  day: "strftime('%Y-%m-%d', p.hour * 3600, 'unixepoch')",
  month: "strftime('%Y-%m', p.hour * 3600, 'unixepoch')",
};

/**
 * Usage by dimensions, ordered by them: whole hours from their sums, and what is left at both ends of the time from the
 * requests themselves. Of an hour that is not asked for whole, requests that left only counts are not known.
 */
export function queryUsage(db: Database.Database, query: UsageQuery): UsageRow[] {
  const { group_by } = query;
  const { from, values } = partsOf(query.since_ms, query.until_ms);
  const conditions: string[] = [];
  for (const [name, wanted] of Object.entries(query.filter ?? {})) {
    conditions.push(`${expressions[name as UsageDimension]} IN (${wanted.map(() => '?').join()})`);
    values.push(...wanted);
  }
  if (query.only) {
    const [column, ids] =
      'key_ids' in query.only ? ['s.key_id', query.only.key_ids] : ['e.provider_id', query.only.provider_ids];
    // One parameter, however many: SQLite has a bound on those.
    conditions.push(`${column} IN (SELECT value FROM json_each(?))`);
    values.push(JSON.stringify(ids));
  }
  const groups = group_by.map((name, index) => `${expressions[name]} AS g${index}`);
  const places = group_by.map((_name, index) => index + 1).join();
  const rows = db
    .prepare(
      `SELECT ${groups.join(', ')}, ${summedColumns.map((name) => `sum(${name})`).join(', ')}, min(first_ms), max(last_ms)
      FROM (${from}) p CROSS JOIN series s ON s.ref = p.series_ref LEFT JOIN sessions e ON e.ref = s.session_ref
      ${conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : ''}
      GROUP BY ${places} ORDER BY ${places}`,
    )
    .raw()
    .all(...values) as (string | number)[][];
  return rows.map((row) => rowOf(group_by, row));
}

/** Hours and requests of a time, as SQL. */
function partsOf(
  since_ms = 0,
  until_ms = Number.MAX_SAFE_INTEGER,
): { from: string; values: (string | number)[] } {
  const hours = 'SELECT * FROM hours WHERE hour >= ? AND hour < ?';
  const requests = `SELECT ${requestAsHour} FROM request_rows WHERE time_ms >= ? AND time_ms < ?`;
  const first = Math.ceil(since_ms / hour_ms);
  const end = Math.floor(until_ms / hour_ms);
  // All within one hour.
  if (end < first) return { from: requests, values: [since_ms, until_ms] };
  // The sign keeps SQLite from the index by time, which leads to millions of requests.
  const tail = `SELECT ${requestAsHour} FROM request_rows WHERE ${unsummed} AND +time_ms >= ? AND +time_ms < ?`;
  const parts = [hours, tail];
  const values = [first, end, first * hour_ms, end * hour_ms];
  if (since_ms < first * hour_ms) {
    parts.push(requests);
    values.push(since_ms, first * hour_ms);
  }
  if (end * hour_ms < until_ms && until_ms !== Number.MAX_SAFE_INTEGER) {
    parts.push(requests);
    values.push(end * hour_ms, until_ms);
  }
  return { from: parts.join(' UNION ALL '), values };
}

function rowOf(group_by: readonly UsageDimension[], row: readonly (string | number)[]): UsageRow {
  const group = Object.fromEntries(group_by.map((name, index) => [name, String(row[index])]));
  const values = row.slice(group_by.length) as number[];
  const at = (name: (typeof summedColumns)[number]): number => values[summedColumns.indexOf(name)]!;
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

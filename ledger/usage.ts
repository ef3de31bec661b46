import type Database from 'better-sqlite3';

export const usageDimensions = ['model', 'key', 'day', 'deployment', 'job'] as const;
export type UsageDimension = (typeof usageDimensions)[number];

export interface UsageQuery {
  by: UsageDimension;
  /** Unix ms, inclusive. */
  since_ms?: number;
  /** Unix ms, exclusive. */
  until_ms?: number;
}

/** Sums over one group; counts of tokens are 0 where no answer reported any. */
export interface UsageRow {
  /** Model as served, key id, UTC day (YYYY-MM-DD), or deployment or Slurm job (`-` where none is known). */
  group: string;
  requests: number;
  /** Requests that ended with an error. */
  errors: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  reasoning_tokens: number;
  /** Sum of the requests' durations. */
  duration_ms: number;
  first_ms: number;
  last_ms: number;
}

const groupExpression: Record<UsageDimension, string> = {
  model: 'coalesce(r.served_model, r.model)',
  key: 'r.key_id',
  day: "strftime('%Y-%m-%d', r.time_ms / 1000, 'unixepoch')",
  deployment: "coalesce(s.deployment, '-')",
  job: "coalesce(s.job_id, '-')",
};

/** Usage by one dimension, ordered by it. */
export function queryUsage(db: Database.Database, query: UsageQuery): UsageRow[] {
  return db
    .prepare(
      `SELECT ${groupExpression[query.by]} AS "group",
        count(*) AS requests,
        sum(r.error_code IS NOT NULL) AS errors,
        coalesce(sum(r.prompt_tokens), 0) AS prompt_tokens,
        coalesce(sum(r.completion_tokens), 0) AS completion_tokens,
        coalesce(sum(r.cached_tokens), 0) AS cached_tokens,
        coalesce(sum(r.reasoning_tokens), 0) AS reasoning_tokens,
        sum(r.duration_ms) AS duration_ms,
        min(r.time_ms) AS first_ms,
        max(r.time_ms) AS last_ms
      FROM requests r ${query.by === 'deployment' || query.by === 'job' ? 'LEFT JOIN sessions s ON s.ref = r.session_ref' : ''}
      WHERE r.time_ms >= ? AND r.time_ms < ?
      GROUP BY 1 ORDER BY 1`,
    )
    .all(query.since_ms ?? 0, query.until_ms ?? Number.MAX_SAFE_INTEGER) as UsageRow[];
}

/** The sums of several ledgers, of one query, as one. */
export function addUsage(ledgers: readonly (readonly UsageRow[])[]): UsageRow[] {
  const byGroup = new Map<string, UsageRow>();
  for (const row of ledgers.flat()) {
    const sum = byGroup.get(row.group);
    if (!sum) {
      byGroup.set(row.group, { ...row });
      continue;
    }
    for (const field of summed) sum[field] += row[field];
    sum.first_ms = Math.min(sum.first_ms, row.first_ms);
    sum.last_ms = Math.max(sum.last_ms, row.last_ms);
  }
  return [...byGroup.values()].sort((a, b) => (a.group < b.group ? -1 : 1));
}

const summed = [
  'requests',
  'errors',
  'prompt_tokens',
  'completion_tokens',
  'cached_tokens',
  'reasoning_tokens',
  'duration_ms',
] as const satisfies (keyof UsageRow)[];

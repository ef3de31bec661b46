import { summedColumns } from './hour-sums.ts';

/** One request as an hour of it alone, in the order of `hours`. */
export const requestAsHour = `time_ms / 3600000 AS hour, series_ref, 1 AS requests, error_code IS NOT NULL AS errors,
  max(attempts - 1, 0) AS retries, coalesce(prompt_tokens, 0) AS prompt_tokens,
  coalesce(completion_tokens, 0) AS completion_tokens, coalesce(cached_tokens, 0) AS cached_tokens,
  coalesce(reasoning_tokens, 0) AS reasoning_tokens, duration_us, coalesce(ttft_us, 0) AS ttft_us,
  ttft_us IS NOT NULL AS ttft_requests,
  iif(ttft_us IS NULL OR coalesce(completion_tokens, 0) < 2, 0, duration_us - ttft_us) AS decode_us,
  iif(ttft_us IS NULL OR coalesce(completion_tokens, 0) < 2, 0, completion_tokens - 1) AS decode_tokens,
  coalesce(device_us, 0) AS device_us, coalesce(energy_mj, 0) AS energy_mj,
  iif(energy_estimated, coalesce(energy_mj, 0), 0) AS energy_estimated_mj, time_ms AS first_ms, time_ms AS last_ms`;

/** Requests that came after the sums were written last, in version 3. */
const unsummed = 'sequence > (SELECT sequence FROM summed)';

const summedValues = summedColumns.map((name) => `sum(${name})`).join(', ');
const firstAndLast = 'first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms)';
const addToHour = `ON CONFLICT (hour, series_ref) DO UPDATE SET
  ${summedColumns.map((name) => `${name} = ${name} + excluded.${name}`).join(', ')}, ${firstAndLast}`;
const addedSpent = `ON CONFLICT (key_id, day) DO UPDATE SET requests = requests + excluded.requests,
  tokens = tokens + excluded.tokens, device_us = device_us + excluded.device_us`;

/** Adds to an hour of a series: its columns in their order. */
export const addHourSql = `INSERT INTO hours VALUES (${Array.from({ length: 2 + summedColumns.length + 2 }, () => '?').join()})
  ${addToHour}`;
/** Adds to the day of a key: key, day, requests, tokens, device_us. */
export const addSpentSql = `INSERT INTO spent (key_id, day, requests, tokens, device_us) VALUES (?, ?, ?, ?, ?) ${addedSpent}`;

/** Of version 3: the sums have all requests. */
export const noteSummedSql =
  'UPDATE summed SET sequence = coalesce((SELECT max(sequence) FROM request_rows), 0);';
const spentOf = (hours: string): string => `SELECT coalesce(limits_key_id, key_id), hour / 24, sum(requests),
  sum(prompt_tokens + completion_tokens), sum(device_us) FROM (${hours}) JOIN series ON ref = series_ref WHERE true GROUP BY 1, 2`;
const tail = `SELECT ${requestAsHour} FROM request_rows WHERE ${unsummed}`;

/** Adds to the sums what they lack in version 3, which wrote them every few thousand requests. */
export const sumUnsummedSql = `
  INSERT INTO hours SELECT hour, series_ref, ${summedValues}, min(first_ms), max(last_ms) FROM (${tail}) WHERE true
    GROUP BY 1, 2 ${addToHour};
  INSERT INTO spent (key_id, day, requests, tokens, device_us) ${spentOf(tail)} ${addedSpent};
`;

/**
 * Sums made anew from all requests. What is there already (of requests that left only counts, or whose rows are lost)
 * stays where it is larger.
 */
export const sumHoursSql = `
  INSERT INTO hours SELECT hour, series_ref, ${summedValues}, min(first_ms), max(last_ms)
    FROM (SELECT ${requestAsHour} FROM request_rows) WHERE true GROUP BY 1, 2
    ON CONFLICT (hour, series_ref) DO UPDATE SET
      ${summedColumns.map((name) => `${name} = max(${name}, excluded.${name})`).join(', ')}, ${firstAndLast};
`;

/** What every key used on each day, from the hours; what is there already stays where it is larger. */
export const sumSpentSql = `
  INSERT INTO spent (key_id, day, requests, tokens, device_us) ${spentOf('SELECT * FROM hours')}
  ON CONFLICT (key_id, day) DO UPDATE SET requests = max(requests, excluded.requests),
    tokens = max(tokens, excluded.tokens), device_us = max(device_us, excluded.device_us);
`;

/** What people may ask with `hpcserve usage sql`; docs/usage.md says what stands in each. */
const viewsSql = `
  CREATE VIEW requests AS
  SELECT sequence, request_id, time_ms, key_id, nullif(user, '') AS user, nullif(project, '') AS project, endpoint,
    coalesce(asked_model, s.model) AS model, nullif(s.served_model, '') AS served_model,
    nullif(s.precision, '') AS precision, nullif(s.session_ref, 0) AS session_ref, e.node, e.site, e.engine,
    e.deployment, e.job_id, e.slurm_account, e.tier, e.provider, e.devices, status, stream, attempts,
    max(attempts - 1, 0) AS retries, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
    ttft_us / 1000.0 AS ttft_ms,
    CASE WHEN completion_tokens > 1 THEN (duration_us - ttft_us) / 1000.0 / (completion_tokens - 1) END AS tpot_ms,
    duration_us / 1000.0 AS duration_ms, device_us / 1000000.0 AS device_s, energy_mj / 1000.0 AS energy_j,
    energy_estimated, finish_reason, error_code
  FROM request_rows r JOIN series s ON s.ref = r.series_ref LEFT JOIN sessions e ON e.ref = s.session_ref;

  ${usageByHourSql(`(SELECT * FROM hours UNION ALL ${tail})`)}
`;

/** @param hours the table, or what is in its place */
export function usageByHourSql(hours: string): string {
  return `CREATE VIEW usage_by_hour AS
  SELECT hour * 3600000 AS hour_ms, key_id, nullif(user, '') AS user, nullif(project, '') AS project, endpoint,
    s.model, nullif(s.served_model, '') AS served_model, nullif(s.precision, '') AS precision, e.node, e.site, e.engine,
    e.deployment, e.job_id, e.slurm_account, e.tier, e.provider, e.devices, requests, errors, retries, prompt_tokens,
    completion_tokens, cached_tokens, reasoning_tokens, duration_us / 1000.0 AS duration_ms, ttft_us / 1000.0 AS ttft_ms,
    ttft_requests, decode_us / 1000.0 AS decode_ms, decode_tokens, device_us / 1000000.0 AS device_s,
    energy_mj / 1000.0 AS energy_j, energy_estimated_mj / 1000.0 AS energy_estimated_j, first_ms, last_ms
  FROM ${hours} h JOIN series s ON s.ref = h.series_ref LEFT JOIN sessions e ON e.ref = s.session_ref;`;
}

/**
 * Version 3. What requests have in common with many others is a row of `series`, so that a request is a hundred bytes;
 * `hours` has the sums of each series by hour, so that no question of usage has to read the requests. An unknown
 * member of a series is `''` or 0, for NULLs would not be unique. A name that a client made up is in its request alone
 * (`asked_model`): series are bounded by what is served. Sums are written every few thousand requests: `summed` says up
 * to which, and the requests behind it are added by who reads. Times are whole microseconds, energy whole millijoules.
 */
export const accountingSql = `
  ALTER TABLE sessions ADD COLUMN tier TEXT;
  ALTER TABLE sessions ADD COLUMN provider TEXT;
  ALTER TABLE sessions ADD COLUMN provider_id TEXT;
  ALTER TABLE sessions ADD COLUMN devices TEXT;
  ALTER TABLE sessions ADD COLUMN device_count INTEGER;
  ALTER TABLE spent ADD COLUMN device_us INTEGER NOT NULL DEFAULT 0;

  CREATE TABLE series (
    ref INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL,
    limits_key_id TEXT,
    user TEXT NOT NULL,
    project TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    served_model TEXT NOT NULL,
    precision TEXT NOT NULL,
    session_ref INTEGER NOT NULL,
    UNIQUE (key_id, user, project, endpoint, model, served_model, precision, session_ref)
  ) STRICT;
  CREATE TABLE request_rows (
    sequence INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    series_ref INTEGER NOT NULL,
    asked_model TEXT,
    status INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    cached_tokens INTEGER,
    reasoning_tokens INTEGER,
    ttft_us INTEGER,
    duration_us INTEGER NOT NULL,
    device_us INTEGER,
    energy_mj INTEGER,
    energy_estimated INTEGER NOT NULL,
    finish_reason TEXT,
    error_code TEXT
  ) STRICT;
  CREATE TABLE hours (
    hour INTEGER NOT NULL,
    series_ref INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    duration_us INTEGER NOT NULL,
    ttft_us INTEGER NOT NULL,
    ttft_requests INTEGER NOT NULL,
    decode_us INTEGER NOT NULL,
    decode_tokens INTEGER NOT NULL,
    device_us INTEGER NOT NULL,
    energy_mj INTEGER NOT NULL,
    energy_estimated_mj INTEGER NOT NULL,
    first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    PRIMARY KEY (hour, series_ref)
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE summed (sequence INTEGER NOT NULL) STRICT;
  INSERT INTO summed VALUES (0);
  CREATE TABLE gaps (
    sequence INTEGER PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    reason TEXT NOT NULL
  ) STRICT;
  CREATE TABLE audit (
    sequence INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL
  ) STRICT;
  CREATE TABLE traces (
    sequence INTEGER PRIMARY KEY,
    parameters TEXT NOT NULL,
    prefix BLOB NOT NULL
  ) STRICT;

  INSERT INTO series (key_id, user, project, endpoint, model, served_model, precision, session_ref)
  SELECT DISTINCT key_id, '', '', endpoint, CASE WHEN session_ref IS NULL THEN '' ELSE model END,
    coalesce(served_model, ''), '', coalesce(session_ref, 0) FROM requests;
  INSERT INTO request_rows
  SELECT sequence, request_id, time_ms, s.ref, CASE WHEN r.session_ref IS NULL THEN r.model END, status, stream, attempts,
    prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, CAST(round(ttft_ms * 1000) AS INTEGER),
    CAST(round(duration_ms * 1000) AS INTEGER), NULL, NULL, 0, finish_reason, error_code
  FROM requests r JOIN series s ON s.key_id = r.key_id AND s.user = '' AND s.project = '' AND s.endpoint = r.endpoint
    AND s.model = CASE WHEN r.session_ref IS NULL THEN '' ELSE r.model END
    AND s.served_model = coalesce(r.served_model, '') AND s.precision = '' AND s.session_ref = coalesce(r.session_ref, 0);
  DROP TABLE requests;
  CREATE INDEX request_rows_by_time ON request_rows(time_ms);
  ${sumHoursSql}
  ${noteSummedSql}
  ${viewsSql}
`;

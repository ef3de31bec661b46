/**
 * Sums of an hour and a series from its requests; those that are there already (of requests that left only counts)
 * stay where they are larger.
 */
export const sumHoursSql = `
  INSERT INTO hours
  SELECT time_ms / 3600000, series_ref, count(*), sum(error_code IS NOT NULL), sum(max(attempts - 1, 0)),
    sum(coalesce(prompt_tokens, 0)), sum(coalesce(completion_tokens, 0)), sum(coalesce(cached_tokens, 0)),
    sum(coalesce(reasoning_tokens, 0)), sum(duration_us), sum(coalesce(ttft_us, 0)), count(ttft_us),
    sum(CASE WHEN ttft_us IS NULL OR coalesce(completion_tokens, 0) < 2 THEN 0 ELSE duration_us - ttft_us END),
    sum(CASE WHEN ttft_us IS NULL OR coalesce(completion_tokens, 0) < 2 THEN 0 ELSE completion_tokens - 1 END),
    sum(coalesce(device_us, 0)), sum(coalesce(energy_mj, 0)),
    sum(CASE WHEN energy_estimated THEN coalesce(energy_mj, 0) ELSE 0 END), min(time_ms), max(time_ms)
  FROM request_rows WHERE true GROUP BY 1, 2
  ON CONFLICT (hour, series_ref) DO UPDATE SET
    requests = max(requests, excluded.requests), errors = max(errors, excluded.errors),
    retries = max(retries, excluded.retries), prompt_tokens = max(prompt_tokens, excluded.prompt_tokens),
    completion_tokens = max(completion_tokens, excluded.completion_tokens),
    cached_tokens = max(cached_tokens, excluded.cached_tokens),
    reasoning_tokens = max(reasoning_tokens, excluded.reasoning_tokens),
    duration_us = max(duration_us, excluded.duration_us), ttft_us = max(ttft_us, excluded.ttft_us),
    ttft_requests = max(ttft_requests, excluded.ttft_requests), decode_us = max(decode_us, excluded.decode_us),
    decode_tokens = max(decode_tokens, excluded.decode_tokens), device_us = max(device_us, excluded.device_us),
    energy_mj = max(energy_mj, excluded.energy_mj),
    energy_estimated_mj = max(energy_estimated_mj, excluded.energy_estimated_mj),
    first_ms = min(first_ms, excluded.first_ms), last_ms = max(last_ms, excluded.last_ms);
`;

/** What every key used on each day, from the hours; what is there already stays where it is larger. */
export const sumSpentSql = `
  INSERT INTO spent (key_id, day, requests, tokens, device_us)
  SELECT coalesce(limits_key_id, key_id), hour / 24, sum(requests), sum(prompt_tokens + completion_tokens), sum(device_us)
  FROM hours JOIN series ON ref = series_ref WHERE true GROUP BY 1, 2
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

  CREATE VIEW usage_by_hour AS
  SELECT hour * 3600000 AS hour_ms, key_id, nullif(user, '') AS user, nullif(project, '') AS project, endpoint,
    s.model, nullif(s.served_model, '') AS served_model, nullif(s.precision, '') AS precision, e.node, e.site, e.engine,
    e.deployment, e.job_id, e.slurm_account, e.tier, e.provider, e.devices, requests, errors, retries, prompt_tokens,
    completion_tokens, cached_tokens, reasoning_tokens, duration_us / 1000.0 AS duration_ms, ttft_us / 1000.0 AS ttft_ms,
    ttft_requests, decode_us / 1000.0 AS decode_ms, decode_tokens, device_us / 1000000.0 AS device_s,
    energy_mj / 1000.0 AS energy_j, energy_estimated_mj / 1000.0 AS energy_estimated_j, first_ms, last_ms
  FROM hours h JOIN series s ON s.ref = h.series_ref LEFT JOIN sessions e ON e.ref = s.session_ref;
`;

/**
 * Version 3. What requests have in common with many others is a row of `series`, so that a request is a hundred bytes;
 * `hours` has the sums of each series by hour, so that no question of usage has to read the requests. An unknown
 * member of a series is `''` or 0, for NULLs would not be unique. A name that a client made up is in its request alone
 * (`asked_model`): series are bounded by what is served. Times are whole microseconds, energy whole millijoules.
 */
export const accountingSql = `
  ALTER TABLE sessions ADD COLUMN tier TEXT;
  ALTER TABLE sessions ADD COLUMN provider TEXT;
  ALTER TABLE sessions ADD COLUMN provider_id TEXT;
  ALTER TABLE sessions ADD COLUMN devices TEXT;
  ALTER TABLE sessions ADD COLUMN device_count INTEGER;
  ALTER TABLE sessions ADD COLUMN last_seen_ms INTEGER;
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
  ${viewsSql}
`;

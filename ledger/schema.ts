import type Database from 'better-sqlite3';
import { HpcserveError } from '../spec/errors/error.ts';
import { accountingSql } from './accounting-schema.ts';
import { daysSql } from './days-schema.ts';

/** What every key used on each day: sums of `requests` as it was until version 2, made anew. */
const sumSpentSql = `
  INSERT INTO spent (key_id, day, requests, tokens)
  SELECT key_id, CAST(time_ms / 86400000 AS INTEGER), count(*),
    coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0)
  FROM requests GROUP BY 1, 2;
`;

/**
 * One entry a version of the schema; `PRAGMA user_version` counts how many were applied. Entries are never
 * changed once released: a new version appends one.
 *
 * `spent` holds the sums that budgets are about, so that no budget needs all requests to be read. Days are counted
 * from 1970 in UTC. `sessions` holds what a request shares with thousands of others (node, job, account), so that a row
 * of `requests` stays small and can be joined with Slurm's job records.
 */
const migrations: readonly string[] = [
  `
  CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    created_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER,
    limits TEXT
  ) STRICT;
  CREATE TABLE sessions (
    ref INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL UNIQUE,
    node TEXT NOT NULL,
    site TEXT NOT NULL,
    engine TEXT,
    deployment TEXT,
    job_id TEXT,
    slurm_account TEXT,
    first_seen_ms INTEGER NOT NULL
  ) STRICT;
  CREATE TABLE requests (
    sequence INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    served_model TEXT,
    session_ref INTEGER REFERENCES sessions(ref),
    status INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    cached_tokens INTEGER,
    reasoning_tokens INTEGER,
    ttft_ms REAL,
    duration_ms REAL NOT NULL,
    finish_reason TEXT,
    error_code TEXT
  ) STRICT;
  CREATE INDEX requests_by_time ON requests(time_ms);
  `,
  // Keys have a folder of their own since: `keys` stays for those that were made before.
  `
  CREATE TABLE spent (
    key_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (key_id, day)
  ) STRICT, WITHOUT ROWID;
  ${sumSpentSql}
  `,
  accountingSql,
  daysSql,
];

export const schemaVersion = migrations.length;

/**
 * Brings a ledger to a version of the schema, the current one by default, in one transaction; throws E_LEDGER_VERSION
 * on a newer one.
 */
export function migrate(db: Database.Database, path: string, to = schemaVersion): void {
  const version = db.pragma('user_version', { simple: true }) as number;
  requireKnownVersion(version, path);
  if (version >= to) return;
  db.transaction(() => {
    for (const step of migrations.slice(version, to)) db.exec(step);
    db.pragma(`user_version = ${to}`);
  }).immediate();
}

export function requireKnownVersion(version: number, path: string): void {
  if (version <= schemaVersion) return;
  throw new HpcserveError('E_LEDGER_VERSION', {
    what: `the ledger ${path} has schema version ${version}`,
    because: `this version of hpcserve knows versions up to ${schemaVersion}`,
  });
}

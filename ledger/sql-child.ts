/**
 * Runs one question of SQL on ledgers that it cannot write, and ends: a question on stdin, the answer on stdout, why
 * not on stderr. A process of its own, since SQLite in a thread cannot be stopped from outside.
 */
import { readFileSync } from 'node:fs';
import Database from 'better-sqlite3';
import type { JobRecord } from '../spec/job-record.ts';
import { type SqlAnswer, type SqlQuestion, sqlQuestionSchema, sqlViews } from './sql-messages.ts';

/** Lower: large sorts fail sooner; higher: a question may take more of the machine. */
const heap_bytes_max = 512 * 1024 * 1024;

function answer({ ledgers, jobs, sql, rows_max }: SqlQuestion): SqlAnswer {
  // What is attached is read-only as the first one is.
  const db = new Database(ledgers[0], { readonly: true, fileMustExist: true, timeout: 2000 });
  db.pragma(`hard_heap_limit = ${heap_bytes_max}`);
  const schemas = ['main'];
  for (const [index, path] of ledgers.slice(1).entries()) {
    const schema = `ledger_${index + 2}`;
    db.prepare(`ATTACH ? AS ${schema}`).run(path);
    schemas.push(schema);
  }
  for (const view of sqlViews) {
    const parts = schemas.map((schema, index) => `SELECT ${index + 1} AS ledger, * FROM ${schema}.${view}`);
    db.exec(`CREATE TEMP VIEW ${view} AS ${parts.join(' UNION ALL ')}`);
  }
  addJobs(db, jobs);
  db.pragma('query_only = 1');
  const statement = db.prepare(sql);
  if (!statement.reader || !statement.readonly || !/^(select|with|values|explain)\b/i.test(withoutLead(sql)))
    throw new Error('only questions are asked here: one SELECT, WITH, VALUES or EXPLAIN');
  const columns = statement.columns().map(({ name }) => name);
  const rows: SqlAnswer['rows'] = [];
  for (const row of statement.raw().iterate()) {
    if (rows.length === rows_max) return { columns, rows, cut: true };
    rows.push((row as unknown[]).map(cellOf));
  }
  return { columns, rows, cut: false };
}

/** Behind the space and the comments that SQLite skips. */
function withoutLead(sql: string): string {
  return sql.replace(/^(?:\s|--[^\n]*(?:\n|$)|\/\*(?:[^*]|\*(?!\/))*\*\/)+/, '');
}

/** Runs of jobs are in no ledger: they are kept in files of their own, for all of them. */
function addJobs(db: Database.Database, jobs: readonly JobRecord[]): void {
  db.exec(jobsTable);
  const insert = db.prepare(`INSERT INTO temp.jobs VALUES (${Array.from({ length: 17 }, () => '?').join()})`);
  const now_ms = Date.now();
  db.transaction(() => {
    for (const run of jobs) {
      const { start_ms, end_ms, devices } = run;
      const walltime_s = Math.max(0, (end_ms ?? now_ms) - start_ms) / 1000;
      const words = [run.site, run.job_id, run.launch_id, run.deployment, run.models.join(','), run.tier];
      const place = [run.node_kind, run.account, run.nodes, devices, run.device_model, run.state];
      const time = [start_ms, end_ms, run.end_seen ? 1 : 0, walltime_s];
      const allocated = devices === undefined ? undefined : devices * walltime_s;
      insert.run(...[...words, ...place, ...time, allocated].map((value) => value ?? null));
    }
  })();
}

const jobsTable = `CREATE TEMP TABLE jobs (site TEXT, job_id TEXT, launch_id TEXT, deployment TEXT, models TEXT, tier TEXT,
  node_kind TEXT, slurm_account TEXT, nodes TEXT, devices INTEGER, device_model TEXT, state TEXT, start_ms INTEGER,
  end_ms INTEGER, end_seen INTEGER, walltime_s REAL, allocated_device_s REAL)`;

/** Bytes as hex, as SQLite writes them. */
function cellOf(value: unknown): string | number | null {
  if (Buffer.isBuffer(value)) return `x'${value.toString('hex')}'`;
  return value === null || typeof value === 'number' ? value : String(value);
}

try {
  const question = sqlQuestionSchema.parse(JSON.parse(readFileSync(0, 'utf8')));
  process.stdout.write(JSON.stringify(answer(question)));
} catch (error) {
  process.stderr.write((error as Error).message);
  process.exitCode = 1;
}

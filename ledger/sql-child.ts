/**
 * Runs one question of SQL on ledgers that it cannot write, and ends: a question on stdin, the answer on stdout, why
 * not on stderr. A process of its own, since SQLite in a thread cannot be stopped from outside.
 */
import { readFileSync } from 'node:fs';
import Database from 'better-sqlite3';
import { type SqlAnswer, type SqlQuestion, sqlQuestionSchema, sqlViews } from './sql-messages.ts';

/** Lower: large sorts fail sooner; higher: a question may take more of the machine. */
const heap_bytes_max = 512 * 1024 * 1024;

function answer({ ledgers, sql, rows_max }: SqlQuestion): SqlAnswer {
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
  db.pragma('query_only = 1');
  const statement = db.prepare(sql);
  if (!statement.reader || !statement.readonly || !/^\s*(select|with|values|explain)\b/i.test(sql))
    throw new Error('only questions are asked here: one SELECT, WITH, VALUES or EXPLAIN');
  const columns = statement.columns().map(({ name }) => name);
  const rows: SqlAnswer['rows'] = [];
  for (const row of statement.raw().iterate()) {
    if (rows.length === rows_max) return { columns, rows, cut: true };
    rows.push((row as unknown[]).map(cellOf));
  }
  return { columns, rows, cut: false };
}

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

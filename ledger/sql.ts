import { execFile } from 'node:child_process';
import { compiledFile } from '../host/programs.ts';
import { HpcserveError } from '../spec/errors/error.ts';
import type { JobRecord } from '../spec/job-record.ts';
import { readablePath } from './reader.ts';
import { type SqlAnswer, type SqlQuestion, sqlAnswerSchema } from './sql-messages.ts';

const program = compiledFile('ledger/sql-child.js');
/** An answer beyond this is of no use on a terminal; see `rows_max`. */
const answer_bytes_max = 256 * 1024 * 1024;

export interface SqlOptions {
  /** Beyond it the question is ended. */
  limit_ms: number;
  rows_max: number;
  /** Runs of jobs, which are the rows of `jobs`; absent: it has none. */
  jobs?: JobRecord[];
}

/**
 * Asks ledgers a question in SQL, by the views of docs/usage.md. Nothing is written, whatever it says.
 *
 * @throws E_LEDGER_QUERY, and as `openLedgerReader`
 */
export async function askSql(
  paths: readonly string[],
  sql: string,
  { limit_ms, rows_max, jobs = [] }: SqlOptions,
): Promise<SqlAnswer> {
  const readable = paths.map(readablePath);
  try {
    const question: SqlQuestion = { ledgers: readable.map(({ path }) => path), jobs, sql, rows_max };
    const text = await run(JSON.stringify(question), limit_ms);
    return sqlAnswerSchema.parse(JSON.parse(text));
  } finally {
    for (const { close } of readable) close();
  }
}

function run(question: string, limit_ms: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = execFile(
      process.execPath,
      [program],
      { timeout: limit_ms, killSignal: 'SIGKILL', maxBuffer: answer_bytes_max },
      (error, stdout, stderr) => {
        if (!error) {
          resolve(stdout);
          return;
        }
        const ended = error.killed === true;
        const said = { what: 'the ledgers did not answer the question', cause: error };
        if (ended)
          reject(
            new HpcserveError('E_LEDGER_QUERY', {
              ...said,
              because: `it was ended after ${limit_ms / 1000} s, or its answer is too large`,
              try: 'ask for less, by `usage_by_hour` in the place of `requests`, or give it more time with --time-limit',
            }),
          );
        else reject(new HpcserveError('E_LEDGER_QUERY', { ...said, because: stderr || error.message }));
      },
    );
    // A process that cannot read the question says why itself.
    child.stdin!.on('error', () => {});
    child.stdin!.end(question);
  });
}

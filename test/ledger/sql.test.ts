/** Questions in SQL: what they see, and what they cannot do. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { askSql, type Ledger, openLedger } from '../../ledger/index.ts';

let folder: string;
let paths: string[];
let ledgers: Ledger[];
const limits = { limit_ms: 20_000, rows_max: 100 };

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-sql-test-'));
  paths = ['a', 'b'].map((name) => join(folder, `${name}'; DROP TABLE hours.sqlite`));
  ledgers = paths.map((path) => openLedger(path).ledger);
  for (const [index, ledger] of ledgers.entries())
    await new Promise<void>((resolve, reject) =>
      ledger.record(
        {
          request_id: `req_${index}`,
          time_ms: Date.UTC(2026, 2, 1),
          key_id: 'key_1',
          user: `user${index}`,
          endpoint: '/v1/chat/completions',
          model: "x'); DROP TABLE request_rows; --",
          status: 200,
          stream: false,
          attempts: 2,
          prompt_tokens: 10 + index,
          duration_ms: 1.5,
        },
        (error) => (error ? reject(error) : resolve()),
      ),
    );
});
afterEach(async () => {
  for (const ledger of ledgers) await ledger.close();
  rmSync(folder, { recursive: true });
});

it('see all ledgers as one, while gateways write them', async () => {
  const { columns, rows, cut } = await askSql(
    paths,
    'SELECT ledger, user, model, retries, prompt_tokens, duration_ms, node FROM requests ORDER BY ledger',
    limits,
  );
  expect(columns).toEqual(['ledger', 'user', 'model', 'retries', 'prompt_tokens', 'duration_ms', 'node']);
  expect(rows).toEqual([
    [1, 'user0', "x'); DROP TABLE request_rows; --", 1, 10, 1.5, null],
    [2, 'user1', "x'); DROP TABLE request_rows; --", 1, 11, 1.5, null],
  ]);
  expect(cut).toBe(false);
  expect((await askSql(paths, 'SELECT sum(requests) FROM usage_by_hour', limits)).rows).toEqual([[2]]);
  const all = 'SELECT ledger FROM requests';
  expect(await askSql(paths, all, { ...limits, rows_max: 1 })).toMatchObject({ rows: [[1]], cut: true });
});

it('may begin with comments', async () => {
  for (const before of ['-- how many\n', '/* how; */ /**/\n  ', '\n--\n/* many -- */'])
    expect((await askSql(paths, `${before}SELECT count(*) FROM requests`, limits)).rows).toEqual([[2]]);
  await expect(askSql(paths, `${'/*x*/'.repeat(10_000)}PRAGMA table_list`, limits)).rejects.toMatchObject({
    because: [expect.stringContaining('only questions')],
  });
});

it('change nothing, whatever they say', async () => {
  const before = paths.map((path) => readFileSync(path));
  for (const sql of [
    'DELETE FROM request_rows',
    'UPDATE hours SET requests = 0',
    'WITH x AS (SELECT 1) DELETE FROM hours',
    'SELECT 1; DROP TABLE hours',
    'PRAGMA journal_mode = DELETE',
    'PRAGMA query_only = 0',
    `ATTACH '${join(folder, 'new.sqlite').replaceAll("'", "''")}' AS other`,
    `VACUUM INTO '/tmp/x'`,
    "SELECT load_extension('x')",
    "SELECT writefile('x', 'y')",
    'CREATE TEMP TABLE t (x)',
    '-- SELECT\nDELETE FROM hours',
    '/* SELECT */ PRAGMA query_only = 0',
    '-- nothing else',
    '(SELECT 1)',
    'not even SQL',
    '',
  ])
    await expect(askSql(paths, sql, limits), sql).rejects.toMatchObject({ code: 'E_LEDGER_QUERY' });
  expect(paths.map((path) => readFileSync(path))).toEqual(before);
});

it('end when they take longer than they may', async () => {
  const endless = 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c';
  await expect(askSql(paths, endless, { ...limits, limit_ms: 1000 })).rejects.toMatchObject({
    code: 'E_LEDGER_QUERY',
    because: [expect.stringContaining('ended after 1 s')],
  });
});

/** Statements of SQLite are collected at any moment of a gateway's life; its addon has to bear that on every Node. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';

const program = fileURLToPath(new URL('collect-statements.mjs', import.meta.url));

it('statements that nobody holds are collected, and the process goes on', () => {
  const addon = join(packageRoot, 'node_modules/better-sqlite3');
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [program, addon], {
    encoding: 'utf8',
    timeout: 30_000,
  });
  expect({ status, signal, stderr }).toEqual({ status: 0, signal: null, stderr: '' });
  expect(stdout).toBe('went on\n');
});

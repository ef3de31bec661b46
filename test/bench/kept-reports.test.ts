/** Reports that stay beside the benches: whole, with machine and date, and never one over another. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { keepReport } from '../../bench/kept-reports.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-reports-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('a report is kept under its bench and date, and a second of the same moment does not replace it', () => {
  const report = {
    bench: 'hybridgemm',
    commit: 'abc',
    date: '2026-11-28T12:00:00.123Z',
    machine: 'a CPU',
    results: [],
  };
  const results = join(folder, 'bench/results');
  const file = keepReport(report, results);
  expect(file).toBe(join(results, 'hybridgemm-2026-11-28T12-00-00-123Z.json'));
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(report);
  expect(() => keepReport({ ...report, commit: 'other' }, results)).toThrow(/EEXIST/);
  expect(JSON.parse(readFileSync(file, 'utf8'))).toEqual(report);
});

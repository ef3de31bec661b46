import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { SubmissionPace } from '../../../control/runner/submission-pace.ts';

let folder: string;
let now_ms: number;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hpcserve-pace-'));
  now_ms = 1_000_000;
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const pace = (per_minute: number): SubmissionPace =>
  new SubmissionPace({
    folder,
    per_minute,
    now_ms: () => now_ms,
    command: 'test',
    signal: new AbortController().signal,
  });

it('counts over commands, and a minute later there is room again', async () => {
  expect(await pace(3).take(2)).toBe(2);
  expect(pace(3).room()).toBe(1);
  expect(await pace(3).take(5)).toBe(1);
  expect(await pace(3).take(1)).toBe(0);
  now_ms += 60_000;
  expect(pace(3).room()).toBe(3);
});

it('two commands at once do not take the same room', async () => {
  const taken = await Promise.all([pace(3).take(2), pace(3).take(2), pace(3).take(2)]);
  expect(taken.reduce((sum, count) => sum + count)).toBe(3);
});

it('neither a damaged file nor a clock far ahead blocks it', async () => {
  writeFileSync(join(folder, 'submissions.json'), '{"cut');
  expect(pace(1).room()).toBe(1);
  writeFileSync(join(folder, 'submissions.json'), JSON.stringify({ format: 1, times_ms: [now_ms + 1e9] }));
  expect(await pace(1).take(1)).toBe(1);
});

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { othersShareDuring, racedVerdict } from '../../../agent/engine/raced-verdict.ts';
import { ProofCache } from '../../../native/proof-cache.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-verdict-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** One process after another that asks with the same file: what it finds, on how busy a machine. */
function nextProcess(path: string, found: boolean | undefined, others_share: number) {
  let races = 0;
  const cache = new ProofCache(path);
  const here = new Set<string>();
  const ask = (): boolean =>
    racedVerdict(
      cache,
      'Q4_0',
      () => {
        races++;
        return found;
      },
      { here, othersShare: (run) => ({ result: run(), others_share }) },
    );
  const won = [ask(), ask()];
  cache.write();
  return { won: won[0], again: won[1], races };
}

test('what a busy machine said is raced again by the next process, until one was quiet', () => {
  const path = join(folder, 'busy.json');
  expect(nextProcess(path, false, 0.6)).toEqual({ won: false, again: false, races: 1 });
  // A machine that is busier still decides nothing.
  expect(nextProcess(path, true, 0.8)).toEqual({ won: false, again: false, races: 1 });
  expect(nextProcess(path, true, 0.05)).toEqual({ won: true, again: true, races: 1 });
  expect(nextProcess(path, false, 0)).toEqual({ won: true, again: true, races: 0 });
});

test('where it is never quiet, the quietest of five races counts', () => {
  const path = join(folder, 'never.json');
  for (const others_share of [0.9, 0.5, 0.7, 0.8, 0.9])
    expect(nextProcess(path, others_share === 0.5, others_share).races).toBe(1);
  expect(nextProcess(path, false, 0)).toEqual({ won: true, again: true, races: 0 });
});

test('a race that cannot be run is lost, and run by the next process', () => {
  const path = join(folder, 'none.json');
  expect(nextProcess(path, undefined, 0)).toEqual({ won: false, again: false, races: 2 });
  expect(nextProcess(path, true, 0)).toMatchObject({ won: true, races: 1 });
});

test('of two processes that raced at once, the quieter one’s verdict is kept', () => {
  const path = join(folder, 'both.json');
  const [noisy, quiet] = [new ProofCache(path), new ProofCache(path)];
  quiet.addVerdict('Q4_0', { won: true, others_share: 0.02 });
  quiet.write();
  noisy.addVerdict('Q4_0', { won: false, others_share: 0.4 });
  noisy.write();
  expect(new ProofCache(path).verdict('Q4_0')).toMatchObject({ won: true, others_share: 0.02 });
});

test('a file of an earlier version is what passed, and no verdict', () => {
  const path = join(folder, 'old.json');
  writeFileSync(path, JSON.stringify(['right', 'Q4_0 faster']));
  const cache = new ProofCache(path);
  expect(cache.has('right')).toBe(true);
  expect(cache.verdict('Q4_0')).toBeUndefined();
});

test('own work is not that of others', () => {
  const { others_share } = othersShareDuring(() => {
    for (const end = performance.now() + 200; performance.now() < end; );
  });
  expect(others_share).toBeGreaterThanOrEqual(0);
  expect(others_share).toBeLessThanOrEqual(1);
});

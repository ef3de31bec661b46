/**
 * `node dist/test/write-long-suites.js FILE`: which suites take long, from the file that
 * `HPCSERVE_TEST_DURATIONS=FILE npm test -- --all` wrote, into `test/long-suites.json`.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { laneOf } from './lanes.ts';
import type { TestReport } from './reporter.ts';
import { alwaysRuns } from './turns.ts';

/** Lower: a shorter `npm test`, and more suites that a landing runs only every third time. */
const long_s = 20;

const measured = process.argv[2];
if (measured === undefined) {
  console.error('usage: node dist/test/write-long-suites.js FILE');
  process.exit(2);
}
const { files } = JSON.parse(readFileSync(measured, 'utf8')) as { files: TestReport['durations'] };
const long = files
  .filter(({ file, duration_s }) => duration_s > long_s || laneOf(file) === 'alone')
  .filter(({ file }) => !Object.hasOwn(alwaysRuns, file))
  .map(({ file, duration_s }): [string, number] => [file, Math.ceil(duration_s)])
  .toSorted(([a], [b]) => a.localeCompare(b));
writeFileSync(
  join(packageRoot, 'test/long-suites.json'),
  `${JSON.stringify(Object.fromEntries(long), undefined, 2)}\n`,
);
console.log(`${long.length} suites take long`);

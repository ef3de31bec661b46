/**
 * `npm test [-- FILTER…]`: installs what the suites need, runs them (unit and integration side by side,
 * end-to-end one after another), and ends with what could not run. In CI a skipped test is a failure
 * unless `test/may-skip.json` names it with the hardware or program that it needs.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { packageRoot } from '../spec/package-root.ts';
import { ensureShellcheckInstalled, ensureSlurmInstalled } from './cluster/install.ts';
import { acquireCluster } from './cluster/shared.ts';

interface JsonReport {
  success: boolean;
  numPassedTests: number;
  numFailedTests: number;
  testResults: {
    name: string;
    status: string;
    message: string;
    assertionResults: { status: string; fullName: string }[];
  }[];
}

interface MaySkip {
  suite: string;
  needs: string;
}

const filters = process.argv.slice(2);
const inCi = process.env.CI === 'true' || process.env.CI === '1';
const say = (line: string): void => console.error(line);
const slurm = await ensureSlurmInstalled(say);
const shellcheck = await ensureShellcheckInstalled();
const missing = [slurm, shellcheck].flatMap((answer) => (answer.ready ? [] : [answer.missing]));

const reports = [
  runVitest('unit and integration', ['--exclude', '**/*.e2e.test.ts', '--exclude', '**/node_modules/**']),
  await runEndToEnd(),
];

const passed = sum((report) => report.numPassedTests);
const skipped = reports.flatMap((report) =>
  report.testResults.flatMap((file) =>
    file.assertionResults
      .filter((test) => test.status !== 'passed' && test.status !== 'failed')
      .map((test) => `${relative(packageRoot, file.name)} › ${test.fullName}`),
  ),
);
// A file that fails while it loads has no failed test of its own.
const brokenFiles = reports.flatMap((report) =>
  report.testResults.filter(
    (file) => file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed'),
  ),
);
const failed = sum((report) => report.numFailedTests) + brokenFiles.length;

const maySkip = JSON.parse(readFileSync(join(packageRoot, 'test/may-skip.json'), 'utf8')) as MaySkip[];
const unlisted = skipped.filter((name) => !maySkip.some((entry) => name.startsWith(entry.suite)));

console.log('');
for (const file of brokenFiles)
  console.log(`could not load: ${relative(packageRoot, file.name)}: ${file.message.split('\n')[0]}`);
for (const words of missing) console.log(`not here: ${words}`);
if (skipped.length === 0) console.log('everything ran; nothing was skipped');
for (const name of skipped) {
  const entry = maySkip.find((listed) => name.startsWith(listed.suite));
  console.log(
    `could not run: ${name}${entry ? ` (needs ${entry.needs})` : ' (not listed in test/may-skip.json)'}`,
  );
}
if (inCi && unlisted.length > 0)
  console.log(`in CI every skip must be listed in test/may-skip.json: ${unlisted.length} are not`);
console.log(`${passed} passed, ${failed} failed, ${skipped.length} skipped`);
const ranNothing = passed + failed === 0;
if (ranNothing) console.log(`no test matches ${filters.join(' ')}`);
process.exit(failed > 0 || ranNothing || (inCi && unlisted.length > 0) ? 1 : 0);

/** The suites share one cluster, which this lease keeps up from the first to the last. */
async function runEndToEnd(): Promise<JsonReport> {
  const lease = slurm.ready ? await acquireCluster() : undefined;
  try {
    return runVitest('end to end', [
      '--no-file-parallelism',
      ...['--exclude', '**/!(*.e2e).test.ts', '--exclude', '**/node_modules/**'],
    ]);
  } finally {
    await lease?.release();
  }
}

function runVitest(title: string, options: string[]): JsonReport {
  console.log(`\n── ${title} ──`);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-test-'));
  const reportFile = join(folder, 'report.json');
  try {
    const vitest = join(packageRoot, 'node_modules/vitest/vitest.mjs');
    const config = join(packageRoot, 'test/vitest.config.ts');
    const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${reportFile}`];
    const result = spawnSync(
      process.execPath,
      [vitest, 'run', '--config', config, '--passWithNoTests', ...reporters, ...options, ...filters],
      { cwd: packageRoot, stdio: ['ignore', 'inherit', 'inherit'] },
    );
    if (result.error) throw result.error;
    const report = JSON.parse(readFileSync(reportFile, 'utf8')) as JsonReport;
    // An unhandled error outside any test makes vitest fail without a failed test.
    if (
      result.status !== 0 &&
      report.numFailedTests === 0 &&
      report.testResults.every((file) => file.status !== 'failed')
    ) {
      report.numFailedTests = 1;
      console.log(
        `vitest ended with ${result.status ?? result.signal} although no test failed: see the errors above`,
      );
    }
    return report;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function sum(count: (report: JsonReport) => number): number {
  return reports.reduce((total, report) => total + count(report), 0);
}

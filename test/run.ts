/**
 * `npm test [-- FILTER…]`: installs what the suites need, runs them (unit and integration side by side,
 * end-to-end one after another), and ends with what could not run and what failed. In CI a skipped test is a
 * failure unless `test/may-skip.json` names it with the hardware or program that it needs.
 *
 * Many suites start real processes and wait for them with deadlines, which a machine busy with something else can
 * miss. Files that failed are therefore run once more, alone; one that passes then is named as unstable, with what it
 * failed with at first.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../spec/package-root.ts';
import { ensureShellcheckInstalled, ensureSlurmInstalled } from './cluster/install.ts';
import { acquireCluster } from './cluster/shared.ts';
import type { TestReport } from './reporter.ts';

interface MaySkip {
  suite: string;
  needs: string;
}

/** At most this much of a failure is said again at the end; the whole is where it happened. */
const repeatedLines = 12;
/** So many files that failed are tried once more; if it is more, the machine is not to blame. */
const retriedFiles = 3;

const filters = process.argv.slice(2);
const inCi = process.env.CI === 'true' || process.env.CI === '1';
const say = (line: string): void => console.error(line);
const slurm = await ensureSlurmInstalled(say);
const shellcheck = await ensureShellcheckInstalled();
const missing = [slurm, shellcheck].flatMap((answer) => (answer.ready ? [] : [answer.missing]));

const unit = runVitest('unit and integration', ['--exclude', '**/*.e2e.test.ts'], filters);
// The suites from here on share one cluster, which this lease keeps up from the first to the last.
const lease = slurm.ready ? await acquireCluster() : undefined;
let first: TestReport;
let report: TestReport;
try {
  const endToEnd = ['--exclude', '**/!(*.e2e).test.ts', '--no-file-parallelism'];
  first = merged([unit, runVitest('end to end', endToEnd, filters)]);
  report = onceMore(first);
} finally {
  await lease?.release();
}

const { tests, failures } = report;
const passed = tests.filter((test) => test.state === 'passed').length;
const skipped = tests.filter((test) => test.state === 'skipped').map((test) => `${test.file} › ${test.name}`);

const maySkip = JSON.parse(readFileSync(join(packageRoot, 'test/may-skip.json'), 'utf8')) as MaySkip[];
const unlisted = skipped.filter((name) => !maySkip.some((entry) => name.startsWith(entry.suite)));

console.log('');
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
for (const { file, name, message } of first.failures.filter(
  ({ file }) => !failures.some((failure) => failure.file === file),
))
  console.log(`\nunstable: passed when it ran alone; at first: ${file} › ${name}\n${indented(message)}`);
for (const { file, name, message } of failures)
  console.log(`\nfailed: ${file} › ${name}\n${indented(message)}`);
console.log(`\n${passed} passed, ${failures.length} failed, ${skipped.length} skipped`);
const ranNothing = tests.length + failures.length === 0;
if (ranNothing) console.log(`no test matches ${filters.join(' ')}`);
process.exit(failures.length > 0 || ranNothing || (inCi && unlisted.length > 0) ? 1 : 0);

function merged(reports: TestReport[]): TestReport {
  return {
    tests: reports.flatMap((report) => report.tests),
    failures: reports.flatMap((report) => report.failures),
  };
}

/** The report with the files that failed replaced by their second run, where there are few. */
function onceMore(report: TestReport): TestReport {
  const files = [...new Set(report.failures.map(({ file }) => file))];
  if (files.length === 0 || files.length > retriedFiles || files.includes('')) return report;
  const again = runVitest('once more, alone', ['--no-file-parallelism'], files);
  const others = ({ file }: { file: string }): boolean => !files.includes(file);
  return merged([{ tests: report.tests.filter(others), failures: report.failures.filter(others) }, again]);
}

function runVitest(title: string, options: string[], files: string[]): TestReport {
  console.log(`\n── ${title} ──`);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-test-'));
  const reportFile = join(folder, 'report.json');
  try {
    const vitest = join(packageRoot, 'node_modules/vitest/vitest.mjs');
    const config = join(packageRoot, 'test/vitest.config.ts');
    const reporters = ['--reporter=default', `--reporter=${join(packageRoot, 'test/reporter.ts')}`];
    const result = spawnSync(
      process.execPath,
      [vitest, 'run', '--config', config, '--passWithNoTests', ...reporters, ...options, ...files],
      {
        cwd: packageRoot,
        stdio: ['ignore', 'inherit', 'inherit'],
        env: { ...process.env, HPCSERVE_TEST_REPORT: reportFile },
      },
    );
    if (result.error) throw result.error;
    const report = JSON.parse(readFileSync(reportFile, 'utf8')) as TestReport;
    if (result.status !== 0 && report.failures.length === 0)
      report.failures.push({
        file: '',
        name: `(vitest, ${title})`,
        message: `ended with ${result.status ?? result.signal} although no test failed: see above`,
      });
    return report;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function indented(message: string): string {
  const lines = message.replace(/\u001b\[[\d;]*m/g, '').split('\n');
  return lines
    .slice(0, repeatedLines)
    .map((line) => `  ${line.slice(0, 300)}`)
    .join('\n');
}

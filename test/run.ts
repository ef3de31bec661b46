/**
 * `npm test [-- FILTER…]`: installs what the suites need, runs them (unit and integration side by side,
 * end-to-end one after another), and ends with what could not run and what failed. In CI a skipped test is a
 * failure unless `test/may-skip.json` names it with the hardware or program that it needs.
 *
 * Many suites start real processes. To tell a test that depends on what runs beside it from one that is simply
 * broken, files that failed are run once more, alone, and what came of it is said; the run has failed either way.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { loadGgml } from '../native/ggml.ts';
import { ensureShellcheckInstalled, ensureSlurmInstalled } from './cluster/install.ts';
import { acquireCluster } from './cluster/shared.ts';
import type { TestReport } from './reporter.ts';

interface MaySkip {
  suite: string;
  needs: string;
}

/** At most this much of a failure is said again at the end; the whole is where it happened. */
const repeatedLines = 12;
/** So many files that failed are tried once more. */
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
let report: TestReport;
let stable: Set<string>;
try {
  const endToEnd = ['--exclude', '**/!(*.e2e).test.ts', '--no-file-parallelism'];
  report = merged([unit, runVitest('end to end', endToEnd, filters)]);
  stable = passAlone(report);
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
for (const line of instructionSets()) console.log(line);
if (inCi && unlisted.length > 0)
  console.log(`in CI every skip must be listed in test/may-skip.json: ${unlisted.length} are not`);
for (const { file, name, message } of failures) {
  const alone = stable.has(file) ? ' (its file passed when it ran once more, alone)' : '';
  console.log(`\nfailed: ${file} › ${name}${alone}\n${indented(message)}`);
}
console.log(`\n${passed} passed, ${failures.length} failed, ${skipped.length} skipped`);
const ranNothing = tests.length + failures.length === 0;
if (ranNothing) console.log(`no test matches ${filters.join(' ')}`);
process.exit(failures.length > 0 || ranNothing || (inCi && unlisted.length > 0) ? 1 : 0);

/** What the engine was tried on: this CPU, and each library of ggml for another one that it can run. */
function instructionSets(): string[] {
  const names = tests.flatMap(({ file, name, state }) => {
    const of = file === 'test/agent/engine/cpu-libraries.test.ts' ? /^CPU library (\w+)/.exec(name) : null;
    return of && state === 'passed' ? [of[1]!] : [];
  });
  if (names.length === 0) return [];
  const { cpuFeatures } = loadGgml();
  return [
    `instruction sets of this CPU, on which all ran: ${cpuFeatures.join(' ')}`,
    `CPU libraries that ran here, one by one: ${names.join(', ')}`,
  ];
}

function merged(reports: TestReport[]): TestReport {
  return {
    tests: reports.flatMap((report) => report.tests),
    failures: reports.flatMap((report) => report.failures),
  };
}

/** Of the files that failed, those that pass when they run alone; none are tried where there are many. */
function passAlone({ failures }: TestReport): Set<string> {
  const files = [...new Set(failures.map(({ file }) => file))];
  if (files.length === 0 || files.length > retriedFiles || files.includes('')) return new Set();
  const again = runVitest('once more, alone', ['--no-file-parallelism'], files);
  const broken = new Set(again.failures.map(({ file }) => file));
  return new Set(files.filter((file) => !broken.has(file)));
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

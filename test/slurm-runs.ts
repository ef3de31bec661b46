/** `npm test -- --slurm 20.11,24.11 [FILTER…]`: the end-to-end suites on each of these releases, one by one. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { debianSuite, ensureSlurmRelease, type SlurmRelease, slurmPrograms } from './cluster/slurm-folder.ts';
import { endToEndLane } from './lanes.ts';
import type { TestReport } from './reporter.ts';
import { runVitest } from './run-vitest.ts';
import { type SlurmRun, type SuiteResult, withSlurmRun } from './slurm-table.ts';

const page = join(packageRoot, 'docs/slurm.md');

/** @returns the exit code: 0 where nothing failed, and every release could be run */
export async function runOnReleases(
  releases: readonly SlurmRelease[],
  filters: readonly string[],
  say: (line: string) => void,
): Promise<number> {
  let failed = false;
  for (const release of releases) {
    const installation = await ensureSlurmRelease(release, say);
    if (!installation.ready) {
      console.log(`not here: ${installation.missing}`);
      failed = true;
      continue;
    }
    const run = await runOn(release, filters);
    if (run === undefined) {
      console.log(`no end-to-end test matches ${filters.join(' ')}`);
      return 1;
    }
    const sum = (what: keyof SuiteResult): number =>
      [...run.suites.values()].reduce((total, result) => total + result[what], 0);
    failed ||= sum('failed') > 0;
    const isThere = (suite: string): boolean => existsSync(join(packageRoot, suite));
    writeFileSync(page, withSlurmRun(readFileSync(page, 'utf8'), run, isThere));
    console.log(
      `Slurm ${run.version}: ${sum('passed')} passed, ${sum('failed')} failed, ${sum('skipped')} skipped`,
    );
  }
  return failed ? 1 : 0;
}

/** Undefined where no suite has such a name. */
async function runOn(release: SlurmRelease, filters: readonly string[]): Promise<SlurmRun | undefined> {
  const title = `Slurm ${release}`;
  const report = await runVitest({ ...endToEndLane, title }, filters, {
    environment: { HPCSERVE_TEST_SLURM: release },
  });
  if (report.tests.length + report.failures.length === 0) return undefined;
  for (const { file, name, message } of report.failures)
    console.log(`\nfailed: ${file} › ${name}\n${message}`);
  return {
    version: slurmPrograms(release).version,
    debian: debianSuite(release),
    suites: new Map(report.durations.map(({ file }) => [file, resultOf(report, file)])),
    date: new Date().toISOString().slice(0, 10),
  };
}

function resultOf({ tests, failures }: TestReport, file: string): SuiteResult {
  const inState = (wanted: string): number =>
    tests.filter((test) => test.file === file && test.state === wanted).length;
  return {
    passed: inState('passed'),
    // What is of no file may be of any.
    failed: failures.filter((failure) => failure.file === file || failure.file === '').length,
    skipped: inState('skipped'),
  };
}

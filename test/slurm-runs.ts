/** `npm test -- --slurm 20.11,24.11 [FILTER…]`: the end-to-end suites on each of these releases, one by one. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { debianSuite, ensureSlurmRelease, type SlurmRelease, slurmPrograms } from './cluster/slurm-folder.ts';
import { endToEndLane } from './lanes.ts';
import { runVitest } from './run-vitest.ts';
import { type SlurmRun, withSlurmRun } from './slurm-table.ts';

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
    failed ||= run.failed > 0;
    writeFileSync(page, withSlurmRun(readFileSync(page, 'utf8'), run));
    console.log(`Slurm ${run.version}: ${run.passed} passed, ${run.failed} failed, ${run.skipped} skipped`);
  }
  return failed ? 1 : 0;
}

/** Undefined where no suite has such a name. */
async function runOn(release: SlurmRelease, filters: readonly string[]): Promise<SlurmRun | undefined> {
  const title = `Slurm ${release}`;
  const { tests, failures, durations } = await runVitest({ ...endToEndLane, title }, filters, {
    environment: { HPCSERVE_TEST_SLURM: release },
  });
  if (tests.length + failures.length === 0) return undefined;
  for (const { file, name, message } of failures) console.log(`\nfailed: ${file} › ${name}\n${message}`);
  return {
    version: slurmPrograms(release).version,
    suite: debianSuite(release),
    files: filters.length === 0 ? undefined : durations.map(({ file }) => file),
    passed: tests.filter(({ state }) => state === 'passed').length,
    failed: failures.length,
    skipped: tests.filter(({ state }) => state === 'skipped').length,
    date: new Date().toISOString().slice(0, 10),
  };
}

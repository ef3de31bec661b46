/**
 * `npm test [-- [--turn N | --all] [--slurm RELEASES] [--node MAJOR] [--vulkan] [--device NAME] FILTER…]`: installs
 * what the suites need, runs them (`test/turns.ts` says which, `test/lanes.ts` which beside which), and ends with what
 * could not run, what was left to other runs, and what failed. In CI a skipped test is a failure unless
 * `test/may-skip.json` names it with the hardware or program that it needs.
 *
 * `--slurm 20.11,24.11` runs the end-to-end suites on these releases instead, and writes what came of it into
 * docs/slurm.md. `--node 22` runs the same on another Node. `--vulkan` runs the suites of the native engine on a
 * Vulkan device, `--device CUDA0 --libraries FOLDER` on a GPU.
 *
 * Many suites start real processes. To tell a test that depends on what runs beside it from one that is simply
 * broken, files that failed are run once more, alone, and what came of it is said; the run has failed either way.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { loadGgml } from '../native/ggml.ts';
import { parseTestArguments, type TestArguments } from './arguments.ts';
import { ensureShellcheckInstalled, ensureSlurmInstalled } from './cluster/install.ts';
import { acquireCluster, type ClusterLease, testClusterName } from './cluster/shared.ts';
import { runOnDevice, runOnVulkan } from './device-run.ts';
import { ensureVulkanDevice } from './engines/make-vulkan.ts';
import { ensureFabricLibrary } from './fabric-library.ts';
import { aloneOf, type Lane, laneAlone, lanesSideBySide, laneWorkers, onlyByName } from './lanes.ts';
import { runOnNode } from './other-node.ts';
import type { TestReport } from './reporter.ts';
import { runVitest } from './run-vitest.ts';
import { runOnReleases } from './slurm-runs.ts';
import { leftOutOf, turnCount } from './turns.ts';

interface MaySkip {
  suite: string;
  needs: string;
}

/** At most this much of a failure is said again at the end; the whole is where it happened. */
const repeatedLines = 12;
/** The same of what was seen when it failed. */
const seenLines = 80;
/** So many of the files that took longest are named. */
const slowestShown = 5;
/** So many files that failed are tried once more. */
const retriedFiles = 3;

const { filters, extent, releases, node, vulkan, device } = argumentsOrUsage();
const leftOut = filters.length > 0 ? [] : leftOutOf(extent);
const inCi = process.env.CI === 'true' || process.env.CI === '1';
const say = (line: string): void => console.error(line);
if (node !== undefined) {
  const slurms = releases.length > 0 ? [`--slurm=${releases.join(',')}`] : [];
  process.exit(runOnNode(node, [...slurms, ...extentWords(), ...filters], say));
}
if (vulkan) process.exit(await runOnVulkan(filters, say));
if (device) process.exit(await runOnDevice(device, filters));
const slurm = await ensureSlurmInstalled(say);
const shellcheck = await ensureShellcheckInstalled();
const fabric = await ensureFabricLibrary(say);
// Of a run of some files those that need it say how it is had.
const vulkan_device = filters.length + releases.length === 0 ? [await ensureVulkanDevice(say)] : [];
const missing = [slurm, shellcheck, fabric, ...vulkan_device].flatMap((answer) =>
  answer.ready ? [] : [answer.missing],
);
if (releases.length > 0) process.exit(await runOnReleases(releases, filters, say));

const leases = slurm.ready ? await leaseClusters() : [];
let report: TestReport;
let stable: Set<string>;
try {
  const alone = aloneOf(filters, leftOut);
  const reports = (
    await Promise.all(lanesSideBySide(leftOut, extent === 'short').map(oneAfterTheOther))
  ).flat();
  if (alone.length > 0) reports.push(await runVitest(laneAlone, alone));
  report = merged(reports);
  stable = await passAlone(report);
} finally {
  for (const lease of leases) await lease.release();
}

const { tests, failures, durations } = report;
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
if (filters.length === 0)
  for (const [file, minutes] of Object.entries(onlyByName))
    console.log(`not in a whole run, as it takes ${minutes} min more: npm test -- ${file}`);
if (leftOut.length > 0) console.log(`${leftOut.length} suites that take long were left to ${otherRuns()}`);
for (const line of instructionSets()) console.log(line);
for (const line of slowest()) console.log(line);
if (process.env.HPCSERVE_TEST_DURATIONS)
  writeFileSync(
    process.env.HPCSERVE_TEST_DURATIONS,
    JSON.stringify({ files: durations, tests }, undefined, 2),
  );
if (inCi && unlisted.length > 0)
  console.log(`in CI every skip must be listed in test/may-skip.json: ${unlisted.length} are not`);
for (const { file, name, message, seen } of failures) {
  const alone = stable.has(file) ? ' (its file passed when it ran once more, alone)' : '';
  console.log(`\nfailed: ${file} › ${name}${alone}\n${indented(message, repeatedLines)}`);
  if (seen !== undefined) console.log(`  seen then:\n${indented(seen, seenLines)}`);
}
console.log(`\n${passed} passed, ${failures.length} failed, ${skipped.length} skipped`);
const ranNothing = tests.length + failures.length === 0;
if (ranNothing) console.log(`no test matches ${filters.join(' ')}`);
process.exit(failures.length > 0 || ranNothing || (inCi && unlisted.length > 0) ? 1 : 0);

function argumentsOrUsage(): TestArguments {
  try {
    return parseTestArguments(process.argv.slice(2));
  } catch (error) {
    console.error(
      `${(error as Error).message}\nusage: npm test -- [--turn N | --all] [--slurm RELEASE,…] [--node MAJOR] [--vulkan | --device NAME --libraries FOLDER] [FILTER…]`,
    );
    return process.exit(2);
  }
}

function extentWords(): string[] {
  if (extent === 'short') return [];
  return [extent === 'all' ? '--all' : `--turn=${extent.turn}`];
}

function otherRuns(): string {
  const turns = Array.from({ length: turnCount }, (_, index) => index + 1);
  const others = typeof extent === 'string' ? turns : turns.filter((turn) => turn !== extent.turn);
  return `others: npm test -- --turn ${others.join(' or ')}, or --all`;
}

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

async function oneAfterTheOther(lanes: readonly Lane[]): Promise<TestReport[]> {
  const reports: TestReport[] = [];
  for (const lane of lanes) reports.push(await runVitest(lane, filters, { prefixed: true }));
  return reports;
}

/** The cluster of each worker, up from the first suite that needs it to the last. */
function leaseClusters(): Promise<ClusterLease[]> {
  const workers = Array.from({ length: laneWorkers.end_to_end }, (_, index) => index + 1);
  return Promise.all(workers.map((worker) => acquireCluster(testClusterName(undefined, worker))));
}

/** The files that took longest: where to look when all of it takes too long. */
function slowest(): string[] {
  const shown = durations.toSorted((a, b) => b.duration_s - a.duration_s).slice(0, slowestShown);
  return shown.map(({ file, duration_s }) => `took ${duration_s.toFixed(0)} s: ${file}`);
}

function merged(reports: readonly TestReport[]): TestReport {
  return {
    tests: reports.flatMap((report) => report.tests),
    failures: reports.flatMap((report) => report.failures),
    durations: reports.flatMap((report) => report.durations),
  };
}

/** Of the files that failed, those that pass when they run alone; none are tried where there are many. */
async function passAlone({ failures }: TestReport): Promise<Set<string>> {
  const files = [...new Set(failures.map(({ file }) => file))];
  if (files.length === 0 || files.length > retriedFiles || files.includes('')) return new Set();
  const again = await runVitest({ ...laneAlone, title: 'once more, alone' }, files);
  const broken = new Set(again.failures.map(({ file }) => file));
  return new Set(files.filter((file) => !broken.has(file)));
}

function indented(message: string, most: number): string {
  const lines = message.replace(/\u001b\[[\d;]*m/g, '').split('\n');
  return lines
    .slice(0, most)
    .map((line) => `  ${line.slice(0, 300)}`)
    .join('\n');
}

/** Races between kernels, and when what came of one is believed. */
import { cpus } from 'node:os';
import { readProcessors } from '../../host/processors.ts';
import type { ProofCache } from '../../native/proof-cache.ts';

/**
 * Share of the cores that others may have in a race that is believed for good. Lower: races are run again more often;
 * higher: what others do decides.
 */
const quiet_share_max = 0.1;
/** On a machine that is never quiet, the quietest of so many races counts. Lower: starts are quicker. */
const races_max = 5;

/** What this process has raced, by file and key. */
const racedHere = new Set<string>();

/**
 * Whether a race was won. It is run again by each process that asks, until it was run on a quiet machine: the first
 * model of a node may start beside whatever else starts there.
 * @param race undefined: it could not be run
 * @param seams what a test has in its place
 */
export function racedVerdict(
  cache: ProofCache,
  key: string,
  race: () => boolean | undefined,
  { here = racedHere, othersShare = othersShareDuring } = {},
): boolean {
  const name = `${cache.path} ${key}`;
  const known = cache.verdict(key);
  const final =
    known && (here.has(name) || known.others_share <= quiet_share_max || known.races >= races_max);
  if (final) return known.won;
  here.add(name);
  const { result, others_share } = othersShare(race);
  if (result === undefined) return known?.won ?? false;
  return cache.addVerdict(key, { won: result, others_share: Number(others_share.toFixed(3)) }).won;
}

/** What others had of the cores that this process may use, 0 to 1, while something ran in it. */
export function othersShareDuring<T>(run: () => T): { result: T; others_share: number } {
  const { allowed_cores } = readProcessors();
  const before = { busy_ms: busy_ms(allowed_cores), own: process.cpuUsage(), at_ms: performance.now() };
  const result = run();
  const own = process.cpuUsage(before.own);
  const elapsed_ms = (performance.now() - before.at_ms) * allowed_cores.length;
  const others_ms = busy_ms(allowed_cores) - before.busy_ms - (own.user + own.system) / 1000;
  return { result, others_share: Math.min(1, Math.max(0, others_ms / elapsed_ms)) };
}

/** Time that cores did not idle since they were started. */
function busy_ms(cores: readonly number[]): number {
  const all = cpus();
  return cores.reduce((sum, core) => {
    const { user, nice, sys, irq } = all[core]?.times ?? { user: 0, nice: 0, sys: 0, irq: 0 };
    return sum + user + nice + sys + irq;
  }, 0);
}

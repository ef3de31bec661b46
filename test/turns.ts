/**
 * How much a run takes that no file was named for:
 *
 *     npm test                 short: what is over soon, and what every change is held against (`alwaysRuns`)
 *     npm test -- --turn 2     and a third of the suites that take long (`long-suites.json`)
 *     npm test -- --all        and all of them
 *
 * What has to hold before a change lands is one turn, as its commit's hash falls (`.ci/run`): landings in a row run
 * everything sooner or later, and each has its answer while its author still knows what it was about.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { type LaneKind, laneOf } from './lanes.ts';

/** Lower: more of the long suites in a landing. Higher: each of them more seldom. */
export const turnCount = 3;

export type Extent = 'short' | 'all' | { turn: number };

/** Files that take long and run nevertheless, and what a change would break there first. */
export const alwaysRuns: Readonly<Record<string, string>> = {
  'test/e2e/slurm-deploy.e2e.test.ts': 'the main job, from the command to the answer, on a Slurm cluster',
  'test/e2e/local-site.e2e.test.ts': 'the same without Slurm',
  'test/failover/native.test.ts': 'a stream whose replica dies goes on at the letter',
  'test/agent/engine/reference.test.ts': 'tokens and logits beside those of libllama',
  'test/repo-rules/style.test.ts': 'the rules of the tree',
  'test/repo-rules/unreached.test.ts': 'the rules of the tree',
  'test/repo-rules/dependencies.test.ts': 'the rules of the tree',
};

/** Files that take more than twenty seconds beside others on two cores, and the seconds. */
export const longSuites = JSON.parse(
  readFileSync(join(packageRoot, 'test/long-suites.json'), 'utf8'),
) as Readonly<Record<string, number>>;

/** The long suites of each turn: about as many seconds in all of them, lane by lane, since lanes run side by side. */
export function turnsOf(seconds: Readonly<Record<string, number>>): string[][] {
  const turns = Array.from({ length: turnCount }, (): string[] => []);
  const filled_s: Record<LaneKind, number[]> = {
    units: turns.map(() => 0),
    'end to end': turns.map(() => 0),
    alone: turns.map(() => 0),
  };
  for (const [file, file_s] of Object.entries(seconds).toSorted(longestFirst)) {
    const inLane_s = filled_s[laneOf(file)];
    const least = inLane_s.indexOf(Math.min(...inLane_s));
    turns[least]!.push(file);
    inLane_s[least]! += file_s;
  }
  return turns;
}

function longestFirst([a, a_s]: [string, number], [b, b_s]: [string, number]): number {
  return b_s - a_s || a.localeCompare(b);
}

/** Long suites that a run of this extent leaves to others. */
export function leftOutOf(extent: Extent): string[] {
  if (extent === 'all') return [];
  const chosen = extent === 'short' ? [] : turnsOf(longSuites)[extent.turn - 1]!;
  return Object.keys(longSuites).filter((file) => !chosen.includes(file));
}

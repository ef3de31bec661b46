/**
 * Which test files run beside which. Most suites wait more than they compute: for a process to start, for Slurm to look
 * at its queue, for a pause that is the promise. So two lanes run side by side, each with two files at a time:
 *
 *     units and integration  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
 *     end to end             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
 *     alone                                               ▒▒▒▒▒▒
 *
 * Each of the two workers of the second lane has a Slurm cluster of its own (`test/cluster/shared.ts`). What promises
 * times that neighbours could break runs last, one file after another.
 */

/**
 * Files that run at a time in one lane. Lower: longer. Higher: suites wait for cores, and the bounds of some for each
 * other.
 */
export const laneWorkers = 2;

/** Files that have the machine to themselves, and what neighbours would break. */
export const alone: Readonly<Record<string, string>> = {
  'test/agent/device-worker/sharing.test.ts': 'the pace of tokens, in milliseconds',
  'test/agent/device-worker/hostile-requests.test.ts': 'how long an event loop may be silent',
  'test/gateway/own-pause.test.ts': 'an event loop that is held, beside one that is not',
  'test/e2e/backfill.e2e.test.ts': 'ordinary jobs wait no longer than the grace time',
};

export interface Lane {
  title: string;
  /** Options of vitest. */
  options: string[];
}

const endToEnd = '**/*.e2e.test.ts';
const notEndToEnd = '**/!(*.e2e).test.ts';
const excluding = (patterns: readonly string[]): string[] =>
  patterns.flatMap((pattern) => ['--exclude', pattern]);

export const lanesSideBySide: readonly Lane[] = [
  {
    title: 'units',
    options: [`--maxWorkers=${laneWorkers}`, ...excluding([endToEnd, ...Object.keys(alone)])],
  },
  {
    title: 'end to end',
    options: [`--maxWorkers=${laneWorkers}`, ...excluding([notEndToEnd, ...Object.keys(alone)])],
  },
];

export const laneAlone: Lane = { title: 'alone', options: ['--no-file-parallelism'] };

/** Of the files that have to run alone, those that a person asked for: all where nothing was asked for. */
export function aloneOf(filters: readonly string[]): string[] {
  return Object.keys(alone).filter(
    (file) => filters.length === 0 || filters.some((filter) => file.includes(filter)),
  );
}

/** When a job is expected to bring a replica, by what its deployment says. */
import { expect, test } from 'vitest';
import { jobComesIn_s } from '../../gateway/coming-jobs.ts';

type Launch = Parameters<typeof jobComesIn_s>[0][number]['launches'][number];
const now_ms = 1_000_000_000;
const ago_ms = (seconds: number): number => now_ms - 1000 * seconds;

const running = (started_s: number): Launch => ({
  phase: 'submitted',
  superseded: false,
  last: { phase: 'running', state: 'RUNNING', start_time_ms: ago_ms(started_s) },
});
const queued = (submitted_s: number, starts_in_s?: number): Launch => ({
  phase: 'submitted',
  superseded: false,
  submitting_since_ms: ago_ms(submitted_s),
  last: {
    phase: 'pending',
    state: 'PENDING',
    pending: { reason: 'Resources', explanation: 'it waits' },
    estimated_start_ms: starts_in_s === undefined ? undefined : ago_ms(-starts_in_s),
  },
});

test.each<[string, Launch[], number, number | undefined]>([
  ['nothing is deployed', [], 0, undefined],
  ['its job ended', [{ ...running(9), phase: 'ended' }], 0, undefined],
  ['its job was replaced', [{ ...running(9), superseded: true }], 0, undefined],
  ['its job is about to be submitted', [{ phase: 'submitting', superseded: false }], 600, 0],
  ['control may not have seen yet that its job has ended', [running(9000)], 59, 0],
  ['its job runs for long, and tells of none', [running(9000)], 60, undefined],
  ['its job has just started', [running(100)], 600, 0],
  [
    'when its job started is not known',
    [{ ...running(9), last: { phase: 'running', state: 'RUNNING' } }],
    600,
    undefined,
  ],
  ['Slurm has just looked at its queue', [queued(9000)], 59, 0],
  ['its job waits for others, for who knows how long', [queued(9000)], 60, undefined],
  ['its job was submitted just now', [queued(59)], 600, 0],
  ['Slurm expects a start', [queued(9000, 40)], 600, 40],
  ['Slurm expects a late start', [queued(9, 5000)], 1, 5000],
  ['Slurm expected a start before now', [queued(9000, -5)], 600, 0],
  ['one of several comes first', [running(9000), queued(9000, 40), queued(9000, 20)], 600, 20],
])('%s', (_what, launches, lost_for_s, expected) => {
  expect(jobComesIn_s([{ launches }], { now_ms, lost_for_s })).toBe(expected);
});

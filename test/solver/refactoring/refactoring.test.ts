import { expect, test } from 'vitest';
import type { RefactoringOutcome } from '../../../solver/refactoring/messages.ts';
import { answersOf, type RunOptions, type RunReport, SimulatedRun } from './simulated-run.ts';

const options = (seed: number, failure_rate: number): RunOptions => ({
  seed,
  layers: 1 + (seed % 5),
  devices: 2 + (seed % 5),
  sequences: 5,
  answer_tokens: 12 + (seed % 20),
  failure_rate,
});

function runs(count: number, failure_rate: number): { seed: number; report: RunReport }[] {
  return Array.from({ length: count }, (_, seed) => {
    const report = new SimulatedRun(options(seed, failure_rate)).run();
    expect(report.wrong, `seed ${seed}`).toEqual([]);
    expect(report.ended, `seed ${seed} comes to an end`).toBe(true);
    return { seed, report };
  });
}

test('layouts change under running sequences, and every token is the one of an undisturbed run', () => {
  let refactored = 0;
  for (const { seed, report } of runs(500, 0)) {
    expect(report.answers, `seed ${seed}`).toEqual(answersOf(options(seed, 0)));
    expect(report.outcomes.filter(({ kind }) => kind === 'lost')).toEqual([]);
    refactored += report.outcomes.filter(({ kind }) => kind === 'refactored').length;
    for (const { copied, bound } of report.paused) expect(copied, `seed ${seed}`).toBeLessThanOrEqual(bound);
  }
  expect(refactored).toBeGreaterThan(500);
});

test('whatever fails in whatever phase, no token is wrong and no memory is left behind', () => {
  const ends = new Map<string, number>();
  for (const { seed, report } of runs(1200, 0.01)) {
    const lost = report.outcomes.some(({ kind }) => kind === 'lost');
    const expected = answersOf(options(seed, 0));
    for (const [id, answer] of report.answers)
      expect(answer, `seed ${seed}`).toEqual(expected.get(id)!.slice(0, answer.length));
    if (lost) count(ends, 'lost');
    else for (const outcome of report.outcomes) count(ends, wayOut(outcome));
  }
  // Each way out was taken, often.
  for (const kind of ['refactored', 'kept', 'forward', 'lost'])
    expect(ends.get(kind) ?? 0, kind).toBeGreaterThan(20);
});

function wayOut(outcome: RefactoringOutcome): string {
  return outcome.kind === 'refactored' && outcome.incomplete.length > 0 ? 'forward' : outcome.kind;
}

function count(counts: Map<string, number>, key: string): void {
  counts.set(key, (counts.get(key) ?? 0) + 1);
}

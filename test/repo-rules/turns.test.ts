/** Every suite runs in some turn, turns are about as long as each other, and nothing that is named is gone. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageRoot } from '../../host/package-root.ts';
import { parseTestArguments } from '../arguments.ts';
import { aloneOf, laneOf, lanesSideBySide, onlyByName } from '../lanes.ts';
import { alwaysRuns, leftOutOf, longSuites, turnCount, turnsOf } from '../turns.ts';

const turns = Array.from({ length: turnCount }, (_, index) => ({ turn: index + 1 }));

describe('suites that take long', () => {
  it('are there, as is what always runs or runs by name', () => {
    const named = [longSuites, alwaysRuns, onlyByName].flatMap((files) => Object.keys(files));
    expect(named.filter((file) => !existsSync(join(packageRoot, file)))).toEqual([]);
    expect(named.length).toBe(new Set(named).size);
  });

  it('are those that run alone, too: a short run has nothing to run last', () => {
    expect(aloneOf([], leftOutOf('short'))).toEqual([]);
    expect(aloneOf([], leftOutOf('all')).length).toBeGreaterThan(10);
  });

  it('run in one turn each, and none is left out of all of them', () => {
    const runs = turns.map((turn) => {
      const leftOut = leftOutOf(turn);
      return Object.keys(longSuites).filter((file) => !leftOut.includes(file));
    });
    expect(runs.flat().toSorted()).toEqual(Object.keys(longSuites).toSorted());
    expect(leftOutOf('short')).toEqual(Object.keys(longSuites));
    expect(leftOutOf('all')).toEqual([]);
  });

  it('take about as long in every turn, in each lane', () => {
    for (const lane of ['units', 'end to end', 'alone'] as const) {
      const seconds = turnsOf(longSuites).map((files) =>
        files.filter((file) => laneOf(file) === lane).reduce((sum, file) => sum + longSuites[file]!, 0),
      );
      const longest = Math.max(
        ...turnsOf(longSuites)
          .flat()
          .map((file) => longSuites[file]!),
      );
      expect(Math.max(...seconds) - Math.min(...seconds), lane).toBeLessThan(longest);
    }
  });

  it('are left out by name of every lane', () => {
    const [file] = turnsOf(longSuites)[0]!;
    for (const lane of lanesSideBySide(leftOutOf('short'), true).flat())
      expect(lane.options.join(' ')).toContain(`--exclude ${file}`);
    for (const lane of lanesSideBySide(leftOutOf({ turn: 1 }), false).flat())
      expect(lane.options.join(' ')).not.toContain(`--exclude ${file}`);
  });
});

describe('npm test --', () => {
  it('takes a turn, or all of them', () => {
    expect(parseTestArguments([]).extent).toBe('short');
    expect(parseTestArguments(['--all']).extent).toBe('all');
    expect(parseTestArguments(['--turn', '3']).extent).toEqual({ turn: 3 });
  });

  it.each([
    ['--turn', '0'],
    ['--turn', '4'],
    ['--turn', 'two'],
  ])('takes no other turn than there are: %s %s', (...words) => {
    expect(() => parseTestArguments(words)).toThrow(/--turn takes 1 to 3/);
  });

  it('runs on a device that is named with a folder of libraries', () => {
    const { device } = parseTestArguments(['--device', 'CUDA0', '--libraries', '/', 'engine']);
    expect(device).toEqual({ name: 'CUDA0', library_dir: '/' });
    expect(() => parseTestArguments(['--device', 'CUDA0', '--libraries', '/nowhere'])).toThrow(/native add/);
    expect(() => parseTestArguments(['--device', 'CUDA0', '--libraries', '/', '--vulkan'])).toThrow(
      /leave one/,
    );
  });

  it.each([
    { words: ['--all', 'quote'] },
    { words: ['--turn', '1', '--vulkan'] },
    { words: ['--all', '--device', 'CUDA0', '--libraries', '/'] },
    { words: ['--all', '--slurm', '20.11'] },
    { words: ['--all', '--turn', '2'] },
  ])('says which do not go together: $words', ({ words }) => {
    expect(() => parseTestArguments(words)).toThrow(/--(all|turn).*leave/);
  });
});

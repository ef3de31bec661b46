import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { simulators } from '../../.ci/knip/entries.ts';
import { listedUnreached, unreached } from '../../.ci/knip/unreached.ts';
import { packageRoot } from '../../host/package-root.ts';

/** What the files of a folder import from outside of it, types left out: `path#name`. */
function importsOf(folder: string): string[] {
  return readdirSync(join(packageRoot, folder), { recursive: true, encoding: 'utf8' }).flatMap((file) =>
    importsIn(readFileSync(join(packageRoot, folder, file), 'utf8'), join(folder, file)).filter(
      (each) => !each.startsWith(`${folder}/`),
    ),
  );
}

function importsIn(text: string, path: string): string[] {
  const statements = [...text.matchAll(/^(?:import|export)\s([^'";]*?)\s?from\s'(\.[^']+)'/gm)];
  return statements.flatMap(([statement, names, from]) => {
    if (names!.startsWith('type ')) return [];
    // Of a whole namespace nobody could say what is used.
    const list = /^\{([^}]*)\}$/.exec(names!)?.[1];
    if (list === undefined) throw new Error(`${path}: name what is imported: ${statement}`);
    const file = join(dirname(path), from!);
    const members = list.split(',').map((each) => each.trim());
    return members
      .filter((each) => each !== '' && !each.startsWith('type '))
      .map((each) => `${file}#${each.split(/\s+as\s+/)[0]}`);
  });
}

describe('the product', () => {
  it('holds nothing that only tests or benches use, but for what is listed in .ci/unreached.json', () => {
    expect(unreached('production')).toEqual(Object.keys(listedUnreached()).sort());
  });

  it('is what the simulation of sharing decides by: it takes no decision that only it would take', () => {
    const taken = importsOf('solver/sharing-simulator');
    const unreachedByProcesses = new Set(unreached('production'));
    // Who is let in, who computes, who makes room, and in which order places are asked.
    for (const decision of [
      'admission.ts#admitTo',
      'admission.ts#admitNew',
      'candidates.ts#standingCandidates',
      'candidates.ts#newCandidates',
      'kv-budget.ts#lowerTo',
      'next-iteration.ts#nextIteration',
      'preemption.ts#planPreemption',
    ])
      expect(taken).toContain(`solver/sharing/${decision}`);
    const ownFile = (decision: string): string => decision.split('#')[0]!;
    expect(
      taken.filter((each) => unreachedByProcesses.has(each) || unreachedByProcesses.has(ownFile(each))),
    ).toEqual([]);
  });

  it('is what the simulation of streamed weights decides by, too', () => {
    const taken = importsOf('solver/streaming-simulator');
    const unreachedByProcesses = new Set(unreached('production'));
    // Where a request runs, how much of a prompt an iteration has, what stays.
    for (const decision of [
      'routing/by-engine.ts#byEngine',
      'streaming/request-load.ts#requestLoad',
      'streaming/chunk-control.ts#nextChunk_tokens',
      'streaming/resident-share.ts#residentTensors',
    ])
      expect(taken).toContain(`solver/${decision}`);
    expect(taken.filter((each) => unreachedByProcesses.has(each))).toEqual([]);
  });

  it('a decision is seen under whatever name it is imported, and a namespace is refused', () => {
    const text = `import type { A } from '../sharing/a.ts';
import { type B, lowerTo as lower } from '../sharing/kv-budget.ts';
import {
  admitNew,
} from '../sharing/admission.ts';
export { nextIteration } from '../sharing/next-iteration.ts';
import { normal } from './noise.ts';`;
    expect(importsIn(text, 'solver/sharing-simulator/x.ts')).toEqual([
      'solver/sharing/kv-budget.ts#lowerTo',
      'solver/sharing/admission.ts#admitNew',
      'solver/sharing/next-iteration.ts#nextIteration',
      'solver/sharing-simulator/noise.ts#normal',
    ]);
    for (const whole of ['* as sharing', 'sharing'])
      expect(() => importsIn(`import ${whole} from '../sharing/a.ts';`, 'solver/x/y.ts')).toThrow(
        /name what/,
      );
  });

  it('has no part of a simulator that no bench uses', () => {
    const inSimulator = (path: string): boolean => simulators.some((place) => path.startsWith(place));
    expect(unreached('with-benches').filter(inSimulator)).toEqual([]);
  });
});

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { simulators } from '../../.ci/knip/entries.ts';
import { listedUnreached, unreached } from '../../.ci/knip/unreached.ts';
import { packageRoot } from '../../host/package-root.ts';

describe('the product', () => {
  it('holds nothing that only tests or benches use, but for what is listed in .ci/unreached.json', () => {
    expect(unreached('production')).toEqual(Object.keys(listedUnreached()).sort());
  });

  it('is what the simulation of sharing decides by: it takes no decision that only it would take', () => {
    const folder = join(packageRoot, 'solver/sharing-simulator');
    const unreachedByProcesses = new Set(unreached('production'));
    const taken: string[] = [];
    for (const file of readdirSync(folder)) {
      const text = readFileSync(join(folder, file), 'utf8');
      for (const [, names, from] of text.matchAll(/^import \{([^}]*)\} from '\.\.\/([a-z-]+\/[^']+)';/gm))
        for (const name of names!.split(',').map((each) => each.trim()))
          if (name !== '' && !name.startsWith('type ')) taken.push(`solver/${from}#${name}`);
    }
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

  it('has no part of a simulator that no bench uses', () => {
    const inSimulator = (path: string): boolean => simulators.some((place) => path.startsWith(place));
    expect(unreached('with-benches').filter(inSimulator)).toEqual([]);
  });
});

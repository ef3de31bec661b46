import { describe, expect, it } from 'vitest';
import { simulators } from '../../.ci/knip/entries.ts';
import { listedUnreached, unreached } from '../../.ci/knip/unreached.ts';

describe('the product', () => {
  it('holds nothing that only tests or benches use, but for what is listed in .ci/unreached.json', () => {
    expect(unreached('production')).toEqual(Object.keys(listedUnreached()).sort());
  });

  it('has no part of a simulator that no bench uses', () => {
    const inSimulator = (path: string): boolean => simulators.some((place) => path.startsWith(place));
    expect(unreached('with-benches').filter(inSimulator)).toEqual([]);
  });
});

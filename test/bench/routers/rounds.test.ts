import { expect, it } from 'vitest';
import { roundsOf } from '../../../bench/routers/rounds.ts';
import { ours } from '../../../bench/routers/side-by-side.ts';

const contenders = [ours, 'a', 'b'].map((name) => ({ name }));

it('everybody is measured once a round, and first in turn; nobody counts what warms up', async () => {
  const asked: string[] = [];
  const [figures] = await roundsOf(
    { contenders, rounds: 2, warm_ups: 1, log: () => undefined },
    async ({ name }) => {
      asked.push(name);
      return [asked.length];
    },
  );
  expect(asked).toEqual([ours, 'a', 'b', ours, 'a', 'b', 'a', 'b', ours]);
  expect([...figures!]).toEqual([
    [ours, [4, 9]],
    ['a', [5, 7]],
    ['b', [6, 8]],
  ]);
});

it('a router that breaks is measured no more, has no figures, and is named; the others go on', async () => {
  const said: string[] = [];
  let asked = 0;
  const [figures] = await roundsOf(
    { contenders, rounds: 3, warm_ups: 0, log: (line) => said.push(line) },
    async ({ name }) => {
      if (name === 'b' && ++asked === 2) throw new Error('a stream ended without its last event');
      return [1];
    },
  );
  expect([...figures!]).toEqual([
    [ours, [1, 1, 1]],
    ['a', [1, 1, 1]],
  ]);
  expect(asked).toBe(2);
  expect(said).toEqual(['b broke, and has no figures here: a stream ended without its last event']);
});

it('what goes wrong with ours ends the run', async () => {
  const run = roundsOf({ contenders, rounds: 1, warm_ups: 0, log: () => undefined }, async ({ name }) => {
    if (name === ours) throw new Error('ours broke');
    return [1];
  });
  await expect(run).rejects.toThrow('ours broke');
});

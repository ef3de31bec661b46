/** What an engine has to do now, by figures of a moment ago and by the requests since. */
import { expect, test } from 'vitest';
import { engineRequests } from '../../../agent/node/engine-load.ts';

const places = 16;

test.each([
  ['requests came since it spoke', { running: 3, waiting: 0 }, 3, 8, { running: 8, waiting: 0 }],
  ['all have ended since', { running: 8, waiting: 0 }, 8, 0, { running: 0, waiting: 0 }],
  ['it was idle as it spoke', { running: 0, waiting: 0 }, 0, 20, { running: 16, waiting: 4 }],
  [
    'requests are on their way to it as it speaks',
    { running: 0, waiting: 0 },
    5,
    5,
    { running: 5, waiting: 0 },
  ],
  ['a request is four sequences', { running: 4, waiting: 0 }, 1, 2, { running: 5, waiting: 0 }],
  ['its keys and values are full', { running: 6, waiting: 2 }, 8, 9, { running: 6, waiting: 3 }],
  [
    'it lets requests wait beyond its places',
    { running: 18, waiting: 2 },
    20,
    20,
    { running: 16, waiting: 4 },
  ],
  ['it says nothing', {}, 0, 20, { running: 16, waiting: 4 }],
] as const)('%s', (_, said, then, now, expected) => {
  expect(engineRequests(said, then, now, places)).toEqual(expected);
});

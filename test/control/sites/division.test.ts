/** What stands of a division over sites, what is left, and whom nobody named. */
import { expect, it } from 'vitest';
import {
  describeShare,
  digestOfWhole,
  isLeft,
  jobsToReplace,
  sitesNotNamed,
  standingShare,
} from '../../../control/sites/division.ts';
import { notReached } from '../../../control/sites/one-mesh.ts';
import { answer, share } from './support.ts';

const before = share('a', { near: 2, far: 1 });
const near = answer('near', { desired: 'serving', live_launches: 2, share: before });
const far = answer('far', { desired: 'serving', live_launches: 1, share: before });

it('stands where a site serves its share of just this', () => {
  expect(standingShare([answer('near'), far], 'a')).toEqual(before);
  expect(standingShare([near, far], 'b')).toBeUndefined();
  const stopped = answer('near', { desired: 'stopped', live_launches: 0, share: before });
  expect(standingShare([stopped], 'a')).toBeUndefined();
});

it('is another one where the file, the sites, or what was typed is', () => {
  const typed = { slurm: [], offline: false };
  const whole = { name: 'demo', models: [] };
  const of = digestOfWhole(whole, [near, far], typed);
  expect(digestOfWhole({ ...whole, sites: ['near', 'far'] }, [near, far], typed)).toBe(of);
  for (const other of [
    digestOfWhole({ ...whole, name: 'other' }, [near, far], typed),
    digestOfWhole(whole, [far, near], typed),
    digestOfWhole(whole, [near, far], { ...typed, slurm: ['--qos', 'debug'] }),
    digestOfWhole(whole, [near, far], { ...typed, objective: 'gpu-hours' }),
  ])
    expect(other).not.toBe(of);
});

it('leaves a site that has jobs and no share any more, also one whose jobs still end', () => {
  const now = share('b', { near: 3, far: 0 });
  expect([near, far].map((site) => isLeft(site, now))).toEqual([false, true]);
  expect(isLeft(answer('far', { desired: 'stopped', live_launches: 1 }), now)).toBe(true);
  expect(isLeft(answer('far', { desired: 'stopped', live_launches: 0 }), now)).toBe(false);
  expect(isLeft(answer('far'), now)).toBe(false);
});

it('says whom nobody named this time, and whose jobs are replaced', () => {
  expect(sitesNotNamed([near])).toEqual(['far']);
  expect(sitesNotNamed([near, far])).toEqual([]);
  expect(jobsToReplace([near, far], 'a')).toEqual([]);
  expect(jobsToReplace([near, answer('far')], 'b')).toEqual(['2 running job(s) on near']);
});

it('is told in words', () => {
  expect(describeShare(share('a', { near: 2, far: 1, gone: 0 }))).toEqual([
    'near: 2 replicas of m',
    'far: 1 replica of m',
    'gone: nothing',
  ]);
});

it('is reached as a whole only where every replica of every site is', () => {
  const serving = { name: 'm', state: 'serving', reachable: true };
  const seen = (...models: (typeof serving)[]) => [{ site: 'near', models }];
  expect(notReached(before, [...seen(serving, serving), { site: 'far', models: [serving] }])).toEqual([]);
  expect(notReached(before, seen(serving, { ...serving, reachable: false }))).toEqual([
    '1 of 2 replica(s) of m on near',
    '0 of 1 replica(s) of m on far',
  ]);
});

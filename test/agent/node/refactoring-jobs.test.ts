/** A pipeline over two jobs that gets other stages while it answers, and jobs that are lost meanwhile. */
import { expect, test } from 'vitest';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { Site } from '../support.ts';
import {
  answer,
  changed,
  halves,
  on,
  refactor,
  startJob,
  untilStages,
  untilTold,
  workersOf,
} from './refactoring-support.ts';

/** Who serves the model in place of a session whose job is over. */
const inPlaceOf = (site: Site, { session_id: before }: SessionRecord): Promise<SessionRecord> =>
  site.session(
    ({ session_id, lifecycle, metadata: { models } }) =>
      session_id !== before && lifecycle === 'SERVING' && models[0]?.state === 'serving',
    60_000,
  );

test('a stage moves to another job and back while an answer is computed; jobs in place of others have it', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const first = await startJob(site, 0);
  const second = await startJob(site, 1);
  const record = await site.serving('m');
  await untilStages(first, [[0, 3]]);
  await untilStages(second, [[3, 6]]);
  const expected = await answer(site, record, 200);
  const asked = answer(site, record, 200);
  const home = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n0', 'gpu 1', 1, 1)]);
  expect(home.status, JSON.stringify(home.json)).toBe(200);
  await untilStages(second, []);
  expect(await asked).toEqual(expected);

  // The job in its place has no stage either, though its launch says so; and takes one.
  await second.kill();
  const second2 = await startJob(site, 1);
  await workersOf(second2);
  await untilStages(second2, []);
  expect(await answer(site, record, 200)).toEqual(expected);
  const away = await changed(site, record, [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)]);
  expect(away.status, JSON.stringify(away.json)).toBe(200);
  await untilStages(second2, [[3, 6]]);
  expect(await answer(site, record, 200)).toEqual(expected);

  // Nor does a first job begin with what was planned: the stage stays where it is, with its weights.
  const [, pid] = await workersOf(second2);
  await first.kill();
  const first2 = await startJob(site, 0);
  expect(await answer(site, await inPlaceOf(site, record), 200)).toEqual(expected);
  await untilStages(first2, [[0, 3]]);
  expect((await workersOf(second2))[1]).toBe(pid);
});

test('a job that is lost in the middle of a change: the stages are kept, whichever it is', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const first = await startJob(site, 0);
  const second = await startJob(site, 1);
  const record = await site.serving('m');
  const expected = await answer(site, record);
  expect((await changed(site, record, halves)).status).toBe(200);
  await untilStages(second, []);

  // It loads nothing: the change waits for it.
  const [, waiting] = await workersOf(second);
  process.kill(waiting!, 'SIGSTOP');
  const to = [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)];
  const toLost = refactor(site, record, to);
  await untilTold(second, 'its stages change');
  await second.kill();
  const lost = await toLost;
  expect(lost).toMatchObject({ status: 503, json: { error: { code: 'E_REFACTOR_KEPT' } } });
  expect(await answer(site, record)).toEqual(expected);

  const second2 = await startJob(site, 1);
  const [, other] = await workersOf(second2);
  // There and back: it takes orders.
  const there = await changed(site, record, to);
  expect(there.status, JSON.stringify(there.json)).toBe(200);
  expect((await refactor(site, record, halves)).status).toBe(200);
  process.kill(other!, 'SIGSTOP');
  const byLost = changed(site, record, to).catch(() => undefined);
  await untilTold(second2, 'its stages change,', 2);
  await first.kill();
  await byLost;
  await untilTold(second2, 'its stages are kept');
  process.kill(other!, 'SIGCONT');
  const first2 = await startJob(site, 0);
  const now = await inPlaceOf(site, record);
  expect(await answer(site, now)).toEqual(expected);
  await untilStages(first2, [
    [0, 3],
    [3, 6],
  ]);
  const after = await changed(site, now, to);
  expect(after.status, JSON.stringify(after.json)).toBe(200);
  expect(await answer(site, now)).toEqual(expected);
});

test('stages stay where an agent that starts again would not find others, whichever of the jobs it is of', {
  timeout: 180_000,
}, async () => {
  await using site = await Site.open();
  const first = await startJob(site, 0, false);
  const second = await startJob(site, 1, false);
  const record = await site.serving('m');
  const expected = await answer(site, record);
  const stay = {
    status: 409,
    json: {
      error: { code: 'E_REFACTOR_DEVICE', message: expect.stringMatching(/submitted by an earlier version/) },
    },
  };
  // Onto devices of its own alone, too: the other job would begin with the stage that it had.
  expect(await refactor(site, record, halves)).toMatchObject(stay);
  await first.kill();
  const first2 = await startJob(site, 0);
  const now = await inPlaceOf(site, record);
  expect(await answer(site, now)).toEqual(expected);
  const across = [on('n0', 'gpu 0', 0, 1), on('n1', 'gpu 1', 1, 1)];
  expect(await changed(site, now, across)).toMatchObject(stay);
  await untilStages(first2, [[0, 3]]);
  await untilStages(second, [[3, 6]]);
  expect(await answer(site, now)).toEqual(expected);
});

/**
 * A request for a model that sleeps: it waits where that is worth it, and is told when to come back where it is not.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readDemand } from '../../spec/demand.ts';
import { chatAnswer, json, type Stage, startStage, until, writeDeployment } from './support.ts';

let stage: Stage;
beforeEach(async () => {
  stage = await startStage({}, { wait_max_s: 20 });
});
afterEach(() => stage.close());

const sleeping = (wake_s: number, waking_since_ms?: number): void =>
  writeDeployment(stage.config, 'demo', {
    spec: { models: [{ name: 'tiny', aliases: ['small'] }] },
    launches: [],
    scaled: {
      tiny: {
        asleep_since_ms: Date.UTC(2026, 0, 31),
        wake_s,
        ...(waking_since_ms === undefined ? {} : { waking_since_ms }),
      },
    },
  });
const ask = (): Promise<Response> =>
  stage.post('/v1/chat/completions', { model: 'tiny', messages: [{ role: 'user', content: 'x' }] });
const demand = () =>
  readDemand(stage.folder)
    .get(1)
    ?.models.find(({ model }) => model === 'tiny');

it('waits for the model, which is asked for meanwhile, and is answered when it serves', async () => {
  sleeping(3);
  const answer = ask();
  await until(() => demand()?.in_flight === 1, 'the demand to be told');
  const session = await stage.session(json(chatAnswer));
  expect((await answer).status).toBe(200);
  expect(session.requests).toHaveLength(1);
  await until(() => demand()?.in_flight === 0, 'the demand to be over');
  expect(demand()!.request_s).toBeGreaterThan(0);
});

it('is told when to come back where the start takes longer than requests may wait', async () => {
  sleeping(90, Date.now() - 20_000);
  const answer = await ask();
  expect(answer.status).toBe(503);
  expect(Number(answer.headers.get('retry-after'))).toBeGreaterThanOrEqual(55);
  expect(Number(answer.headers.get('retry-after'))).toBeLessThanOrEqual(70);
  expect(JSON.stringify(await answer.json())).toMatch(
    /tiny sleeps since 2026-01-31T00:00Z because nobody asked for it; it is being started and is expected to answer in about \d\d s/,
  );
  // That it was asked wakes it all the same.
  await until(() => demand() !== undefined, 'the demand to be told');
  expect(demand()).toMatchObject({ in_flight: 0 });
});

it('gives up when the model does not come, and a client that goes away counts no longer', async () => {
  await stage.close();
  // Longer than it takes until the demand is told and the client goes away, on any machine.
  const wait_max_s = 6;
  stage = await startStage({}, { wait_max_s });
  sleeping(1);
  const gone = new AbortController();
  const aborted = fetch(`${stage.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${stage.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'small', messages: [{ role: 'user', content: 'x' }] }),
    signal: gone.signal,
  }).catch((error: Error) => error.name);
  const inFlight = (): number =>
    [...readDemand(stage.folder).values()].flatMap(({ models }) => models)[0]?.in_flight ?? -1;
  await until(() => inFlight() === 1, 'the demand to be told');
  gone.abort();
  expect(await aborted).toBe('AbortError');
  await until(() => inFlight() === 0, 'the demand to be over');
  const began_ms = performance.now();
  const answer = await ask();
  expect(answer.status).toBe(503);
  expect(performance.now() - began_ms).toBeGreaterThan(1000 * wait_max_s - 100);
});

it('is told of the queue where the job that wakes it waits there', async () => {
  writeDeployment(stage.config, 'demo', {
    spec: { models: [{ name: 'tiny' }] },
    launches: [
      {
        phase: 'submitted',
        job_id: '7',
        last: {
          phase: 'pending',
          state: 'PENDING',
          pending: { reason: 'Priority', explanation: 'others come first' },
          estimated_start_ms: Date.now() + 600_000,
        },
      },
    ],
    scaled: { tiny: { asleep_since_ms: 0, waking_since_ms: Date.now(), wake_s: 2 } },
  });
  const answer = await ask();
  expect(answer.status).toBe(503);
  expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(590);
});

it('is listed like a model that serves, by all its names', async () => {
  sleeping(1);
  const list = await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${stage.key}` } });
  expect(await list.json()).toMatchObject({
    data: [
      { id: 'tiny', root: 'tiny', hpcserve: { replicas: 0 } },
      { id: 'small', root: 'tiny', hpcserve: { replicas: 0 } },
    ],
  });
});

it('of a model that nobody deployed is not counted', async () => {
  sleeping(1);
  const answer = await stage.post('/v1/chat/completions', { model: 'other', messages: [] });
  expect(answer.status).toBe(404);
  expect(() => readFileSync(join(stage.config.gateway_folder, 'demand.json'))).toThrow(/ENOENT/);
});

it('whose engine waits in host memory is listed so, since the device is another’s', async () => {
  const session = await stage.session(json(chatAnswer));
  const listed = async (): Promise<unknown> => {
    const table = await (await stage.admin('/mesh/table')).json();
    return (table as { sessions: { models: { off_device?: true }[] }[] }).sessions[0]!.models[0]!.off_device;
  };
  expect(await listed()).toBe(undefined);
  session.load = { asleep: true };
  session.beat();
  await until(async () => (await listed()) === true, 'it to be listed as away from its device');
  session.load = {};
  session.beat();
  await until(async () => (await listed()) === undefined, 'it to be back');
});

/** What waits for a replica that loads: streams that have lost theirs, and requests that nobody has begun to answer. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { agentPaths, headers } from '../../spec/wire.ts';
import { letterModel, VllmProtocol } from '../agent/adapters/vllm-protocol.mjs';
import {
  type Answer,
  chatAnswer,
  json,
  type Stage,
  startStage,
  type TestModel,
  type TestSession,
  until,
  writeDeployment,
} from '../gateway/support.ts';

const path = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'hi' }], max_tokens: 40, temperature: 0 };
/** Longer than a replica that nobody knows of is waited for, and shorter than one that loads. */
const load_ms = 1500;

const deployment = { spec: { models: [{ name: 'tiny', aliases: [] }] } };
const pending = {
  phase: 'pending',
  state: 'PENDING',
  pending: { reason: 'BeginTime', explanation: 'it waits' },
};

let stage: Stage;
beforeEach(async () => {
  stage = await startStage({ continue_ms: 300, load_wait_ms: 4000, comment_ms: 200 });
});
afterEach(() => stage.close());

/** An engine whose process ends after so many tokens of an answer. */
function engine(ends: () => boolean, end: () => void): Answer {
  const protocol = new VllmProtocol({
    model: letterModel,
    loses: (tokens) => {
      if (tokens < 10 || !ends()) return false;
      end();
      return true;
    },
  });
  return ({ path: at, body }, response) =>
    protocol.answer({ path: at === agentPaths.detokenize ? '/detokenize' : at, body }, response);
}

/** One that is lost in the middle of its first answer. */
async function toBeLost(): Promise<void> {
  let lost: TestSession | undefined;
  const answer = engine(
    () => true,
    () => void lost!.kill(),
  );
  lost = await stage.session(answer, { node: 'a', engine: 'vllm' });
}

const whole = engine(
  () => false,
  () => undefined,
);

/** One that serves and is lost, and one that loads meanwhile. */
async function lostAndLoading(): Promise<{ loading: TestSession }> {
  await toBeLost();
  const loading = await stage.session(whole, { node: 'b', engine: 'vllm', state: 'loading' });
  await until(async () => (await tableOf()).includes('loading'), 'the loading replica to be seen');
  return { loading };
}

async function tableOf(): Promise<string> {
  return (await stage.admin('/hpcserve/v1/table')).text();
}

async function served(): Promise<number> {
  const answer = await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${stage.key}` } });
  return ((await answer.json()) as { data: unknown[] }).data.length;
}

async function stream(): Promise<string> {
  return (await stage.post(path, { ...chat, stream: true })).text();
}

function textOf(raw: string): string {
  const events = raw.split('\n\n').filter((event) => event.startsWith('data: {'));
  return events.map((event) => JSON.parse(event.slice(6)).choices?.[0]?.delta?.content ?? '').join('');
}

describe('a stream that has lost its replica', () => {
  it('goes on with one that loads, however long that takes, and says meanwhile that it lives', async () => {
    const { loading } = await lostAndLoading();
    const answer = stream();
    await delay(load_ms);
    loading.load = { state: 'serving' };
    const raw = await answer;
    expect(raw).toContain('data: [DONE]');
    expect(textOf(raw)).toHaveLength(40);
    expect(raw.split('\n\n').filter((event) => event.startsWith(':')).length).toBeGreaterThan(3);
  });

  it('ends with an error once that takes longer than anything is waited for', async () => {
    await lostAndLoading();
    const began_ms = performance.now();
    const raw = await stream();
    expect(performance.now() - began_ms).toBeGreaterThan(3900);
    expect(raw).not.toContain('[DONE]');
    expect(raw).toContain('none was there within 4 s');
  });

  it('ends with an error soon where the one that loaded has failed', async () => {
    const { loading } = await lostAndLoading();
    const answer = stream();
    await delay(load_ms);
    const failed_ms = performance.now();
    loading.load = { state: 'failed' };
    expect(await answer).toContain('none was there within');
    expect(performance.now() - failed_ms).toBeLessThan(2000);
  });

  it.each([
    ['runs and has told nobody of it', { phase: 'submitted', last: { phase: 'running', state: 'RUNNING' } }],
    ['is being submitted', { phase: 'submitting', submitting_since_ms: Date.now() }],
    [
      'is put back into the queue and starts in time',
      {
        phase: 'submitted',
        last: { ...pending, estimated_start_ms: Date.now() + 500 },
      },
    ],
  ])('goes on with one that nobody knows of yet, but whose job %s', async (_what, launch) => {
    writeDeployment(stage.config, 'demo', { ...deployment, launches: [{ ...launch, job_id: '7' }] });
    await toBeLost();
    const answer = stream();
    expect(await Promise.race([answer.then(() => 'over'), delay(load_ms, 'waits')])).toBe('waits');
    await stage.session(whole, { node: 'b', engine: 'vllm' });
    expect(textOf(await answer)).toHaveLength(40);
  });

  it.each([
    ['is to be stopped', { desired: 'stopped' }, {}],
    ['has no job that did not end', {}, { phase: 'ended', ended_at_ms: 1 }],
    [
      'has one that starts too late',
      {},
      { last: { ...pending, estimated_start_ms: Date.now() + 3_600_000 } },
    ],
  ])('ends with an error soon where its deployment %s', async (_what, state, launch) => {
    const running = { phase: 'submitted', job_id: '7', last: { phase: 'running', state: 'RUNNING' } };
    writeDeployment(stage.config, 'demo', {
      ...deployment,
      ...state,
      launches: [{ ...running, ...launch }],
    });
    await toBeLost();
    expect(await stream()).toContain('none was there within 0 s');
  });
});

describe('a request for a model that loads for the first time', () => {
  /** Longer than one is waited for that nobody knows of. */
  const soon_ms = 600;

  /** @param left_s until its load is over, if it takes as long as the last time; absent: that is not known */
  async function firstLoad(left_s?: number): Promise<TestSession> {
    const model: TestModel = { state: 'loading' };
    if (left_s !== undefined) {
      model.loading_since_ms = Date.now();
      model.usual_load_s = left_s;
    }
    const loading = await stage.session(json(chatAnswer), model);
    await until(async () => (await tableOf()).includes('"reachable":true'), 'the loading replica to be seen');
    return loading;
  }

  it.each([
    ['though nobody knows how long that takes', undefined],
    ['which usually takes no longer than it may wait', 2],
  ])('waits for that, %s', async (_how, left_s) => {
    const loading = await firstLoad(left_s);
    const answer = stage.post(path, chat);
    expect(await Promise.race([answer.then(() => 'answered'), delay(soon_ms, 'waits')])).toBe('waits');
    loading.load = { state: 'serving' };
    expect((await answer).status).toBe(200);
    expect(loading.requests.length).toBe(1);
  });

  it('is told at once when to come back where its load usually takes longer than anything is waited for', async () => {
    await firstLoad(100);
    // What has only just been heard of may be there at any moment.
    await delay(400);
    const began_ms = performance.now();
    const answer = await stage.post(path, chat);
    expect(performance.now() - began_ms).toBeLessThan(1000);
    expect(answer.status).toBe(503);
    expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(90);
    expect(Number(answer.headers.get('retry-after'))).toBeLessThanOrEqual(100);
  });

  it.each([
    ['x-stainless-timeout', '2', 1800],
    ['x-stainless-read-timeout', '1.5', 1350],
    ['x-hpcserve-qos', 'wait=1s', 1000],
    ['x-hpcserve-qos', 'wait=0', 0],
  ])('waits no longer than its client says with %s: %s', async (header, value, waits_ms) => {
    await firstLoad();
    const began_ms = performance.now();
    const answer = await stage.post(path, chat, { [header]: value });
    const took_ms = performance.now() - began_ms;
    expect(answer.status).toBe(503);
    expect(answer.headers.get('retry-after')).toBe('15');
    expect(took_ms).toBeGreaterThanOrEqual(waits_ms - 10);
    expect(took_ms).toBeLessThan(waits_ms + 900);
  });

  it('is told why soon after that has failed', async () => {
    const loading = await firstLoad();
    const answer = stage.post(path, chat);
    await delay(soon_ms);
    const failed_ms = performance.now();
    loading.load = { state: 'failed' };
    expect((await answer).status).toBe(503);
    expect(performance.now() - failed_ms).toBeLessThan(2000);
  });
});

describe('a request for a model whose replica was lost', () => {
  it('waits for one that loads', async () => {
    const lost = await stage.session(json(chatAnswer));
    const loading = await stage.session(json(chatAnswer), { node: 'b', state: 'loading' });
    await until(async () => (await tableOf()).includes('loading'), 'the loading replica to be seen');
    await lost.kill();
    await until(async () => (await served()) === 0, 'its loss to be seen');
    const answer = stage.post(path, chat);
    expect(await Promise.race([answer.then(() => 'answered'), delay(load_ms, 'waits')])).toBe('waits');
    loading.load = { state: 'serving' };
    expect((await answer).status).toBe(200);
    expect(loading.requests.length).toBe(1);
  });
});

describe('places to wait for a replica that loads', () => {
  /** Three quarters of the places are for one key. */
  const waiting_max = 64;
  const ofOneKey = 48;
  const wave = 100;

  it('are not all for the first key: another waits and is answered, and who took too many is told', async () => {
    const patient = await startStage({ continue_ms: 300, load_wait_ms: 60_000 }, {}, { waiting_max });
    try {
      const loading = await patient.session(json(chatAnswer), { state: 'loading' });
      const table = async (): Promise<string> => (await patient.admin('/hpcserve/v1/table')).text();
      await until(async () => (await table()).includes('"reachable":true'), 'the loading replica to be seen');
      const honest = await patient.newKey({});
      const told: string[] = [];
      const gone = new AbortController();
      const attack = Array.from({ length: wave }, async () => {
        const answer = await fetch(patient.url + path, {
          method: 'POST',
          headers: { authorization: `Bearer ${patient.key}`, 'content-type': 'application/json' },
          body: JSON.stringify(chat),
          signal: gone.signal,
        });
        told.push(await answer.text());
      });
      // As many wait as one key may; the others have their answer.
      await until(() => told.length === wave - ofOneKey, 'those to be refused that are too many');
      expect(told.every((text) => text.includes('of the 64 places of this gateway'))).toBe(true);
      const answer = patient.post(path, chat, { authorization: `Bearer ${honest.key}` });
      expect(await Promise.race([answer.then(() => 'answered'), delay(300, 'waits')])).toBe('waits');
      expect(told).toHaveLength(wave - ofOneKey);
      gone.abort();
      await Promise.allSettled(attack);
      loading.load = { state: 'serving' };
      expect((await answer).status).toBe(200);
    } finally {
      await patient.close();
    }
  });
});

describe('many that wait for the first replica', () => {
  const places = 8;
  const wave = 768;
  const answer_ms = 30;
  const first_answers = wave / 8;

  interface Counted {
    session: TestSession;
    running: number;
    most: number;
    /** Ids of requests. */
    answered: string[];
  }

  /**
   * A replica that loads; then it computes as many at a time as it has places, and says how many it has.
   * @param pause of all but its first answers
   */
  async function replica(on: Stage, node: string, pause?: Promise<void>): Promise<Counted> {
    const counted = { running: 0, most: 0, answered: [] as string[] } as Counted;
    const queue: (() => void)[] = [];
    counted.session = await on.session(
      async (request, response) => {
        counted.running++;
        counted.most = Math.max(counted.most, counted.running);
        report(counted);
        if (counted.running > places) await new Promise<void>((resolve) => queue.push(resolve));
        await delay(answer_ms);
        if (counted.answered.length >= first_answers) await pause;
        counted.running--;
        counted.answered.push(String(request.headers[headers.request_id]));
        report(counted);
        queue.shift()?.();
        await json(chatAnswer)(request, response);
      },
      { node, state: 'loading' },
    );
    return counted;
  }

  function report({ session, running: all }: Counted): void {
    const running = Math.min(places, all);
    session.load = { state: 'serving', max_sequences: places, running, waiting: all - running };
  }

  it('go as places become free, so that one that comes later finds its part', async () => {
    const patient = await startStage({ continue_ms: 300, load_wait_ms: 60_000 });
    try {
      // However long the second one takes to be there.
      let goOn: () => void = () => undefined;
      const pause = new Promise<void>((resolve) => {
        goOn = resolve;
      });
      const first = await replica(patient, 'a', pause);
      const table = async (): Promise<string> => (await patient.admin('/hpcserve/v1/table')).text();
      await until(async () => (await table()).includes('"reachable":true'), 'the loading replica to be seen');
      const statuses: number[] = [];
      const wait = Array.from({ length: wave }, async () => {
        const answer = await patient.post(path, chat);
        await answer.text();
        statuses.push(answer.status);
      });
      await delay(load_ms);
      expect(statuses).toEqual([]);
      report(first);
      await until(() => first.answered.length >= first_answers, 'the first answers');
      // Who comes now is behind those that wait, and the second replica is there for all of them.
      const late = patient.post(path, chat);
      const second = await replica(patient, 'b');
      report(second);
      await until(() => second.answered.length > 0, 'an answer of the second replica');
      goOn();
      await Promise.all(wait);
      expect((await late).status).toBe(200);
      expect(new Set(statuses)).toEqual(new Set([200]));
      // Each was computed, and once.
      const answered = [...first.answered, ...second.answered];
      expect(answered).toHaveLength(wave + 1);
      expect(new Set(answered).size).toBe(wave + 1);
      expect(second.answered.length).toBeGreaterThan(wave / 4);
      // Nobody was given all of them. What a replica says of itself is old where the machine is busy.
      expect(Math.max(first.most, second.most)).toBeLessThan(wave / 4);
    } finally {
      await patient.close();
    }
  }, 60_000);
});

import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, it } from 'vitest';
import {
  type Answer,
  chatAnswer,
  chunkEvent,
  doneEvent,
  json,
  shareStage,
  startStage,
  stream,
  until,
  writeDeployment,
} from './support.ts';

const shared = shareStage({ continue_ms: 20_000 });
const { session, sessions } = shared;
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }] };
const path = '/v1/chat/completions';
const ending = { error: { message: 'it is ending', type: 'server_error', code: 'E_WORKER_DRAINING' } };

beforeAll(async () => {
  writeDeployment(shared.stage.config, 'coming', {
    spec: { models: [{ name: 'new', aliases: [] }] },
    launches: [{ phase: 'submitted', job_id: '7', last: { phase: 'running', state: 'RUNNING' } }],
  });
});

async function served(): Promise<number> {
  const answer = await fetch(`${shared.stage.url}/v1/models`, {
    headers: { authorization: `Bearer ${shared.stage.key}` },
  });
  return ((await answer.json()) as { data: unknown[] }).data.length;
}

describe('requests that a replica has computed nothing of', () => {
  it('wait for one in place of the last, which was lost', async () => {
    const lost = await session(json(chatAnswer));
    await until(async () => (await served()) === 1, 'the replica to be seen');
    await lost.kill();
    await until(async () => (await served()) === 0, 'its loss to be seen');
    const answer = shared.stage.post(path, chat);
    const came = await session(json(chatAnswer), { node: 'node2' });
    expect((await answer).status).toBe(200);
    expect(came.requests.length).toBe(1);
  });

  it('wait for one whose job runs and that has told nobody of itself yet', async () => {
    const answer = shared.stage.post(path, { ...chat, model: 'new' });
    const decided = answer.then(() => true);
    expect(await Promise.race([decided, delay(1000, false)])).toBe(false);
    const came = await session(json({ ...chatAnswer, model: 'new' }), { name: 'new' });
    expect((await answer).status).toBe(200);
    expect(came.requests.length).toBe(1);
  });

  it('wait for it also where others have told of themselves, and cannot be reached for long', async () => {
    const patience_ms = 3000;
    const other = await startStage({ continue_ms: patience_ms });
    try {
      const job = (job_id: string) => ({
        phase: 'submitted',
        job_id,
        last: { phase: 'running', state: 'RUNNING' },
      });
      writeDeployment(other.config, 'demo', {
        spec: { models: [{ name: 'tiny', aliases: [] }] },
        launches: [job('1'), job('2')],
      });
      const lost = await other.session(json(chatAnswer));
      expect((await other.post(path, chat)).status).toBe(200);
      await lost.kill();
      await until(async () => (await other.post(path, chat)).status === 503, 'its loss to be taken for long');
      const answer = other.post(path, chat);
      const came = await other.session(json(chatAnswer), { node: 'node2' });
      expect((await answer).status).toBe(200);
      await came.stop();
    } finally {
      await other.close();
    }
  });

  it('wait in the same way where the last one was just ending', async () => {
    const leaves = await session(json(ending, 503));
    const answer = shared.stage.post(path, chat);
    await until(() => Promise.resolve(leaves.requests.length === 1), 'the request to be refused');
    await session(json(chatAnswer), { node: 'node2' });
    expect((await answer).status).toBe(200);
    expect(leaves.requests.length).toBe(1);
  });

  it('are asked again of a replica that did not know this gateway', async () => {
    let refusals = 0;
    const forgetful = await session((seen, response) => {
      if (refusals++ > 0) return json(chatAnswer)(seen, response);
      return json({ error: { message: 'no member of this mesh' } }, 403)(seen, response);
    });
    expect((await shared.stage.post(path, chat)).status).toBe(200);
    expect(forgetful.requests.length).toBe(2);
  });

  it('are given up with the reason when nobody comes in time', async () => {
    const impatient = await startStage({ continue_ms: 300 });
    try {
      const only = await impatient.session(json(ending, 503));
      const answer = await impatient.post(path, chat);
      expect([answer.status, await answer.json()]).toMatchObject([503, ending]);
      expect(only.requests.length).toBe(1);
      await only.stop();
    } finally {
      await impatient.close();
    }
  });
});

describe('while the network of the gateway carries nothing', () => {
  /** Each falls silent a little after the one before, the first with the request; then all of them speak again. */
  async function silenceInTurn(): Promise<void> {
    await until(() => sessions.some((one) => one.requests.length > 0), 'the request to be at a replica');
    const asked = sessions.find((one) => one.requests.length > 0)!;
    for (const one of [asked, ...sessions.filter((other) => other !== asked)]) {
      const before = one.beats;
      if (one !== asked) await until(() => one.beats > before + 1, 'it to be heard once more');
      one.fallSilent();
    }
    const isReachable = async (): Promise<boolean[]> => {
      const table = (await (await shared.stage.admin('/hpcserve/v1/table')).json()) as {
        sessions: { reachable: boolean }[];
      };
      return table.sessions.map(({ reachable }) => reachable);
    };
    await until(async () => !(await isReachable()).includes(true), 'all of them to be missed');
    for (const one of sessions) one.speakAgain();
  }

  async function heard(count: number, answer: Answer, engine: string): Promise<void> {
    for (let number = 0; number < count; number++) await session(answer, { node: `node${number}`, engine });
    // Asked in the order in which they fall silent.
    for (const [number, one] of sessions.entries()) one.load = { running: number };
    const before = sessions.map(({ beats }) => beats);
    await until(
      () => sessions.every(({ beats }, at) => beats > before[at]! + 2),
      'heartbeats of all of them',
    );
  }

  it('a request is to blame for the loss of one replica at most, and answered afterwards', async () => {
    let isQuiet = true;
    await heard(
      2,
      (seen, response) => {
        if (!isQuiet) return json(chatAnswer)(seen, response);
      },
      'native',
    );
    const answer = shared.stage.post(path, chat);
    await silenceInTurn();
    isQuiet = false;
    expect((await answer).status).toBe(200);
  }, 30_000);

  it('a stream is to blame for none that it was given to then, and goes on afterwards', async () => {
    let isQuiet = true;
    let begun = false;
    const answer: Answer = (seen, response) => {
      if (!isQuiet) return stream([chunkEvent('ends', 'stop'), doneEvent])(seen, response);
      if (begun) return;
      begun = true;
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(chunkEvent('begins '));
    };
    await heard(3, answer, 'vllm');
    const answered = shared.stage.post(path, { ...chat, stream: true }).then((response) => response.text());
    await silenceInTurn();
    isQuiet = false;
    expect(await answered).toContain('ends');
    expect(await answered).toContain(doneEvent);
  }, 30_000);
});

describe('requests that a replica refuses otherwise', () => {
  it('are taken by one that was full, where another broke them off to free its device', async () => {
    const refusal = (code: string, status: number): ReturnType<typeof json> =>
      json({ error: { message: code, type: 'server_error', code } }, status);
    let asked = 0;
    // Full when it is asked first, and still for a while after the other has sent the request away.
    const full = await session((seen, response) =>
      (++asked > 2 ? json(chatAnswer) : refusal('rate_limit_exceeded', 429))(seen, response),
    );
    const leaves = await session(refusal('E_REQUEST_MOVED', 503), { node: 'node2' });
    expect((await shared.stage.post(path, chat)).status).toBe(200);
    expect(full.requests.length).toBe(3);
    expect(leaves.requests.length).toBeGreaterThan(0);
  });

  it('are the same where that is said in a stream that has begun', async () => {
    const saysInStream = (code: string): Answer =>
      stream([`data: ${JSON.stringify({ error: { message: code, type: 'server_error', code } })}\n\n`]);
    let asked = 0;
    const full = await session((seen, response) => {
      const answer =
        ++asked > 2 ? stream([chunkEvent('hello', 'stop'), doneEvent]) : saysInStream('E_POOL_FULL');
      return answer(seen, response);
    });
    const moved = await session(saysInStream('E_REQUEST_MOVED'), { node: 'node2' });
    const answer = await shared.stage.post(path, { ...chat, stream: true });
    expect([answer.status, await answer.text()]).toEqual([200, expect.stringContaining('hello')]);
    expect([full.requests.length, moved.requests.length > 0]).toEqual([3, true]);
    await moved.stop();
    full.answer = saysInStream('E_POOL_FULL');
    const refused = await shared.stage.post(path, { ...chat, stream: true });
    expect([refused.status, refused.headers.get('content-type')]).toEqual([503, 'application/json']);
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(await refused.json()).toMatchObject({ error: { message: 'E_POOL_FULL', code: 'E_POOL_FULL' } });
  });

  it('are asked of the next where it is full, and answered at once where all are', async () => {
    const full = { error: { message: 'no room', type: 'server_error', code: 'E_POOL_FULL' } };
    for (let count = 0; count < 5; count++) await session(json(full, 503), { node: `node${count}` });
    const began_ms = performance.now();
    const answer = await shared.stage.post(path, chat);
    expect([answer.status, await answer.json()]).toEqual([503, full]);
    expect(sessions.map(({ requests }) => requests.length)).toEqual([1, 1, 1, 1, 1]);
    // The stage would wait 20 s for a replica to come.
    expect(performance.now() - began_ms).toBeLessThan(10_000);
  });

  it('are not spread over all of them where they may be what makes replicas fail', async () => {
    const failed = { error: { message: 'failed', type: 'server_error', code: 'E_ENGINE_COMPUTE' } };
    for (let count = 0; count < 5; count++) await session(json(failed, 503), { node: `node${count}` });
    const answer = await shared.stage.post(path, chat);
    expect([answer.status, await answer.json()]).toEqual([503, failed]);
    expect(sessions.reduce((sum, { requests }) => sum + requests.length, 0)).toBe(3);
  });
});

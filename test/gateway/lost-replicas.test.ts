import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { chatAnswer, json, type Stage, startStage, type TestSession, until } from './fixture.ts';

let stage: Stage;
let sessions: TestSession[] = [];
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }] };
const path = '/v1/chat/completions';

beforeAll(async () => {
  stage = await startStage({ continue_ms: 20_000 });
});
afterAll(() => stage.close());
afterEach(async () => {
  for (const session of sessions) await session.stop();
  sessions = [];
});

async function session(...of: Parameters<Stage['session']>): Promise<TestSession> {
  const started = await stage.session(...of);
  sessions.push(started);
  return started;
}

async function served(): Promise<number> {
  const answer = await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${stage.key}` } });
  return ((await answer.json()) as { data: unknown[] }).data.length;
}

describe('requests that a replica has computed nothing of', () => {
  it('wait for one in place of the last, which was lost', async () => {
    const lost = await session(json(chatAnswer));
    await until(async () => (await served()) === 1, 'the replica to be seen');
    await lost.kill();
    await until(async () => (await served()) === 0, 'its loss to be seen');
    const answer = stage.post(path, chat);
    const came = await session(json(chatAnswer), { node: 'node2' });
    expect((await answer).status).toBe(200);
    expect(came.requests.length).toBe(1);
  });

  it('wait in the same way where the last one was just ending', async () => {
    const ending = await session(json({ error: { message: 'it is ending', type: 'server_error' } }, 503));
    const answer = stage.post(path, chat);
    await until(() => Promise.resolve(ending.requests.length === 1), 'the request to be refused');
    await session(json(chatAnswer), { node: 'node2' });
    expect((await answer).status).toBe(200);
    expect(ending.requests.length).toBe(1);
  });

  it('are asked again of a replica that did not know this gateway', async () => {
    let refusals = 0;
    const forgetful = await session((seen, response) => {
      if (refusals++ > 0) return json(chatAnswer)(seen, response);
      return json({ error: { message: 'no member of this mesh' } }, 403)(seen, response);
    });
    expect((await stage.post(path, chat)).status).toBe(200);
    expect(forgetful.requests.length).toBe(2);
  });

  it('are given up with the reason when nobody comes in time', async () => {
    const impatient = await startStage({ continue_ms: 300 });
    try {
      const only = await impatient.session(json({ error: { message: 'it is ending' } }, 503));
      const answer = await impatient.post(path, chat);
      expect([answer.status, await answer.json()]).toMatchObject([
        503,
        { error: { message: 'it is ending' } },
      ]);
      expect(only.requests.length).toBe(1);
      await only.stop();
    } finally {
      await impatient.close();
    }
  });
});

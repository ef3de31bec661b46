/** Requests under which replicas end: how many they may take along. */
import { describe, expect, it } from 'vitest';
import {
  type Answer,
  chatAnswer,
  chunkEvent,
  doneEvent,
  json,
  shareStage,
  stream,
  until,
} from './support.ts';

const shared = shareStage({ continue_ms: 1000 });
const { sessions } = shared;
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }] };
const path = '/v1/chat/completions';
const dies: Answer = (_request, response) => void response.socket!.destroy();
const agentSays = (code: string): Answer =>
  json({ error: { message: code, type: 'server_error', param: null, code } }, 502);

async function five(answer: Answer, engine = 'native'): Promise<void> {
  for (let count = 0; count < 5; count++) await shared.session(answer, { node: `node${count}`, engine });
}

function asked(): number {
  return sessions.reduce((sum, { requests }) => sum + requests.length, 0);
}

async function errorOf(answer: Response): Promise<[number, string | null, string, string]> {
  const { error } = (await answer.json()) as { error: { code: string; message: string } };
  return [answer.status, answer.headers.get('x-should-retry'), error.code, error.message];
}

describe('a request under which a replica ends', () => {
  it('goes to one other, whose end is no accident any more', async () => {
    await five(dies);
    const [status, retry, code, message] = await errorOf(await shared.stage.post(path, chat));
    expect([status, retry, code]).toEqual([502, 'false', 'E_REQUEST_STOPS_REPLICA']);
    expect(message).toContain(
      '2 replicas of tiny ended while they worked on this request; it is given to no other',
    );
    expect(asked()).toBe(2);
  });

  it.each(['E_AGENT_UPSTREAM', 'E_REPLICA_SILENT'])(
    'does so where their agents say it, too: %s',
    async (said) => {
      await five(agentSays(said));
      expect((await errorOf(await shared.stage.post(path, { ...chat, stream: true })))[2]).toBe(
        'E_REQUEST_STOPS_REPLICA',
      );
      expect(asked()).toBe(2);
    },
  );

  it('does so on connections that requests before it were answered on', async () => {
    const held: (() => void)[] = [];
    await five((request, response) => void held.push(() => void json(chatAnswer)(request, response)));
    for (const session of sessions) session.load = { max_sequences: 1 };
    const beats = sessions.map((session) => session.beats);
    await until(() => sessions.every((session, at) => session.beats > beats[at]! + 2), 'its news of each');
    const before = Array.from({ length: 5 }, () => shared.stage.post(path, chat));
    await until(() => held.length === 5, 'a request at each replica');
    for (const answer of held) answer();
    for (const answer of before) expect((await answer).status).toBe(200);
    expect(sessions.map(({ requests }) => requests.length)).toEqual([1, 1, 1, 1, 1]);
    for (const session of sessions) session.answer = () => void session.kill();
    const [status, retry, code] = await errorOf(await shared.stage.post(path, chat));
    expect([status, retry, code]).toEqual([502, 'false', 'E_REQUEST_STOPS_REPLICA']);
    expect(asked()).toBe(5 + 2);
  });

  it('is answered by the other where it was an accident', async () => {
    await shared.session(dies);
    await shared.session(dies, { node: 'node2' });
    const first = await shared.stage.post(path, chat);
    expect(first.status).toBe(502);
    await shared.session(json(chatAnswer), { node: 'node3' });
    sessions[1]!.answer = json(chatAnswer);
    for (let count = 0; count < 6; count++) expect((await shared.stage.post(path, chat)).status).toBe(200);
  });

  it('goes to no other where its agent saw it alone stop the engine', async () => {
    await five((_request, response) => {
      response.writeHead(502, { 'content-type': 'application/json', 'x-should-retry': 'false' });
      response.end(
        JSON.stringify({ error: { message: 'silent', type: 'server_error', code: 'E_REPLICA_SILENT' } }),
      );
    });
    const [status, retry, code, message] = await errorOf(await shared.stage.post(path, chat));
    expect([status, retry, code]).toEqual([502, 'false', 'E_REQUEST_STOPS_REPLICA']);
    expect(message).toContain('stopped while it worked on this request alone');
    expect(asked()).toBe(1);
  });
});

describe('a stream whose replica ends', () => {
  it('goes on while each adds a word, and ends where two in turn add none', async () => {
    let begun = false;
    await five((request, response) => {
      if (begun) return dies(request, response);
      begun = true;
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(chunkEvent('word '));
      setTimeout(() => response.socket!.destroy(), 100);
    }, 'vllm');
    const text = await (await shared.stage.post(path, { ...chat, stream: true })).text();
    expect(text).toContain('word ');
    expect(text).toContain('it is given to no more of them');
    expect(text).not.toContain(doneEvent);
    // The one that began it, and two that were asked to go on.
    expect(asked()).toBe(3);
  });

  it('says nothing in the log of what a replica answered instead of going on', async () => {
    let begun = false;
    await five((request, response) => {
      if (begun) return json({ error: { message: 'the secret prompt' } }, 500)(request, response);
      begun = true;
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(chunkEvent('word '));
      setTimeout(() => response.socket!.destroy(), 100);
    }, 'vllm');
    await (await shared.stage.post(path, { ...chat, stream: true })).text();
    expect(shared.stage.logged.join('')).toMatch(/it answered with status 500 and \d+ bytes/);
    expect(shared.stage.logged.join('')).not.toContain('the secret prompt');
    for (const session of sessions) session.answer = stream([chunkEvent('x', 'stop'), doneEvent]);
    expect((await shared.stage.post(path, { ...chat, stream: true })).status).toBe(200);
  });
});

import { once } from 'node:events';
import { request as httpRequest, type ServerResponse } from 'node:http';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import type { UsageRow } from '../../../spec/usage.ts';
import {
  chatAnswer,
  chunkEvent,
  doneEvent,
  json,
  shareStage,
  stream,
  until,
  usageEvent,
} from '../support.ts';

const shared = shareStage();
const { session, sessions } = shared;
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }] };
const path = '/v1/chat/completions';

async function models(): Promise<string[]> {
  const answer = await fetch(`${shared.stage.url}/v1/models`, {
    headers: { authorization: `Bearer ${shared.stage.key}` },
  });
  return ((await answer.json()) as { data: { id: string }[] }).data.map(({ id }) => id);
}

async function usage(): Promise<UsageRow> {
  const answer = await shared.stage.admin('/hpcserve/v1/usage?group_by=key');
  const { usage: rows } = (await answer.json()) as { usage: UsageRow[] };
  return (
    rows.find(({ group }) => group.key === shared.stage.key_id) ??
    ({
      requests: 0,
      prompt_tokens: 0,
      completion_tokens: 0,
      cached_tokens: 0,
      reasoning_tokens: 0,
      errors: 0,
    } as UsageRow)
  );
}

/** What one action adds to the ledger. */
async function added<T>(action: () => Promise<T>): Promise<{ result: T; added: Partial<UsageRow> }> {
  const before = await usage();
  const result = await action();
  const after = await usage();
  const fields = [
    'requests',
    'errors',
    'prompt_tokens',
    'completion_tokens',
    'cached_tokens',
    'reasoning_tokens',
  ] as const;
  return { result, added: Object.fromEntries(fields.map((field) => [field, after[field] - before[field]])) };
}

describe('answers that are no stream', () => {
  it('pass byte by byte, say who computed them, and are in the ledger when they arrive', async () => {
    const upstream = await session(json(chatAnswer));
    const { result, added: counted } = await added(async () => {
      const answer = await shared.stage.post(path, chat, { 'x-request-id': 'mine-1' });
      return { answer, text: await answer.text() };
    });
    expect(result.text).toBe(JSON.stringify(chatAnswer));
    expect(result.answer.headers.get('x-request-id')).toBe('mine-1');
    expect(result.answer.headers.get('x-engine-extra')).toBe('kept');
    expect(result.answer.headers.get('x-hpcserve-node')).toBe('node1');
    expect(result.answer.headers.get('x-hpcserve-engine')).toBe('native');
    expect(result.answer.headers.get('x-hpcserve-session')).toBe(upstream.own.id);
    expect(result.answer.headers.get('access-control-allow-origin')).toBeNull();
    expect(counted).toEqual({
      requests: 1,
      errors: 0,
      prompt_tokens: 5,
      completion_tokens: 7,
      cached_tokens: 2,
      reasoning_tokens: 3,
    });
    const [seen] = upstream.requests;
    expect(seen!.body).toBe(JSON.stringify(chat));
    expect(seen!.headers['x-hpcserve-model']).toBe('tiny');
    expect(seen!.headers['x-request-id']).toBe('mine-1');
    expect(seen!.headers.authorization).toBeUndefined();
  });

  it('may be as large as they like', async () => {
    const data = Array.from({ length: 600 }, (_, index) => ({
      object: 'embedding',
      index,
      embedding: Array(512).fill(0.123456),
    }));
    const body = { object: 'list', usage: { prompt_tokens: 77, total_tokens: 77 }, model: 'tiny', data };
    await session(json(body));
    const { result, added: counted } = await added(async () =>
      (await shared.stage.post('/v1/embeddings', { model: 'tiny', input: 'x' })).text(),
    );
    expect(result.length).toBeGreaterThan(2_000_000);
    expect(result === JSON.stringify(body)).toBe(true);
    expect(counted).toMatchObject({ requests: 1, prompt_tokens: 77 });
  });

  it('of a model’s tokens are no load', async () => {
    const used = { prompt_tokens: 2, completion_tokens: 0, total_tokens: 2 };
    const told = { count: 2, max_model_len: 512, tokens: [5, 6], usage: used };
    const upstream = await session(json(told), { name: 'spelled' });
    const ask = (asked: string) => shared.stage.post(asked, { model: 'spelled', prompt: 'hi' });
    const loads = async (): Promise<number> => {
      const table = (await (await shared.stage.admin('/mesh/table')).json()) as {
        workload: { model: string }[];
      };
      return table.workload.filter(({ model }) => model === 'spelled').length;
    };
    const result = await (await ask('/tokenize')).json();
    expect(result).toEqual(told);
    expect(upstream.requests[0]!.path).toBe('/tokenize');
    expect(await loads()).toBe(0);
    await (await ask('/v1/completions')).text();
    expect(await loads()).toBe(1);
  });

  it('can be asked for by an alias', async () => {
    const upstream = await session(json(chatAnswer), { aliases: ['gpt-test'] });
    expect(await models()).toEqual(['tiny', 'gpt-test']);
    expect((await shared.stage.post(path, { ...chat, model: 'gpt-test' })).status).toBe(200);
    expect(upstream.requests[0]!.headers['x-hpcserve-model']).toBe('tiny');
  });

  it('work for the official client, errors included', async () => {
    await session(json(chatAnswer));
    const client = new OpenAI({ baseURL: `${shared.stage.url}/v1`, apiKey: shared.stage.key, maxRetries: 0 });
    const answer = await client.chat.completions.create(chat);
    expect(answer.choices[0]!.message.content).toBe(chatAnswer.choices[0]!.message.content);
    expect((await client.models.list()).data.map(({ id }) => id)).toEqual(['tiny']);
    expect((await client.models.retrieve('tiny')).id).toBe('tiny');
    await expect(client.chat.completions.create({ ...chat, model: 'tinny' })).rejects.toMatchObject({
      status: 404,
      code: 'model_not_found',
      message: expect.stringContaining('did you mean "tiny"'),
    });
    const stranger = new OpenAI({ baseURL: `${shared.stage.url}/v1`, apiKey: 'hsk-wrong', maxRetries: 0 });
    await expect(stranger.chat.completions.create(chat)).rejects.toMatchObject({
      status: 401,
      code: 'invalid_api_key',
    });
  });
});

describe('streams', () => {
  const events = [chunkEvent('a "usage": {}'), chunkEvent('ü'), chunkEvent('', 'stop')];

  it('pass byte by byte; usage that only the ledger needs is asked for and kept back', async () => {
    // Cut in the middle of events and of a character, as TCP does.
    const bytes = Buffer.from([...events, usageEvent, doneEvent].join(''));
    const pieces = Array.from({ length: Math.ceil(bytes.length / 37) }, (_, index) =>
      bytes.subarray(index * 37, (index + 1) * 37),
    );
    const upstream = await session(stream(pieces));
    const body = '{"model":"tiny","seed":12345678901234567890, "messages":[],"stream":true }';
    const { result, added: counted } = await added(async () => (await shared.stage.post(path, body)).text());
    expect(result).toBe([...events, doneEvent].join(''));
    expect(upstream.requests[0]!.body).toBe(
      '{"model":"tiny","seed":12345678901234567890, "messages":[],"stream":true ,"stream_options":{"include_usage":true}}',
    );
    expect(counted).toMatchObject({ requests: 1, errors: 0, prompt_tokens: 4, completion_tokens: 3 });
  });

  it('carry the usage chunk where the client asked for it', async () => {
    const upstream = await session(stream([...events, usageEvent, doneEvent]));
    const body = { ...chat, stream: true, stream_options: { include_usage: true } };
    expect(await (await shared.stage.post(path, body)).text()).toBe(
      [...events, usageEvent, doneEvent].join(''),
    );
    expect(upstream.requests[0]!.body).toBe(JSON.stringify(body));
  });

  it('keep other stream options', async () => {
    const upstream = await session(stream([...events, usageEvent, doneEvent]));
    await (
      await shared.stage.post(path, '{"model":"tiny","stream_options":{"x":1},"stream":true,"a":9e99}')
    ).text();
    expect(upstream.requests[0]!.body).toBe(
      '{"model":"tiny","stream_options":{"x":1,"include_usage":true},"stream":true,"a":9e99}',
    );
  });

  it('end with [DONE] exactly once, whatever the replica does', async () => {
    await session(stream([...events, doneEvent, doneEvent, chunkEvent('late')]));
    expect(await (await shared.stage.post(path, { ...chat, stream: true })).text()).toBe(
      [...events, doneEvent].join(''),
    );
    sessions[0]!.answer = stream(events);
    expect(await (await shared.stage.post(path, { ...chat, stream: true })).text()).toBe(
      [...events, doneEvent].join(''),
    );
  });

  it('with CRLF pass unchanged', async () => {
    const crlf = [...events, doneEvent].join('').replaceAll('\n', '\r\n');
    await session(stream([crlf.slice(0, 100), crlf.slice(100)]));
    expect(await (await shared.stage.post(path, { ...chat, stream: true })).text()).toBe(crlf);
  });

  it('work for the official client', async () => {
    await session(stream([...events, usageEvent, doneEvent]));
    const client = new OpenAI({ baseURL: `${shared.stage.url}/v1`, apiKey: shared.stage.key, maxRetries: 0 });
    let text = '';
    const chunks = [];
    for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
      chunks.push(chunk);
      text += chunk.choices[0]?.delta.content ?? '';
    }
    expect(text).toBe('a "usage": {}ü');
    expect(chunks.every(({ choices }) => choices.length === 1)).toBe(true);
  });

  it('reach the client event by event, not at the end', async () => {
    let release = (): void => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(events[0]!);
      await released;
      response.end(events[2]! + doneEvent);
    });
    const answer = await shared.stage.post(path, { ...chat, stream: true });
    const reader = answer.body!.getReader();
    expect(Buffer.from((await reader.read()).value!).toString()).toBe(events[0]);
    release();
    let rest = '';
    for (let part = await reader.read(); !part.done; part = await reader.read())
      rest += Buffer.from(part.value).toString();
    expect(rest).toBe(events[2]! + doneEvent);
  });

  it('of an engine’s own responses API end with their own last event', async () => {
    const created =
      'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n';
    const completed =
      'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":6,"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}}\n\n';
    const upstream = await session(stream([created, completed]), { engine: 'vllm' });
    const { result, added: counted } = await added(async () =>
      (await shared.stage.post('/v1/responses', { model: 'tiny', input: 'x', stream: true })).text(),
    );
    expect(result).toBe(created + completed);
    expect(upstream.requests[0]!.path).toBe('/v1/responses');
    expect(counted).toMatchObject({ prompt_tokens: 6, completion_tokens: 2, reasoning_tokens: 1, errors: 0 });
  });

  const made_up = [
    ['half an event', 'data: {"half', ''],
    ['half a line', 'data', ''],
    ['usage without its blank line', usageEvent.trimEnd(), usageEvent],
    ['usage with the end of its line', `${usageEvent.trimEnd()}\n`, usageEvent],
    ['the ending without its blank line', doneEvent.trimEnd(), ''],
  ] as const;
  it.each(made_up)(
    'that say their finish reason, and end with %s, can be read',
    async (_what, last, kept) => {
      const stream_options = { include_usage: true };
      const finish = chunkEvent('', 'stop');
      await session(stream([events[0]!, finish, last]));
      const result = await (await shared.stage.post(path, { ...chat, stream: true, stream_options })).text();
      expect(result).toBe(events[0]! + finish + kept + doneEvent);
    },
  );

  it('that break in the middle end with an error event, without [DONE]', async () => {
    await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(`${events[0]!}data: {"half`);
      await new Promise((resolve) => setTimeout(resolve, 50));
      response.destroy();
    });
    const { result, added: counted } = await added(async () =>
      (await shared.stage.post(path, { ...chat, stream: true })).text(),
    );
    expect(result.startsWith(events[0]!)).toBe(true);
    const rest = result.slice(events[0]!.length);
    expect(rest).toMatch(/^data: .*\n\n$/);
    expect(JSON.parse(rest.slice(6)).error).toMatchObject({
      code: 'E_REPLICA_BROKE_OFF',
      type: 'server_error',
    });
    expect(counted).toMatchObject({ requests: 1, errors: 1, completion_tokens: 1 });
    const client = new OpenAI({ baseURL: `${shared.stage.url}/v1`, apiKey: shared.stage.key, maxRetries: 0 });
    const read = async (): Promise<void> => {
      for await (const _ of await client.chat.completions.create({ ...chat, stream: true }));
    };
    await expect(read()).rejects.toThrow(/ended in the middle/);
  });

  it('stop being computed when the client goes away', async () => {
    const upstream = await session((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(events[0]!);
    });
    const abort = new AbortController();
    const answer = await fetch(shared.stage.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${shared.stage.key}` },
      body: JSON.stringify({ ...chat, stream: true }),
      signal: abort.signal,
    });
    await answer.body!.getReader().read();
    const { added: counted } = await added(async () => {
      abort.abort();
      await upstream.requests[0]!.aborted;
      await until(async () => (await usage()).errors > 0, 'the ledger to have it');
    });
    expect(counted).toMatchObject({ requests: 1, errors: 1, completion_tokens: 1 });
  });

  it('wait for a slow client instead of filling memory', async () => {
    const event = chunkEvent('x'.repeat(4000));
    let written = 0;
    let total = 0;
    const upstream = await session(async (_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const closed = once(response, 'close');
      while (written < 64 * 1024 * 1024 && !response.destroyed) {
        written += event.length;
        if (!response.write(event)) {
          const drained = new AbortController();
          await Promise.race([once(response, 'drain', drained), closed]);
          drained.abort();
        }
      }
      total = written;
      response.end(doneEvent);
    });
    const outgoing = httpRequest(shared.stage.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${shared.stage.key}` },
    });
    outgoing.end(JSON.stringify({ ...chat, stream: true }));
    const answer = await new Promise<import('node:http').IncomingMessage>((resolve) =>
      outgoing.once('response', resolve),
    );
    answer.pause();
    let before = -1;
    await until(async () => {
      const stalled = written === before && written > 0;
      before = written;
      await new Promise((resolve) => setTimeout(resolve, 200));
      return stalled;
    }, 'the replica to be paused');
    expect(written).toBeLessThan(32 * 1024 * 1024);
    expect(total).toBe(0);
    outgoing.destroy();
    await upstream.requests[0]!.aborted;
  });
});

describe('replicas that fail', () => {
  it('before their answer are replaced by another, without the client noticing', async () => {
    const bad = [
      await session((_request, response) => void response.destroy(), { node: 'dies' }),
      await session(json({ error: { message: 'out of memory', type: 'x', code: null } }, 500), {
        node: 'fails',
      }),
    ];
    const good = await session(json(chatAnswer), { node: 'good' });
    for (let round = 0; round < 8; round++) {
      const answer = await shared.stage.post(path, chat);
      expect(await answer.text()).toBe(JSON.stringify(chatAnswer));
      expect(answer.headers.get('x-hpcserve-node')).toBe('good');
    }
    expect(good.requests.length).toBe(8);
    expect(bad[0]!.requests.length + bad[1]!.requests.length).toBeGreaterThan(0);
  });

  it('after the first MiB of an answer that is no stream cut it off; before, nothing of it was sent', async () => {
    const cutAfter = async (bytes: number): Promise<{ asked: number; outcome: string }> => {
      let asked = 0;
      const cut = async (_request: unknown, response: ServerResponse): Promise<void> => {
        asked++;
        response.writeHead(200, { 'content-type': 'application/json' });
        await new Promise((resolve) => response.write(`{"x":"${'x'.repeat(bytes)}`, resolve));
        response.destroy();
      };
      const failing = [await session(cut, { node: 'one' }), await session(cut, { node: 'two' })];
      const outcome = await shared.stage
        .post(path, chat)
        .then(async (answer) => `${answer.status} ${await answer.text().catch(() => 'cut off')}`);
      for (const one of failing) await one.stop();
      return { asked, outcome };
    };
    const small = await cutAfter(2 ** 19);
    expect(small.asked).toBe(2);
    expect(small.outcome).toMatch(/^502 .*E_REPLICA_FAILED/);
    expect(await cutAfter(2 ** 21)).toEqual({ asked: 1, outcome: '200 cut off' });
  });

  it('all: the last one says why, in the envelope', async () => {
    const error = { message: 'out of memory', type: 'x', param: null, code: 'oom' };
    await session(json({ error }, 500));
    const answer = await shared.stage.post(path, chat);
    expect(answer.status).toBe(500);
    expect(await answer.json()).toEqual({ error });
    sessions[0]!.answer = (_request, response) => void response.writeHead(503).end('<html>no</html>');
    const html = await shared.stage.post(path, chat);
    expect(html.status).toBe(503);
    expect(((await html.json()) as { error: object }).error).toMatchObject({ code: 'E_REPLICA_FAILED' });
    sessions[0]!.answer = (_request, response) => void response.destroy();
    const dead = await shared.stage.post(path, chat);
    expect(dead.status).toBe(502);
    expect(dead.headers.get('retry-after')).toBeTruthy();
    expect(((await dead.json()) as { error: object }).error).toMatchObject({ code: 'E_REPLICA_FAILED' });
  });

  it('with garbage on the wire do no harm', async () => {
    const upstream = await session((request, response) => {
      void request;
      response.socket!.write('NOT HTTP AT ALL\r\n\r\n');
    });
    expect((await shared.stage.post(path, chat)).status).toBe(502);
    upstream.answer = (_request, response) => {
      response.socket!.write(
        'HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello',
      );
    };
    expect((await shared.stage.post(path, chat)).status).toBe(502);
    upstream.answer = json(chatAnswer);
    expect((await shared.stage.post(path, chat)).status).toBe(200);
  });

  it('that greet like another protocol are passed over, also where the greeting comes before the request', async () => {
    const upstream = await session(json(chatAnswer));
    await until(async () => (await models()).length === 1, 'the session to be seen');
    upstream.greeting = '220 mail.example ESMTP\r\n';
    expect((await shared.stage.post(path, chat)).status).toBe(502);
    upstream.greeting = undefined;
    expect(await (await shared.stage.post(path, chat)).json()).toEqual(chatAnswer);
  });

  it('errors of the request pass without a second try', async () => {
    const error = {
      message: 'prompt is too long',
      type: 'invalid_request_error',
      param: 'messages',
      code: null,
    };
    const first = await session(json({ error }, 400));
    const second = await session(json({ error }, 400), { node: 'node2' });
    const answer = await shared.stage.post(path, chat);
    expect(answer.status).toBe(400);
    expect(await answer.json()).toEqual({ error });
    expect(first.requests.length + second.requests.length).toBe(1);
  });

  it('are gone at once when their process dies', async () => {
    const upstream = await session(json(chatAnswer));
    const before = performance.now();
    await upstream.kill();
    await until(async () => (await models()).length === 0, 'the model to be gone', 2000);
    expect(performance.now() - before).toBeLessThan(1500);
    const answer = await shared.stage.post(path, chat);
    expect(answer.status).toBe(503);
    expect(answer.headers.get('retry-after')).toMatch(/^\d+$/);
    const { error } = (await answer.json()) as { error: { message: string } };
    expect(error.message).toContain('cannot be reached');
  });

  it('that are full make the gateway say when to come back', async () => {
    const upstream = await session(json(chatAnswer));
    upstream.load = { running: 8, waiting: 5000 };
    upstream.beat();
    await until(async () => (await shared.stage.post(path, chat)).status === 429, 'the load to be known');
    const answer = await shared.stage.post(path, chat);
    const wait_s = Number(answer.headers.get('retry-after'));
    expect(wait_s).toBeGreaterThanOrEqual(1);
    expect(wait_s).toBeLessThanOrEqual(120);
    expect(((await answer.json()) as { error: object }).error).toMatchObject({ type: 'rate_limit_error' });
  });

  it('with less load are asked first', async () => {
    const busy = await session(json(chatAnswer), { node: 'busy' });
    const free = await session(json(chatAnswer), { node: 'free' });
    busy.load = { running: 8, waiting: 20 };
    busy.beat();
    await until(async () => {
      const { sessions: rows } = (await (await shared.stage.admin('/hpcserve/v1/table')).json()) as {
        sessions: { node: string; models: { waiting: number }[] }[];
      };
      return rows.some(({ node, models: loads }) => node === 'busy' && loads[0]!.waiting === 20);
    }, 'the load to be known');
    for (let round = 0; round < 5; round++) await (await shared.stage.post(path, chat)).text();
    expect(free.requests.length).toBe(5);
    expect(busy.requests.length).toBe(0);
  });
});

/**
 * Streams of wrapped engines that break: the gateway before engines that continue a final message, as vLLM and
 * SGLang do, played by a server that answers with numbered words. And streams that nobody can go on with.
 */
import type { ServerResponse } from 'node:http';
import OpenAI from 'openai';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { UsageRow } from '../../spec/usage.ts';
import type { TestSession } from '../gateway/support.ts';
import {
  type Answer,
  chunkEvent,
  doneEvent,
  type Stage,
  startStage,
  stream,
  until,
} from '../gateway/support.ts';

const path = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'count' }], max_tokens: 12 };
/** Tokens that the engine counts for every prompt. */
const prompt_tokens = 5;

let stage: Stage;
let sessions: TestSession[] = [];

beforeAll(async () => {
  stage = await startStage({ continue_ms: 600 });
});
afterAll(() => stage.close());
afterEach(async () => {
  for (const session of sessions) await session.stop();
  await until(async () => (await models()).length === 0, 'the sessions to be gone');
  sessions = [];
});

async function models(): Promise<unknown[]> {
  const answer = await fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${stage.key}` } });
  return ((await answer.json()) as { data: unknown[] }).data;
}

async function session(answer: Answer, node: string, engine = 'vllm'): Promise<TestSession> {
  const started = await stage.session(answer, { node, engine });
  sessions.push(started);
  return started;
}

interface EngineRequest {
  messages?: { role: string; content: string }[];
  prompt?: string;
  max_tokens: number;
  continue_final_message?: boolean;
  add_generation_prompt?: boolean;
  stream_options?: { include_usage?: boolean };
}

/** Says `w0 w1 w2 …` for as many words as tokens are allowed, behind the words that are there already. */
function counting(breaks: (sent: number) => string | undefined, id: string): Answer {
  return async (seen, response) => {
    const request = JSON.parse(seen.body) as EngineRequest;
    const isChat = seen.path === path;
    const said = isChat
      ? request.continue_final_message && request.add_generation_prompt === false
        ? request.messages!.at(-1)!.content
        : ''
      : request.prompt!.replace(/^count: /, '');
    const first = said.split(' ').filter(Boolean).length;
    const head = { id, object: 'x', created: 100 + id.length, model: 'tiny' };
    const send = async (text: string) =>
      await new Promise<void>((resolve) => response.write(text, () => resolve()));
    const event = (choice: object): string =>
      `data: ${JSON.stringify({ ...head, choices: [{ index: 0, ...choice, logprobs: null }] })}\n\n`;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    if (isChat) await send(event({ delta: { role: 'assistant', content: '' }, finish_reason: null }));
    for (let word = 0; word < request.max_tokens; word++) {
      const end = breaks(word);
      if (end !== undefined) {
        await send(end);
        response.destroy();
        return;
      }
      const text = `w${first + word} `;
      await send(
        event(isChat ? { delta: { content: text } } : { text }).replace(
          '"logprobs"',
          '"finish_reason":null,"logprobs"',
        ),
      );
    }
    await send(event({ ...(isChat ? { delta: {} } : { text: '' }), finish_reason: 'length' }));
    const usage = {
      prompt_tokens: prompt_tokens + first,
      completion_tokens: request.max_tokens,
      total_tokens: prompt_tokens + first + request.max_tokens,
    };
    if (request.stream_options?.include_usage)
      await send(`data: ${JSON.stringify({ ...head, choices: [], usage })}\n\n`);
    response.end(doneEvent);
  };
}

const never = (): undefined => undefined;
const breakAfter =
  (words: number, last = 'data: {"half') =>
  (sent: number): string | undefined =>
    sent >= words ? last : undefined;

async function usage(): Promise<UsageRow> {
  const answer = await stage.admin('/hpcserve/v1/usage?group_by=key');
  const { usage: rows } = (await answer.json()) as { usage: UsageRow[] };
  return rows.find(({ group }) => group.key === stage.key_id)!;
}

/** The events of a raw answer, parsed, the ending apart. */
function eventsOf(text: string) {
  const events = text.split('\n\n').filter(Boolean);
  const ending = events.at(-1) === 'data: [DONE]' ? events.pop() : undefined;
  return { events: events.map((event) => JSON.parse(event.slice(6))), ending };
}

const words = Array.from({ length: 12 }, (_, word) => `w${word} `).join('');

describe('a stream of a wrapped engine that breaks', () => {
  it('goes on from its text, as one stream, and its usage counts the answer once', async () => {
    // Whichever is asked first breaks after three words; the one that goes on, after four more.
    const answers = new Map<string, number>();
    const breaking = (node: string): Answer => {
      return (seen, response) => {
        const turn = answers.size;
        answers.set(seen.body, turn);
        return counting(turn === 0 ? breakAfter(3) : turn === 1 ? breakAfter(4) : never, `id-${node}`)(
          seen,
          response,
        );
      };
    };
    for (const node of ['a', 'b', 'c']) await session(breaking(node), node);
    const client = new OpenAI({ baseURL: `${stage.url}/v1`, apiKey: stage.key, maxRetries: 0 });
    const chunks: OpenAI.ChatCompletionChunk[] = [];
    for await (const chunk of await client.chat.completions.create({
      ...chat,
      stream: true,
      stream_options: { include_usage: true },
    }))
      chunks.push(chunk);
    const choices = chunks.flatMap((chunk) => chunk.choices);
    expect(choices.map(({ delta }) => delta.content ?? '').join('')).toBe(words);
    expect(choices.filter(({ delta }) => delta.role)).toHaveLength(1);
    expect(choices.filter(({ finish_reason }) => finish_reason).map((one) => one.finish_reason)).toEqual([
      'length',
    ]);
    expect(new Set(chunks.map(({ id, created }) => `${id} ${created}`)).size).toBe(1);
    expect(chunks.at(-1)!.usage).toEqual({ prompt_tokens, completion_tokens: 12, total_tokens: 17 });
    const bodies = [...answers.keys()].map((body) => JSON.parse(body) as EngineRequest);
    expect(bodies.map(({ max_tokens }) => max_tokens)).toEqual([12, 9, 5]);
    expect(bodies[2]!.messages!.at(-1)).toEqual({ role: 'assistant', content: 'w0 w1 w2 w3 w4 w5 w6 ' });
  });

  it('goes on where the engine says in an event that it failed', async () => {
    const failure = `data: ${JSON.stringify({ error: { message: 'EngineCore died', type: 'InternalServerError', code: 500 } })}\n\n`;
    let asked = 0;
    const answer: Answer = (seen, response) =>
      counting(asked++ === 0 ? breakAfter(2, failure) : never, 'x')(seen, response);
    await session(answer, 'a');
    await session(answer, 'b');
    const before = await usage();
    const { events, ending } = eventsOf(await (await stage.post(path, { ...chat, stream: true })).text());
    expect(events.map(({ choices }) => choices[0].delta.content ?? '').join('')).toBe(words);
    expect(ending).toBeDefined();
    const counted = await usage();
    expect(counted.completion_tokens - (before?.completion_tokens ?? 0)).toBe(12);
    expect(counted.errors - (before?.errors ?? 0)).toBe(0);
  });

  it('goes on where a node falls silent with its connections open', async () => {
    const silent: TestSession[] = [];
    const silence = (node: number): Answer => {
      return (seen, response) =>
        counting(silent.length === 0 ? breakAfter(3) : never, `id-${node}`)(seen, {
          writeHead: response.writeHead.bind(response),
          write: response.write.bind(response),
          end: response.end.bind(response),
          // What it would break off with: it says nothing more instead.
          destroy: () => {
            silent.push(sessions[node]!);
            sessions[node]!.fallSilent();
          },
        } as unknown as ServerResponse);
    };
    for (const node of [0, 1]) await session(silence(node), `n${node}`);
    const { events, ending } = eventsOf(await (await stage.post(path, { ...chat, stream: true })).text());
    expect(silent).toHaveLength(1);
    expect(ending).toBe('data: [DONE]');
    const said = events.flatMap((event) => event.choices ?? []).map(({ delta }) => delta.content ?? '');
    expect(said.join('')).toBe(words);
  });

  it('changes its replica eight times and no more', async () => {
    for (const node of ['a', 'b', 'c']) await session(counting(breakAfter(1), `id-${node}`), node);
    const { events, ending } = eventsOf(await (await stage.post(path, { ...chat, stream: true })).text());
    expect(ending).toBeUndefined();
    const said = events.flatMap((event) => event.choices ?? []).map(({ delta }) => delta.content ?? '');
    expect(said.join('')).toBe('w0 w1 w2 w3 w4 w5 w6 w7 w8 ');
    expect(events.at(-1).error.code).toBe('E_REPLICA_BROKE_OFF');
    expect(sessions.reduce((sum, { requests }) => sum + requests.length, 0)).toBe(9);
  });

  it('goes on with a longer prompt where it is a text completion', async () => {
    let asked = 0;
    const answer: Answer = (seen, response) =>
      counting(asked++ === 0 ? breakAfter(6) : never, `id${asked}`)(seen, response);
    await session(answer, 'a', 'llama.cpp');
    await session(answer, 'b', 'llama.cpp');
    const body = { model: 'tiny', prompt: 'count: ', max_tokens: 12, stream: true };
    const { events, ending } = eventsOf(await (await stage.post('/v1/completions', body)).text());
    expect(events.map(({ choices }) => choices[0].text).join('')).toBe(words);
    expect(new Set(events.map(({ id }) => id)).size).toBe(1);
    expect(ending).toBeDefined();
  });

  it.each([
    ['a grammar', { response_format: { type: 'json_object' } }, 'grammar'],
    ['several choices', { n: 2 }, 'several choices'],
  ])('in the middle of %s ends with an error event that says why', async (_, more, why) => {
    await session(counting(breakAfter(2), 'a'), 'a');
    await session(counting(never, 'b'), 'b', 'sglang');
    let text = '';
    // Whichever replica is asked: until it is the one that breaks.
    await until(async () => {
      text = await (await stage.post(path, { ...chat, ...more, stream: true })).text();
      return !text.includes('[DONE]');
    }, 'the stream to break');
    const { events, ending } = eventsOf(text);
    expect(ending).toBeUndefined();
    expect(events.at(-1).error).toMatchObject({ code: 'E_REPLICA_BROKE_OFF', type: 'server_error' });
    expect(events.at(-1).error.message).toContain(why);
  });

  it('and finds nobody to go on ends with an error event, after it has waited', async () => {
    await session(counting(breakAfter(3), 'a'), 'a');
    const { events, ending } = eventsOf(await (await stage.post(path, { ...chat, stream: true })).text());
    expect(ending).toBeUndefined();
    expect(events.at(-1).error).toMatchObject({ code: 'E_REPLICA_BROKE_OFF' });
    expect(events.at(-1).error.message).toContain('none was there within');
  });

  it('is not sought a replica for once its client has gone', async () => {
    const upstream = await session(counting(breakAfter(3), 'a'), 'a');
    const abort = new AbortController();
    const answer = await fetch(stage.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${stage.key}` },
      body: JSON.stringify({ ...chat, stream: true }),
      signal: abort.signal,
    });
    await answer.body!.getReader().read();
    const before = await usage();
    abort.abort();
    await until(async () => (await usage()).errors > (before?.errors ?? 0), 'the ledger to have it');
    await session(counting(never, 'b'), 'b');
    expect(upstream.requests.length).toBe(1);
    expect(sessions[1]!.requests.length).toBe(0);
  });
});

describe('an error event', () => {
  const error = (code: string | number, type: string) =>
    `data: ${JSON.stringify({ error: { message: 'no', type, param: null, code } })}\n\n`;

  it('before anything else has the request asked of another replica', async () => {
    const events = [chunkEvent('yes'), chunkEvent('', 'stop'), doneEvent];
    let asked = 0;
    const answer: Answer = (seen, response) =>
      stream(asked++ === 0 ? [error('E_WORKER_COMPUTE', 'server_error')] : events)(seen, response);
    await session(answer, 'a', 'native');
    await session(answer, 'b', 'native');
    const text = await (await stage.post(path, { ...chat, stream: true })).text();
    expect(text).toBe(events.join(''));
    expect(asked).toBe(2);
  });

  it('that blames the request passes unchanged, and nothing follows it', async () => {
    const blame = error('too_long', 'invalid_request_error');
    await session(stream([chunkEvent('a'), blame]), 'a');
    await session(stream([chunkEvent('a'), blame]), 'b');
    const text = await (await stage.post(path, { ...chat, stream: true })).text();
    expect(text).toBe(chunkEvent('a') + blame);
  });
});

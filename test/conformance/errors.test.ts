/** What goes wrong: the class that the official client raises, OpenAI's envelope, and the details of HTTP. */
import { request } from 'node:http';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { limits } from '../../spec/wire.ts';
import { errorEnvelope } from './shapes.ts';
import { openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';
const messages = [{ role: 'user' as const, content: 'Hello' }];
const chat = { model: 'tiny', messages, max_tokens: 4 };

let stage: Stage;
beforeAll(async () => {
  stage = await openStage();
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

/** Status, header and envelope of an answer to bytes sent as they are. */
function raw(method: string, path: string, headers: Record<string, string> = {}, body = '') {
  return new Promise<{ status: number; headers: NodeJS.Dict<string | string[]>; text: string }>(
    (resolve, reject) => {
      const asked = request(stage.url + path, { method, headers }, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', () =>
          resolve({
            status: response.statusCode!,
            headers: response.headers,
            text: Buffer.concat(chunks).toString(),
          }),
        );
      });
      asked.on('error', reject);
      asked.end(body);
    },
  );
}

describe('the official client raises', () => {
  type Body = Record<string, unknown>;
  const cases: [string, Body, abstract new (...args: never[]) => Error, number, string, string | null][] = [
    ['an unknown model', { model: 'nobody' }, OpenAI.NotFoundError, 404, 'model_not_found', 'model'],
    ['a wrong type', { temperature: 'hot' }, OpenAI.BadRequestError, 400, 'invalid_value', 'temperature'],
    ['out of range', { top_p: 7 }, OpenAI.BadRequestError, 400, 'invalid_value', 'top_p'],
    [
      'a role that is none',
      { messages: [{ role: 'x', content: '' }] },
      OpenAI.BadRequestError,
      400,
      'invalid_value',
      'messages.0.role',
    ],
    [
      'an unknown parameter',
      { tempreature: 1 },
      OpenAI.BadRequestError,
      400,
      'unknown_parameter',
      'tempreature',
    ],
    [
      'a parameter of vLLM',
      { prompt_logprobs: 1 },
      OpenAI.BadRequestError,
      400,
      'unsupported_value',
      'prompt_logprobs',
    ],
    [
      'too many tokens',
      { max_tokens: 99_999 },
      OpenAI.BadRequestError,
      400,
      'context_length_exceeded',
      'messages',
    ],
    [
      'an image',
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }] },
      OpenAI.BadRequestError,
      400,
      'unsupported_value',
      'messages.0.content.0',
    ],
    ['a stream that is a word', { stream: 'yes' }, OpenAI.BadRequestError, 400, 'invalid_value', 'stream'],
    [
      'functions beside tools',
      { functions: [{ name: 'f' }], tools: [] },
      OpenAI.BadRequestError,
      400,
      'invalid_value',
      'functions',
    ],
    ['audio', { modalities: ['audio'] }, OpenAI.BadRequestError, 400, 'unsupported_value', 'modalities'],
    [
      'both names of one thing',
      { reasoning_effort: 'low', reasoning: { max_tokens: 3 } },
      OpenAI.BadRequestError,
      400,
      'invalid_value',
      'reasoning.max_tokens',
    ],
  ];
  it.each(cases)('%s', async (_, more, kind, status, code, param) => {
    for (const stream of [false, true]) {
      const body = { stream, ...chat, ...more } as OpenAI.ChatCompletionCreateParamsNonStreaming;
      const failure = stage.client.chat.completions.create(body);
      await expect(failure).rejects.toBeInstanceOf(kind);
      await expect(failure).rejects.toMatchObject({
        status,
        code,
        param,
        type: 'invalid_request_error',
        requestID: expect.stringMatching(/./),
      });
    }
  });

  it('stream_options without stream', async () => {
    const failure = stage.client.chat.completions.create({ ...chat, stream_options: {} });
    await expect(failure).rejects.toMatchObject({ status: 400, param: 'stream_options' });
  });

  it('completions: suffix, best_of and an empty prompt', async () => {
    const complete = (more: object) =>
      stage.client.completions.create({ model: 'tiny', prompt: 'x', max_tokens: 2, ...more });
    await expect(complete({ suffix: 'y' })).rejects.toMatchObject({ status: 400, param: 'suffix' });
    await expect(complete({ best_of: 3 })).rejects.toMatchObject({ status: 400, param: 'best_of' });
    await expect(complete({ prompt: [] })).rejects.toMatchObject({ status: 400, param: 'prompt' });
  });

  it('a key that is wrong, or none: AuthenticationError', async () => {
    const stranger = stage.clientWith({ apiKey: 'hsk-wrong' });
    for (const ask of [
      () => stranger.chat.completions.create(chat),
      () => stranger.models.list(),
      () => stranger.embeddings.create({ model: 'tiny', input: 'x' }),
    ]) {
      const failure = (async () => ask())();
      await expect(failure).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
      await expect(failure).rejects.toMatchObject({ status: 401, code: 'invalid_api_key' });
    }
  });

  it('an engine that fails: InternalServerError; one that is full: RateLimitError; its own words in both', async () => {
    const ask = (status: number, error: object) =>
      stage.client.chat.completions.create({
        model: 'foreign',
        messages,
        status,
        answer: JSON.stringify({ error }),
      } as unknown as OpenAI.ChatCompletionCreateParamsNonStreaming);
    const broken = ask(500, { message: 'boom', type: 'server_error', param: null, code: 'boom' });
    await expect(broken).rejects.toBeInstanceOf(OpenAI.InternalServerError);
    await expect(broken).rejects.toMatchObject({ status: 500, code: 'boom', type: 'server_error' });
    const full = ask(429, { message: 'full', type: 'rate_limit_error', param: null, code: null });
    await expect(full).rejects.toBeInstanceOf(OpenAI.RateLimitError);
    const odd = ask(422, { message: 'odd', type: 'invalid_request_error', param: 'x', code: null });
    await expect(odd).rejects.toBeInstanceOf(OpenAI.UnprocessableEntityError);
  });

  it('an engine whose error is no envelope: it is put into one', async () => {
    const answer = await stage.post(chatPath, { model: 'foreign', status: 418, answer: '<h1>no</h1>' });
    expect(answer.status).toBe(418);
    const { error } = errorEnvelope.parse(await answer.json());
    expect(error).toMatchObject({
      code: 'E_REPLICA_FAILED',
      message: expect.stringContaining('<h1>no</h1>'),
    });
  });

  it('a stream that is aborted ends at once and leaves nothing behind', async () => {
    const stream = await stage.client.chat.completions.create({ ...chat, max_tokens: 900, stream: true });
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
    expect(chunks).toBeLessThan(50);
    const after = await stage.client.chat.completions.create(chat);
    expect(after.usage!.completion_tokens).toBe(4);
  });
});

describe('HTTP', () => {
  const authorized = () => ({ authorization: `Bearer ${stage.key}` });
  const asJson = { 'content-type': 'application/json' };

  it('every answer names its request, by the id of the client or one of its own', async () => {
    const mine = await stage.post(chatPath, chat, { 'x-request-id': 'mine-7' });
    expect(mine.headers.get('x-request-id')).toBe('mine-7');
    const { data, request_id } = await stage.client.chat.completions.create(chat).withResponse();
    expect(request_id).toMatch(/^req_/);
    expect(data).toHaveProperty('_request_id', request_id);
    for (const path of ['/v1/models', '/v1/nothing', chatPath])
      expect((await raw('GET', path, authorized())).headers['x-request-id']).toMatch(/^req_/);
  });

  it.each<[string, string, string, Record<string, string>, number, string]>([
    ['an unknown path', 'GET', '/v1/nothing', {}, 404, 'E_REQUEST_PATH'],
    ['GET where POST is meant', 'GET', chatPath, {}, 405, 'E_REQUEST_METHOD'],
    ['PUT', 'PUT', '/v1/embeddings', {}, 405, 'E_REQUEST_METHOD'],
    ['POST where GET is meant', 'POST', '/v1/models', {}, 405, 'E_REQUEST_METHOD'],
    [
      'OPTIONS: pages of other origins are promised nothing',
      'OPTIONS',
      chatPath,
      {},
      405,
      'E_REQUEST_METHOD',
    ],
    [
      'a form',
      'POST',
      chatPath,
      { 'content-type': 'application/x-www-form-urlencoded' },
      415,
      'E_REQUEST_MEDIA_TYPE',
    ],
    ['XML', 'POST', '/v1/completions', { 'content-type': 'text/xml' }, 415, 'E_REQUEST_MEDIA_TYPE'],
    [
      'a body that is announced too large',
      'POST',
      chatPath,
      { ...asJson, 'content-length': String(limits.body_bytes + 1) },
      413,
      'E_REQUEST_TOO_LARGE',
    ],
    ['an empty body', 'POST', chatPath, asJson, 400, 'E_REQUEST_JSON'],
  ])('%s', async (_, method, path, headers, status, code) => {
    const answer = await raw(method, path, { ...authorized(), ...headers });
    expect(answer.status).toBe(status);
    expect(answer.headers['x-hpcserve-error']).toBe(code);
    expect(answer.headers['access-control-allow-origin']).toBeUndefined();
    expect(answer.headers['content-type']).toContain('application/json');
    errorEnvelope.parse(JSON.parse(answer.text));
    if (status === 405) expect(answer.headers.allow).toMatch(/^(POST|GET, HEAD|HEAD, GET)$/);
  });

  it('HEAD is GET without a body', async () => {
    const got = await raw('GET', '/v1/models', authorized());
    const head = await raw('HEAD', '/v1/models', authorized());
    expect([head.status, head.text]).toEqual([200, '']);
    expect(head.headers['content-length']).toBe(got.headers['content-length']);
    expect((await raw('HEAD', '/health')).status).toBe(200);
  });

  it('JSON with a charset, of a derived type, as plain text, or of no declared type is JSON', async () => {
    const types = ['application/json; charset=utf-8', 'application/problem+json', 'text/plain', undefined];
    for (const type of types) {
      const headers = { ...authorized(), ...(type === undefined ? {} : { 'content-type': type }) };
      expect((await raw('POST', chatPath, headers, JSON.stringify(chat))).status).toBe(200);
    }
  });

  it('one connection carries many requests, errors among them', async () => {
    const { Agent } = await import('node:http');
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const ports = new Set<number | undefined>();
    for (const [body, status] of [
      [JSON.stringify(chat), 200],
      ['{"model":"nobody"}', 404],
      ['{no json', 400],
      [JSON.stringify(chat), 200],
    ] as const) {
      const answered = await new Promise<number>((resolve, reject) => {
        const asked = request(
          stage.url + chatPath,
          { method: 'POST', agent, headers: { ...authorized(), ...asJson } },
          (response) => {
            ports.add(response.socket.localPort);
            response.resume().on('end', () => resolve(response.statusCode!));
          },
        );
        asked.on('error', reject);
        asked.end(body);
      });
      expect(answered).toBe(status);
    }
    agent.destroy();
    expect(ports.size).toBe(1);
  });
});

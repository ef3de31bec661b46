/** What proxies, browsers and SDKs do around a request: packed bodies, pages of other origins, limits in headers. */
import { request } from 'node:http';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';
const chat = { model: 'tiny', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 4 };
const page = 'https://chat.example.org';

let stage: Stage;
beforeAll(async () => {
  stage = await openStage({ origins: [page], body_bytes_max: 256 * 1024 });
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

describe('a body packed by gzip', () => {
  const send = (body: Buffer, encoding = 'gzip', path = chatPath) =>
    stage.fetch(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'content-encoding': encoding },
      body: new Uint8Array(body),
    });
  const packed = gzipSync(JSON.stringify(chat));

  it('is read as what it holds, in each API', async () => {
    const answer = (await (await send(packed)).json()) as { usage: { completion_tokens: number } };
    expect(answer.usage.completion_tokens).toBe(4);
    const message = gzipSync(JSON.stringify({ ...chat, max_tokens: 2 }));
    expect((await send(message, 'gzip', '/v1/messages')).status).toBe(200);
  });

  it('is bounded by what it unpacks to, whatever it says', async () => {
    const bomb = gzipSync(Buffer.alloc(64 * 2 ** 20, 0x20));
    expect(bomb.length).toBeLessThan(128 * 1024);
    expect((await send(bomb)).status).toBe(413);
    const lying = Buffer.from(bomb);
    lying.writeUInt32LE(100, lying.length - 4);
    expect((await send(lying)).status).toBe(400);
  });

  it('is refused where it is none, and so are other encodings', async () => {
    expect((await send(Buffer.from(JSON.stringify(chat)))).status).toBe(400);
    // What stands where its length was may be any number.
    expect([400, 413]).toContain((await send(packed.subarray(0, 20))).status);
    expect((await send(packed, 'br')).status).toBe(415);
  });
});

/** As a browser asks: `fetch` of Node would not let it say its origin. */
function asPage(
  method: string,
  path: string,
  headers: Record<string, string>,
): Promise<{ status: number; headers: NodeJS.Dict<string | string[]> }> {
  return new Promise((resolve, reject) => {
    const asked = request(stage.url + path, { method, headers }, (response) => {
      response.resume();
      resolve({ status: response.statusCode!, headers: response.headers });
    });
    asked.on('error', reject);
    asked.end();
  });
}

describe('a page of another origin', () => {
  const preflight = {
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization',
  };

  it('that the site lists may ask with a key', async () => {
    const asked = await asPage('OPTIONS', chatPath, { origin: page, ...preflight });
    expect(asked).toMatchObject({
      status: 204,
      headers: {
        'access-control-allow-origin': page,
        'access-control-allow-headers': 'authorization',
        'access-control-allow-methods': 'GET, POST, DELETE',
        vary: 'origin',
      },
    });
    const authorization = `Bearer ${stage.key}`;
    for (const [method, path] of [
      ['GET', '/v1/models'],
      ['POST', chatPath],
    ] as const) {
      const { headers } = await asPage(method, path, { origin: page, authorization });
      expect(headers['access-control-allow-origin']).toBe(page);
    }
    const answer = await stage.post(chatPath, chat, { origin: page });
    expect(answer.status).toBe(200);
    expect(answer.headers.get('access-control-allow-origin')).toBe(page);
  });

  it('that it does not list, or at the paths of the operator, is promised nothing', async () => {
    for (const [origin, path] of [
      ['https://evil.example.org', chatPath],
      [page, '/hpcserve/v1/keys'],
    ] as const) {
      const { status, headers } = await asPage('OPTIONS', path, { origin, ...preflight });
      expect([status, headers['access-control-allow-origin']]).toEqual([405, undefined]);
    }
  });
});

describe('what is left of a key’s limits', () => {
  const keyWith = async (settings: object): Promise<string> => {
    const body = JSON.stringify({ name: 'limited', settings });
    return (
      (await (await stage.admin('/hpcserve/v1/keys', { method: 'POST', body })).json()) as { key: string }
    ).key;
  };
  const ask = (key: string, path = chatPath) =>
    fetch(stage.url + path, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(chat),
    });

  it('is in the headers of answers and refusals, in OpenAI’s form and in every API', async () => {
    const key = await keyWith({ requests_per_minute: 3, tokens_per_minute: 100_000 });
    const left: (string | null)[] = [];
    for (const path of [chatPath, '/v1/messages', '/v1/responses', chatPath]) {
      const { status, headers } = await ask(key, path);
      left.push(headers.get('x-ratelimit-remaining-requests'));
      expect(headers.get('x-ratelimit-limit-requests')).toBe('3');
      expect(headers.get('x-ratelimit-limit-tokens')).toBe('100000');
      expect(Number(headers.get('x-ratelimit-remaining-tokens'))).toBeGreaterThan(90_000);
      expect(headers.get('x-ratelimit-reset-requests')).toMatch(/^(\d+m)?\d+s$/);
      if (left.length === 4) expect([status, headers.get('retry-after')]).toEqual([429, expect.any(String)]);
    }
    expect(left).toEqual(['2', '1', '0', '0']);
  });

  it('is not told where a key has none', async () => {
    expect([...(await ask(stage.key)).headers.keys()].filter((name) => name.includes('ratelimit'))).toEqual(
      [],
    );
  });
});

it('a method that a path does not take is refused with those that it takes', async () => {
  for (const [method, path, allowed] of [
    ['DELETE', '/v1/models/tiny', 'GET'],
    ['DELETE', '/v1/models/org/thinker', 'GET'],
    ['PUT', '/v1/responses/resp_1', 'DELETE'],
    ['DELETE', '/v1/chat/completions', 'POST'],
    ['POST', '/api/version', 'GET'],
  ] as const) {
    const { status, headers } = await stage.fetch(path, { method });
    expect([path, status]).toEqual([path, 405]);
    expect(headers.get('allow')).toContain(allowed);
  }
});

it('a key may stand where clients of other APIs put it', async () => {
  for (const name of ['x-api-key', 'api-key']) {
    const ask = (key: string) => fetch(`${stage.url}/v1/models`, { headers: { [name]: key } });
    expect([(await ask(stage.key)).status, (await ask('hsk-wrong')).status], name).toEqual([200, 401]);
  }
});

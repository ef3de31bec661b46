/** What is done with a request's body before a wrapped engine gets it. */
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { withCacheSalt } from '../../../agent/node/cache-salt.ts';
import { checkRemoteMedia } from '../../../agent/node/remote-media.ts';
import type { ModelSpec } from '../../../spec/model-yaml.ts';
import type { SessionRecord } from '../../../spec/session-record.ts';
import { agentPaths, headers } from '../../../spec/wire.ts';
import { fixtureEngine, Site, unitOf } from '../support.ts';

const user = (content: unknown) => ({ model: 'm', messages: [{ role: 'user', content }] });
const image = (url: string) => user([{ type: 'image_url', image_url: { url } }]);
const bytes = (body: unknown): Buffer =>
  Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
const check =
  (body: unknown, domains: string[] = []) =>
  () =>
    checkRemoteMedia(bytes(body), domains);
const far = 'http://169.254.169.254/latest/meta-data';

describe('remote media', () => {
  test.each<[string, unknown]>([
    ['an image', image(far)],
    ['one as a text', user([{ type: 'image_url', image_url: far }])],
    ['a film', user([{ type: 'video_url', video_url: { url: far } }])],
    ['a sound', user([{ type: 'audio_url', audio_url: { url: far } }])],
    ['a sound as data', user([{ type: 'input_audio', input_audio: { data: far, format: 'wav' } }])],
    ['a file', user([{ type: 'file', file: { file_url: far } }])],
    ['one that is held', user([{ type: 'file', file: { file_data: far, filename: 'a.png' } }])],
    [
      'of the responses API',
      { model: 'm', input: [{ role: 'user', content: [{ type: 'input_image', image_url: far }] }] },
    ],
    ['an item of it', { model: 'm', input: [{ type: 'input_image', image_url: far }] }],
    [
      'of a tool',
      {
        model: 'm',
        input: [{ type: 'function_call_output', output: [{ type: 'input_image', image_url: far }] }],
      },
    ],
    ['white space before it', image(` \n${far}`)],
    ['another scheme', image('file:///etc/passwd')],
    ['capitals', image('HTTP://10.0.0.1/')],
    ['a file of the node', image('/home/somebody/secret.png')],
    ['one of the folder above', image('../secret')],
    ['no scheme', image('//10.0.0.1/x')],
    [
      'escapes in keys and values',
      JSON.stringify(image(far))
        .replaceAll('image', '\\u0069mage')
        .replaceAll('http', '\\u0068ttp')
        .replaceAll('url', '\\u0075rl'),
    ],
    ['several of one name', `{"messages":[],"messages":${JSON.stringify(image(far).messages)}}`],
  ])('%s is refused', (_, body) => {
    expect(check(body)).toThrow(expect.objectContaining({ code: 'E_REQUEST_REMOTE_MEDIA' }));
  });

  test.each<[string, unknown]>([
    ['UTF-16', Buffer.from(JSON.stringify(image(far)), 'utf16le')],
    ['what JSON does not have', JSON.stringify(image(far)).replace('"m"', 'NaN')],
    ['a mark of the order of bytes', `\uFEFF${JSON.stringify(image(far))}`],
  ])('%s, which engines may read all the same, is refused', (_, body) => {
    expect(check(body)).toThrow(expect.objectContaining({ code: 'E_REQUEST_INVALID' }));
  });

  test.each<[string, unknown]>([
    ['text that speaks of it', user(`what is at ${far} and in image_url?`)],
    ['text in parts', user([{ type: 'text', text: `see ${far}` }])],
    ['data', image('data:image/png;base64,iVBORw0KGgo=')],
    [
      'base64 alone',
      user([{ type: 'input_audio', input_audio: { data: '/9j/4AAQSkZJRg==', format: 'wav' } }]),
    ],
    [
      'tools that speak of files',
      {
        ...user('hi'),
        tools: [
          {
            type: 'function',
            function: { name: 'open', parameters: { properties: { file_url: { default: far } } } },
          },
        ],
      },
    ],
    [
      'calls of them',
      {
        model: 'm',
        messages: [
          {
            role: 'assistant',
            tool_calls: [{ function: { name: 'f', arguments: `{"image_url":"${far}"}` } }],
          },
        ],
      },
    ],
    ['a prompt', { model: 'm', prompt: `image_url ${far}` }],
    ['no JSON without any sign of it', 'x'.repeat(1000)],
  ])('%s passes', (_, body) => {
    expect(check(body)).not.toThrow();
  });

  test('hosts that the model allows, and nothing that could be taken for them', () => {
    const domains = ['images.example.org'];
    expect(check(image('https://images.example.org/a.png'), domains)).not.toThrow();
    expect(check(image('http://IMAGES.example.org:8080/a.png?x=y'), domains)).not.toThrow();
    for (const url of [
      'https://example.org/a.png',
      'https://images.example.org.evil.org/a',
      'https://images.example.org@evil.org/a',
      'https://evil.org\\@images.example.org/a',
      'https://evil.org#@images.example.org/',
      'ftp://images.example.org/a',
      'https://images.example.org\t.evil.org/',
      'https:///images.example.org@10.0.0.1/',
    ])
      expect(check(image(url), domains), url).toThrow(
        expect.objectContaining({ code: 'E_REQUEST_REMOTE_MEDIA' }),
      );
  });

  test('a body that takes long to read is refused, and read only where it may name media', () => {
    const many = `[${'{},'.repeat(200_000)}{}]`;
    expect(check(`{"x":${many},"messages":[{"image_url":1}]}`)).toThrow(
      expect.objectContaining({ code: 'E_REQUEST_TOO_LARGE' }),
    );
    expect(check(`{"x":${many}}`)).not.toThrow();
    expect(check(`{"image_url":${'['.repeat(100_000)}`)).toThrow(
      expect.objectContaining({ code: 'E_REQUEST_TOO_LARGE' }),
    );
  });
});

test('a salt is the last member, whatever the client says, and another in each scope and engine', () => {
  const salted = (body: string, scope: string, key = 'k'): Record<string, string> =>
    JSON.parse(withCacheSalt(Buffer.from(body), scope, key).toString());
  const one = salted('{"model":"m","cache_salt":"mine"} \n', 'a');
  expect(one).toEqual({ model: 'm', cache_salt: expect.stringMatching(/^[0-9a-f]{64}$/) });
  expect(salted('{"model":"m"}', 'a').cache_salt).toBe(one.cache_salt);
  expect(salted('{"model":"m"}', 'b').cache_salt).not.toBe(one.cache_salt);
  expect(salted('{"model":"m"}', 'a', 'other').cache_salt).not.toBe(one.cache_salt);
  expect(withCacheSalt(Buffer.from('[1]'), 'a', 'k').toString()).toBe('[1]');
});

/** A stand-in for vLLM behind an agent. */
async function serveVllm(site: Site): Promise<SessionRecord> {
  const folder = join(site.folder, 'installed');
  await mkdir(join(folder, 'bin'), { recursive: true });
  const rules = fileURLToPath(new URL('../adapters/vllm-rules.mjs', import.meta.url));
  await writeFile(join(folder, 'bin/vllm'), `#!/bin/sh\nexec '${process.execPath}' '${rules}' "$@"\n`);
  await chmod(join(folder, 'bin/vllm'), 0o755);
  const environment = { PATH: `${join(folder, 'bin')}${delimiter}${process.env.PATH}` };
  await site.start([unitOf({ name: 'm' }, { engine: 'vllm' })], {}, environment);
  return site.serving('m', 30_000);
}

describe('behind a real agent', () => {
  const asking = (body: unknown, more: Record<string, string> = {}) => ({
    method: 'POST' as const,
    path: '/v1/chat/completions',
    headers: { 'content-type': 'application/json', ...more },
    body: bytes(body),
  });

  test('an engine gets no request that names remote media, unless its model allows the host', async () => {
    await using site = await Site.open();
    const command = [process.execPath, fixtureEngine, '{socket}'];
    const open = { remote_media: { domains: ['images.example.org'] } } as Partial<ModelSpec>;
    const agent = await site.start([
      unitOf({ name: 'closed', command }),
      unitOf({ name: 'open', command, ...open }),
    ]);
    const [closed, opened] = [await site.serving('closed'), await site.serving('open')];
    // The stand-in reads the last message: what it is to do stands there.
    const withImage = (url: string) => ({
      messages: [...image(url).messages, { role: 'user', content: 'count 1' }],
    });
    const refused = await site.pool(closed).request(asking(withImage('https://images.example.org/a.png')));
    expect(refused.statusCode).toBe(400);
    expect(await refused.body.json()).toMatchObject({
      error: { code: 'E_REQUEST_REMOTE_MEDIA', type: 'invalid_request_error' },
    });
    expect(await agent.engineLog('closed-0')).not.toContain('asked count');
    for (const [record, url] of [
      [closed, 'data:image/png;base64,iVBORw0KGgo='],
      [opened, 'https://images.example.org/a.png'],
    ] as const) {
      const passed = await site.pool(record).request(asking(withImage(url)));
      expect([passed.statusCode, (await passed.body.text()).includes('[DONE]')]).toEqual([200, true]);
    }
    const elsewhere = await site.pool(opened).request(asking(withImage('https://example.org/a.png')));
    expect(elsewhere.statusCode).toBe(400);
    await elsewhere.body.dump();
  });

  test('vLLM gets a salt where the gateway names a scope, and the body as it was where it names none', async () => {
    await using site = await Site.open();
    const record = await serveVllm(site);
    const saltOf = async (scope: string | undefined): Promise<unknown> => {
      const more: Record<string, string> = scope === undefined ? {} : { [headers.cache_scope]: scope };
      const { body } = await site.pool(record).request(asking({ ...user('hi'), cache_salt: 'own' }, more));
      return ((await body.json()) as { cache_salt?: string }).cache_salt;
    };
    const salt = await saltOf('a');
    expect(salt).toMatch(/^[0-9a-f]{64}$/);
    expect(await saltOf('a')).toBe(salt);
    expect(await saltOf('b')).not.toBe(salt);
    expect(await saltOf(undefined)).toBe('own');
  });

  test('vLLM spells tokens, and goes on behind ids, as a stream that moves asks for it', async () => {
    await using site = await Site.open();
    const record = await serveVllm(site);
    const pool = site.pool(record);
    const post = (path: string, body: object) =>
      pool.request({ method: 'POST', path, headers: { [headers.model]: 'm' }, body: JSON.stringify(body) });
    const spelled = await post(agentPaths.detokenize, { model: 'm', tokens: [...Buffer.from('für')] });
    expect([spelled.statusCode, await spelled.body.json()]).toEqual([200, { prompt: 'für' }]);
    const answer = await post('/v1/completions', {
      model: 'm',
      prompt: [102, 195],
      max_tokens: 3,
      stream: true,
      return_token_ids: true,
    });
    expect((await answer.body.text()).match(/"token_ids":\[\d+\]/g)).toHaveLength(3);
  });

  test('an engine that spells no tokens is not asked to', async () => {
    await using site = await Site.open();
    await site.start([unitOf({ name: 'm', command: [process.execPath, fixtureEngine, '{socket}'] })]);
    const record = await site.serving('m');
    const { statusCode, body } = await site
      .pool(record)
      .request({ method: 'POST', path: agentPaths.detokenize, body: '{}' });
    await body.dump();
    expect(statusCode).toBe(404);
  });
});

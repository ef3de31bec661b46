/** A wrapped engine behind the gateway: what it says and what it is sent pass byte for byte. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';

let stage: Stage;
beforeAll(async () => {
  stage = await openStage();
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

/** Members and spelling that only this engine has. */
const odd =
  '"own_member":{"usage":null,"n":1.0e2},"big":12345678901234567890,"text":"\\u00fc \\"usage\\":null"';

/** Sends a body as its text is, and tells what the engine got and what came back. */
async function ask(body: string, path = chatPath) {
  const answer = await stage.post(path, body);
  const seen = Buffer.from(answer.headers.get('x-seen') ?? '', 'base64').toString();
  return { answer, seen, text: await answer.text() };
}

const bodyFor = (answer: string | string[], more = ''): string =>
  `{ "model":"foreign","answer":${JSON.stringify(answer)},"unknown":{"a":[1.50, 1e400]},"seed":98765432109876543210${more} }`;

describe('answers', () => {
  it.each([chatPath, '/v1/completions', '/v1/embeddings', '/v1/responses'])('%s', async (path) => {
    const said = `{ "id":"x", ${odd},\n "choices":[], "usage":{"prompt_tokens":1,"completion_tokens":2,"own":3}}`;
    const body = bodyFor(said);
    const { answer, seen, text } = await ask(body, path);
    expect(text).toBe(said);
    expect(seen).toBe(body);
    expect(answer.headers.get('x-engine-own')).toBe('kept');
  });

  it('errors of 4xx too', async () => {
    const said =
      '{"error": {"message":"m","type":"own_type","param":null,"code":7,"own":true}, "detail":[1]}';
    const { answer, text } = await ask(bodyFor(said, ',"status":400'));
    expect([answer.status, text]).toEqual([400, said]);
  });
});

describe('streams', () => {
  const chunk = (more = '') =>
    `data: {"id":"c", ${odd},"choices":[{"index":0,"delta":{"content":"a"}}]${more}}\n\n`;
  const comment = ': keep-alive\n\n';
  const usage = `data: {"id":"c", ${odd},"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n`;
  const done = 'data: [DONE]\n\n';

  it('whose client asked for usage: every byte, in both directions', async () => {
    const parts = [comment, chunk(',"usage":null'), comment, chunk(',"usage": null , "z":1'), usage, done];
    const body = bodyFor(parts, ',"stream":true,"stream_options":{"include_usage":true,"own":1}');
    const { seen, text } = await ask(body);
    expect(text).toBe(parts.join(''));
    expect(seen).toBe(body);
  });

  it('whose client did not: usage is asked for, and nothing that comes of that reaches the client', async () => {
    const parts = [
      comment,
      chunk(',"usage":null'),
      chunk(',"usage": null , "z":1'),
      `data: {"usage":null,"id":"c",${odd},"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n`,
      chunk(',"finish_reason":"stop"'),
      usage,
      done,
    ];
    const body = bodyFor(parts, ',"stream":true');
    for (const path of [chatPath, '/v1/completions']) {
      const { seen, text } = await ask(body, path);
      expect(text).toBe(
        [
          comment,
          chunk(),
          chunk(' , "z":1'),
          `data: {"id":"c",${odd},"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n`,
          chunk(',"finish_reason":"stop"'),
          done,
        ].join(''),
      );
      expect(seen).toBe(body.replace(/ }$/, ' ,"stream_options":{"include_usage":true}}'));
    }
  });

  it('cut anywhere on their way', async () => {
    const whole = Buffer.from([chunk(',"usage":null'), chunk(), usage, done].join(''));
    const parts = Array.from({ length: Math.ceil(whole.length / 23) }, (_, index) =>
      whole.toString('latin1', index * 23, (index + 1) * 23),
    );
    const { text } = await ask(bodyFor(parts, ',"stream":true,"pause_ms":1'));
    expect(text).toBe([chunk(), chunk(), done].join(''));
  });

  it('of the responses API', async () => {
    const parts = [
      `event: response.created\ndata: {"type":"response.created","response":{"usage":null,${odd}}}\n\n`,
      'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":1,"output_tokens":1}}}\n\n',
    ];
    const body = bodyFor(parts, ',"stream":true');
    const { seen, text } = await ask(body, '/v1/responses');
    expect([seen, text]).toEqual([body, parts.join('')]);
  });
});

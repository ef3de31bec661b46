/** Answers that come whole and are given away half made: another replica completes them, or computes them anew. */
import { describe, expect, it } from 'vitest';
import { continuation, headers } from '../../../spec/wire.ts';
import { type Answer, chatAnswer, json, shareStage, type TestModel } from '../support.ts';

const shared = shareStage({ continue_ms: 20_000 });
const chat = { model: 'tiny', messages: [{ role: 'user' as const, content: 'hi' }], seed: 3 };
const path = '/v1/chat/completions';
const begun = {
  seed: 17,
  continue: {
    choices: [{ token_ids: [5, 6, 7] }],
    id: 'chatcmpl-1',
    created: 1_700_000_000,
    prompt_digest: 'abcdef0123456789',
    cached_tokens: 4,
  },
};

/** A native replica that is about to end, and says what it has. */
function givesAway(told: unknown): Answer {
  const error = { message: 'it ends', type: 'server_error', param: null, code: 'E_WORKER_DRAINING' };
  return json({ error: { ...error, [continuation.begun]: told } }, 503);
}

interface Asked {
  body: Record<string, unknown>;
  continues: boolean;
}

/** Notes what it is asked, and refuses what it is to go on with where `takes` is false. */
async function other(takes: boolean, model: TestModel = {}): Promise<Asked[]> {
  const asked: Asked[] = [];
  await shared.session(
    (request, response) => {
      const body = JSON.parse(request.body) as Record<string, unknown>;
      asked.push({ body, continues: request.headers[headers.continues] === '1' });
      const refuses = !takes && continuation.continue in body;
      const error = { message: 'another prompt', type: 'invalid_request_error', code: 'E_REQUEST_INVALID' };
      return json(refuses ? { error } : chatAnswer, refuses ? 400 : 200)(request, response);
    },
    { node: 'other', ...model },
  );
  return asked;
}

/** The one that gives it away is asked first: the other comes while it is. */
async function ask(
  told: unknown,
  next: () => Promise<Asked[]>,
  body: object = chat,
): Promise<{ answer: Response; asked: Asked[] }> {
  let asked: Asked[] = [];
  const away = givesAway(told);
  await shared.session(
    (request, response) =>
      void next().then((there) => {
        asked = there;
        away(request, response);
      }),
    { node: 'first', aliases: ['either'] },
  );
  const answer = await shared.stage.post(path, body);
  return { answer, asked };
}

async function begunOf(seed: number): Promise<Asked[]> {
  return (await ask({ ...begun, seed }, () => other(true))).asked;
}

describe('what a replica had of an answer', () => {
  it('goes to the next one with the request, under the seed that it had', async () => {
    const { answer, asked } = await ask(begun, () => other(true));
    expect([answer.status, await answer.json()]).toEqual([200, chatAnswer]);
    const told = { ...chat, seed: 17, [continuation.continue]: begun.continue };
    expect(asked).toEqual([{ body: told, continues: true }]);
    expect(shared.stage.logged.join('\n')).toContain('a replica completes the answer of another');
  });

  it('is nothing to another model of the alias that was asked for', async () => {
    const body = { ...chat, model: 'either' };
    const { asked } = await ask(begun, () => other(true, { name: 'large', aliases: ['either'] }), body);
    expect(asked).toEqual([{ body, continues: false }]);
  });

  // Those of 64 bits are told as JavaScript has them; read again, they are the same numbers.
  it.each([-1, 2 ** 60 + 2 ** 9, 2 ** 63, -(2 ** 63)])('has a seed such as %d', async (seed) => {
    const asked = await begunOf(seed);
    expect(asked.map(({ body, continues }) => [continues, body.seed])).toEqual([[true, seed]]);
  });

  it('is of no use to a stream, of which the client may have a part', async () => {
    const asked = await ask(begun, () => other(true), { ...chat, stream: true });
    expect(asked.asked.map(({ continues }) => continues)).toEqual([false]);
  });

  it('is left out where the next one does not complete it, which computes all of it', async () => {
    const { answer, asked } = await ask(begun, () => other(false));
    expect(answer.status).toBe(200);
    expect(asked.map(({ continues }) => continues)).toEqual([true, false]);
    expect(asked[1]!.body).toEqual(chat);
  });

  it.each<[string, TestModel]>([
    ['another precision', { precision: 'Q4_0' }],
    ['another engine', { engine: 'vllm' }],
  ])('is nothing to a replica of %s', async (_what, model) => {
    const { answer, asked } = await ask(begun, () => other(true, model));
    expect(answer.status).toBe(200);
    expect(asked).toEqual([{ body: chat, continues: false }]);
  });

  it.each([
    ['no object', 'much'],
    ['members that nobody asked for', { ...begun, messages: [] }],
    ['tokens that are none', { ...begun, continue: { ...begun.continue, choices: [{ token_ids: ['x'] }] } }],
    ['a name that would end the request', { ...begun, continue: { ...begun.continue, id: '"},{' } }],
  ])('counts as not said where it is %s', async (_what, told) => {
    const { answer, asked } = await ask(told, () => other(true));
    expect(answer.status).toBe(200);
    expect(asked).toEqual([{ body: chat, continues: false }]);
  });

  it('is not told to the client', async () => {
    await shared.session(givesAway(begun), { node: 'alone' });
    const answer = await shared.stage.post(path, chat, { 'x-stainless-timeout': '1' });
    const text = await answer.text();
    expect(answer.status).toBe(503);
    expect(text).toContain('E_WORKER_DRAINING');
    expect(text).not.toContain('hpcserve_');
  });
});

/**
 * Streams of vLLM that lose their replica and go on token for token. The engines speak vLLM's protocol as it was
 * recorded; half of what their model says is no UTF-8, and each position is one at which a replica is lost.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { agentPaths, headers } from '../../spec/wire.ts';
import {
  decode,
  drawnModel,
  encode,
  letterModel,
  scriptedModel,
  type VllmOptions,
  VllmProtocol,
} from '../agent/adapters/vllm-protocol.mjs';
import { type Answer, type Stage, startStage, type TestSession, until } from '../gateway/support.ts';
import { type WholeStream, wholeStream } from './support.ts';

const chatPath = '/v1/chat/completions';
const textPath = '/v1/completions';
const tokens = 60;
const chat = {
  model: 'tiny',
  messages: [{ role: 'user', content: 'hi' }],
  max_tokens: tokens,
  temperature: 0,
};
const text = { model: 'tiny', prompt: 'once ', max_tokens: tokens, temperature: 0 };
const withUsage = { stream: true, stream_options: { include_usage: true } };
/** Chunks of one to three tokens, as an engine sends them that is behind. */
const uneven = (made: number): number => 1 + ((made * 7) % 3);

let stage: Stage;
let sessions: TestSession[] = [];
/** Where the next answer loses its replica; each is lost once. */
let loss: { tokens: number; choice: number } | undefined;
/** What the engines were asked, beside being asked how tokens are spelled. */
let asked: { path: string; body: Record<string, unknown>; isRest: boolean }[] = [];

beforeAll(async () => {
  stage = await startStage({ continue_ms: 600 });
});
afterAll(() => stage.close());
afterEach(async () => {
  for (const session of sessions) await session.stop();
  const table = async () =>
    (await (await stage.admin('/hpcserve/v1/table')).json()) as { sessions: unknown[] };
  await until(async () => (await table()).sessions.length === 0, 'the sessions to be gone');
  sessions = [];
  loss = undefined;
});

async function engines(options: VllmOptions, model: { context_tokens?: number } = {}): Promise<void> {
  const protocol = new VllmProtocol({
    chunk_tokens: uneven,
    ...options,
    loses: (made, choice) => {
      if (!loss || made < loss.tokens || choice !== loss.choice) return false;
      loss = undefined;
      return true;
    },
  });
  const answer: Answer = (seen, response) => {
    const spells = seen.path === agentPaths.detokenize;
    const isRest = seen.headers[headers.continues] === '1';
    if (!spells) asked.push({ path: seen.path, body: JSON.parse(seen.body), isRest });
    return protocol.answer({ path: spells ? '/detokenize' : seen.path, body: seen.body }, response);
  };
  for (const node of ['a', 'b'])
    sessions.push(await stage.session(answer, { node, engine: 'vllm', ...model }));
}

/** @param lost where its replica is lost; absent: it is not */
async function read(path: string, body: object, lost?: typeof loss): Promise<WholeStream> {
  asked = [];
  loss = lost;
  const whole = wholeStream(await (await stage.post(path, { ...withUsage, ...body })).text());
  expect(loss, 'the replica was to be lost').toBeUndefined();
  return whole;
}

/** Positions of a loss, one answer each. */
const positions = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1);

async function compareAtEach(path: string, body: object, count: number, choice = 0): Promise<WholeStream> {
  const undisturbed = await read(path, body);
  expect(undisturbed.ending).toBeDefined();
  for (const position of positions(count)) {
    const disturbed = await read(path, body, { tokens: position, choice });
    expect(disturbed, `lost at token ${position}`).toEqual(undisturbed);
    expect(asked.length, `requests at token ${position}`).toBeGreaterThan(1);
  }
  return undisturbed;
}

describe('a stream of bytes that are often no characters, lost at each of 50 tokens', () => {
  it.each([
    ['a chat', chatPath, chat],
    ['a completion', textPath, text],
  ])(
    '%s says the same as undisturbed',
    async (_, path, body) => {
      await engines({});
      const undisturbed = await compareAtEach(path, body, 50);
      expect(undisturbed.choices[0]!.text).toContain('\ufffd');
      expect(undisturbed.choices[0]!.finish_reason).toBe('length');
      expect(undisturbed.usage).toMatchObject({ completion_tokens: tokens });
      // It did go on by ids, with exactly what was left.
      const { body: rest } = asked.at(-1)!;
      expect(asked.at(-1)!.path).toBe(textPath);
      // Agents do not refuse it for what they promised to others.
      expect([asked[0]!.isRest, asked.at(-1)!.isRest]).toEqual([false, true]);
      const prompt = rest.prompt as number[];
      const begin = path === chatPath ? 'user: hi\nassistant: ' : 'once ';
      expect(decode(prompt.slice(0, begin.length))).toBe(begin);
      expect(rest.max_tokens).toBe(tokens - (prompt.length - begin.length));
    },
    120_000,
  );

  it('a chat and a completion of several choices have all of each', async () => {
    await engines({});
    // vLLM has several choices only of sampled answers: these are, of one token each.
    const several = { n: 2, max_tokens: 20, temperature: 1, top_k: 1 };
    const prompts = { ...text, ...several, prompt: ['once ', 'twice '] };
    for (const choice of [0, 1]) {
      await compareAtEach(chatPath, { ...chat, ...several }, 18, choice);
      await compareAtEach(textPath, prompts, 9, choice);
    }
  }, 120_000);

  it('one whose prompt is token ids, and one of unequal prompts', async () => {
    await engines({});
    await compareAtEach(textPath, { ...text, prompt: encode('once '), max_tokens: 12 }, 10);
    await compareAtEach(textPath, { ...text, prompt: ['a', 'longer one '], max_tokens: 12 }, 10, 1);
  }, 60_000);

  it('one without a limit ends where its context does', async () => {
    await engines({ context_tokens: 70 }, { context_tokens: 70 });
    const { max_tokens: _, ...unlimited } = chat;
    const undisturbed = await compareAtEach(chatPath, unlimited, 20);
    expect(undisturbed.usage).toMatchObject({ total_tokens: 70 });
  }, 60_000);
});

describe('a stream that goes on token for token', () => {
  it('does not tell a client ids that it did not ask for, and all of them where it did', async () => {
    await engines({ model: letterModel });
    const silent = await read(chatPath, chat, { tokens: 20, choice: 0 });
    expect(silent.choices[0]!.ids).toEqual([]);
    for (const [path, body] of [
      [chatPath, chat],
      [textPath, text],
    ] as const) {
      const told = await compareAtEach(path, { ...body, return_token_ids: true }, 10);
      expect(decode(told.choices[0]!.ids)).toBe(told.choices[0]!.text);
    }
  }, 60_000);

  it('ends at a stop string that began before it moved', async () => {
    await engines({ model: letterModel });
    for (const [path, body] of [
      [chatPath, chat],
      [textPath, text],
    ] as const) {
      const whole = (await read(path, body)).choices[0]!.text;
      const stop = ['never there', whole.slice(20, 25)];
      for (const position of positions(24)) {
        const cut = await read(path, { ...body, stop }, { tokens: position, choice: 0 });
        const said = { text: whole.slice(0, 20), finish_reason: 'stop' };
        expect(cut.choices[0], `lost at token ${position}`).toMatchObject(said);
        expect(cut.ending).toBeDefined();
      }
    }
  }, 120_000);

  it('has log probabilities of each token once', async () => {
    await engines({ model: letterModel });
    for (const [path, body] of [
      [chatPath, { ...chat, logprobs: true }],
      [textPath, { ...text, logprobs: 0 }],
    ] as const) {
      const whole = await compareAtEach(path, body, 10);
      expect(whole.choices[0]!.logprobs).toHaveLength(tokens);
    }
  }, 60_000);

  it('keeps reasoning and answer apart, wherever it is lost', async () => {
    const said = '<think>\nzwölf ✓ or 13</think>\n\nTwelve 😀.';
    await engines({ model: scriptedModel({ hi: said }), parsers: { reasoning: true } });
    const whole = await compareAtEach(chatPath, chat, encode(said).length - 3);
    expect(whole.choices[0]).toMatchObject({
      reasoning: '\nzwölf ✓ or 13',
      text: '\n\nTwelve 😀.',
      finish_reason: 'stop',
    });
  }, 60_000);
});

describe('a stream whose text its engine reads tool calls out of', () => {
  const said = 'I look. <tool_call>weather({"city":"Zürich"})</tool_call>';
  const tools = [{ type: 'function', function: { name: 'weather' } }];

  it('is computed again where it is greedy, and the client has each call once', async () => {
    await engines({ model: scriptedModel({ hi: said }), parsers: { tools: true } });
    const whole = await compareAtEach(chatPath, { ...chat, tools }, encode(said).length - 3);
    expect(whole.choices[0]).toMatchObject({
      text: 'I look. ',
      calls: ['+weather{"city":"Zürich"}'],
      finish_reason: 'tool_calls',
    });
  }, 60_000);

  it('goes on behind its text where it is not, and no call has begun', async () => {
    await engines({ model: scriptedModel({ hi: said }), parsers: { tools: true } });
    const body = { ...chat, tools, temperature: 1 };
    const undisturbed = await read(chatPath, body);
    const disturbed = await read(chatPath, body, { tokens: 4, choice: 0 });
    expect(disturbed.choices).toEqual(undisturbed.choices);
    expect(asked.at(-1)!.body.continue_final_message).toBe(true);
  });

  it('ends with an error where it is not, and one has', async () => {
    await engines({ model: scriptedModel({ hi: said }), parsers: { tools: true } });
    const broken = await read(chatPath, { ...chat, tools, temperature: 1 }, { tokens: 35, choice: 0 });
    expect(broken.ending).toBeUndefined();
    expect(broken.error).toContain('reads tool calls out of its text');
  });

  it('the same goes for grammars', async () => {
    await engines({ model: letterModel });
    const body = { ...chat, response_format: { type: 'json_object' }, max_tokens: 12 };
    await compareAtEach(chatPath, body, 9);
    const broken = await read(chatPath, { ...body, temperature: 1 }, { tokens: 5, choice: 0 });
    expect(broken.error).toContain('grammar');
  });
});

describe('a stream that is drawn by a seed', () => {
  const drawn = { temperature: 1, seed: 7, max_tokens: 24 };

  it('is computed again, and has the same draws wherever it is lost', async () => {
    await engines({ model: drawnModel });
    for (const [path, body] of [
      [chatPath, { ...chat, ...drawn }],
      [textPath, { ...text, ...drawn, n: 2, presence_penalty: 1 }],
    ] as const) {
      const whole = await compareAtEach(path, body, 8);
      expect(asked.map((request) => request.path)).toEqual([path, path]);
      expect((await read(path, { ...body, seed: 8 })).choices).not.toEqual(whole.choices);
    }
  }, 60_000);

  it('goes on behind its tokens where its engine heeds no seed', async () => {
    await engines({ model: drawnModel, heeds_seed: false });
    const broken = await read(chatPath, { ...chat, ...drawn }, { tokens: 12, choice: 0 });
    expect(asked.map((request) => request.path)).toEqual([chatPath, chatPath, textPath]);
    expect(asked.at(-1)!.body.max_tokens).toBeLessThanOrEqual(12);
    expect(broken.choices[0]).toMatchObject({ finish_reason: 'length' });
    expect(broken.choices[0]!.text).toHaveLength(24);
    expect(broken.usage).toMatchObject({ completion_tokens: 24 });
    expect(broken.ending).toBeDefined();
  });

  it('goes on behind its tokens where it is greedy: nothing was drawn', async () => {
    await engines({ model: letterModel });
    await compareAtEach(chatPath, { ...chat, seed: 7, max_tokens: 12 }, 9);
    expect(asked.at(-1)!.path).toBe(textPath);
  });
});

describe('a stream of an engine that gives no ids', () => {
  it.each([
    ['a chat', chatPath, chat],
    ['a completion', textPath, text],
  ])(
    '%s goes on behind its text, and has no more tokens than were asked for',
    async (_, path, body) => {
      await engines({ model: letterModel, gives_ids: false });
      const undisturbed = await compareAtEach(path, body, 50);
      expect(undisturbed.choices[0]!.text).toHaveLength(tokens);
      expect(undisturbed.usage).toMatchObject({ completion_tokens: tokens });
    },
    60_000,
  );

  it('does not go on behind bytes that are no characters', async () => {
    await engines({ gives_ids: false });
    const broken = await read(textPath, text, { tokens: 30, choice: 0 });
    expect(broken.error).toContain('bytes that are no characters');
  });
});

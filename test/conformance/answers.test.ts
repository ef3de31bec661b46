/** Models, chat completions, completions and embeddings as the official client asks for them, field by field. */
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import * as shapes from './shapes.ts';
import { context_tokens, openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';
const messages = [{ role: 'user' as const, content: 'Tell me a story.' }];
const chat = { model: 'tiny', messages, max_completion_tokens: 12, seed: 7 };

let stage: Stage;
let client: OpenAI;
beforeAll(async () => {
  stage = await openStage();
  client = stage.client;
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

type ChatBody = Partial<OpenAI.ChatCompletionCreateParamsNonStreaming>;
const ask = async (more: ChatBody) => client.chat.completions.create({ ...chat, ...more, stream: false });
const textOf = async (more: ChatBody) => (await ask(more)).choices[0]!.message.content!;

describe('models', () => {
  it('are listed under their names and aliases, and can be asked for one by one', async () => {
    const listed = shapes.modelList.parse(await (await stage.fetch('/v1/models')).json());
    expect(listed.data.map(({ id }) => id).sort()).toEqual([
      'foreign',
      'gpt-tiny',
      'org/thinker',
      'tiny',
      'tools',
    ]);
    for await (const { id } of client.models.list()) {
      const one = shapes.model.parse(await client.models.retrieve(id));
      expect(listed.data).toContainEqual(one);
    }
    expect(listed.data.find(({ id }) => id === 'gpt-tiny')).toMatchObject({
      root: 'tiny',
      max_model_len: context_tokens,
    });
    await expect(client.models.retrieve('tini')).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });
});

describe('chat completions', () => {
  it('have every member of the published description, and none beside them', async () => {
    const answer = await (await stage.post(chatPath, chat)).json();
    const parsed = shapes.chatCompletion.parse(answer);
    expect(parsed).toMatchObject({ model: 'tiny', usage: { completion_tokens: 12 } });
    expect(parsed.usage.total_tokens).toBe(parsed.usage.prompt_tokens + 12);
    expect(parsed.choices).toHaveLength(1);
    expect(parsed.choices[0]).toMatchObject({ index: 0, logprobs: null, finish_reason: 'length' });
    expect(Math.abs(parsed.created - Date.now() / 1000)).toBeLessThan(30);
  });

  it('the same seed gives the same answer, another one another; an alias is the model', async () => {
    const first = await textOf({});
    expect(await textOf({})).toBe(first);
    expect(await textOf({ seed: 8 })).not.toBe(first);
    expect(await textOf({ model: 'gpt-tiny' })).toBe(first);
  });

  it('max_tokens is the older name of max_completion_tokens', async () => {
    const older = await client.chat.completions.create({ model: 'tiny', messages, max_tokens: 5, seed: 7 });
    expect(older.usage!.completion_tokens).toBe(5);
    expect((await textOf({})).startsWith(older.choices[0]!.message.content!)).toBe(true);
  });

  it('n answers differ, and the prompt counts once', async () => {
    const one = await ask({});
    const three = shapes.chatCompletion.parse(await ask({ n: 3 }));
    expect(three.choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(new Set(three.choices.map(({ message }) => message.content)).size).toBe(3);
    expect(three.usage.prompt_tokens).toBe(one.usage!.prompt_tokens);
    expect(three.usage.completion_tokens).toBe(36);
  });

  it('end before a stop string, wherever tokens cut it', async () => {
    const whole = await textOf({});
    const stop = whole.slice(8, 11);
    const stopped = (await ask({ stop: [stop] })).choices[0]!;
    expect(stopped.finish_reason).toBe('stop');
    expect(stopped.message.content).toBe(whole.slice(0, whole.indexOf(stop)));
    expect(await textOf({ stop })).toBe(stopped.message.content);
    expect(await textOf({ stop: null })).toBe(whole);
  });

  it('logprobs: of each token, with as many alternatives as asked for', async () => {
    const answer = shapes.chatCompletion.parse(await ask({ logprobs: true, top_logprobs: 3 }));
    const { content } = answer.choices[0]!.logprobs!;
    expect(content).toHaveLength(12);
    for (const { logprob, top_logprobs } of content!) {
      expect(logprob).toBeLessThanOrEqual(0);
      expect(top_logprobs).toHaveLength(3);
      expect(top_logprobs[0]!.logprob).toBeGreaterThanOrEqual(top_logprobs[1]!.logprob);
    }
    const bytes = Buffer.from(content!.flatMap(({ bytes: part }) => part!));
    expect(bytes.toString()).toBe(answer.choices[0]!.message.content);
    const none = shapes.chatCompletion.parse(await ask({ logprobs: true }));
    expect(none.choices[0]!.logprobs!.content![0]!.top_logprobs).toEqual([]);
  });

  it('a bias of 100 makes a token certain, one of −100 keeps it out', async () => {
    const tokens = async (logit_bias: Record<string, number>) => {
      const { choices } = await ask({ logit_bias, temperature: 1, logprobs: true });
      return new Set(choices[0]!.logprobs!.content!.map(({ token }) => token));
    };
    const [first, ...others] = await tokens({ '65': 100 });
    expect(others).toEqual([]);
    const [second, ...more] = await tokens({ '65': -100, '66': 100 });
    expect(more).toEqual([]);
    expect(second).not.toBe(first);
  });

  it('penalties keep a token from coming again and again', async () => {
    const repeat = { temperature: 0, logit_bias: { '65': 10 }, max_completion_tokens: 24 };
    const plain = await textOf(repeat);
    for (const penalty of ['presence_penalty', 'frequency_penalty'] as const) {
      const varied = await textOf({ ...repeat, [penalty]: 2 });
      expect(varied).not.toBe(plain);
    }
  });

  it('response_format json_object and json_schema: what comes is valid, and the helper parses it', async () => {
    // A model of random weights goes on inside a string for as long as the CPU's last bits have it: what ends things is
    // likelier.
    const logit_bias = stage.favouring('"}],');
    const whole = { logit_bias, max_completion_tokens: 300 };
    const object = await textOf({ ...whole, response_format: { type: 'json_object' } });
    expect(typeof JSON.parse(object)).toBe('object');
    // Without the format it is no JSON.
    const text = await textOf(whole);
    expect(() => JSON.parse(text)).toThrow();
    const schema = z.object({ name: z.enum(['ann', 'bob']), ages: z.array(z.int()).min(1).max(3) });
    const parsed = await client.chat.completions.parse({
      ...chat,
      ...whole,
      response_format: zodResponseFormat(schema, 'person'),
    });
    expect(schema.safeParse(parsed.choices[0]!.message.parsed).success).toBe(true);
  });

  it('parameters that change nothing here are taken: user, metadata, store and their like', async () => {
    const with_them = await textOf({
      user: 'someone',
      metadata: { project: 'x' },
      store: false,
      service_tier: 'auto',
      prompt_cache_key: 'k',
      safety_identifier: 's',
      temperature: null,
      top_p: null,
      stop: null,
    });
    expect(with_them).toBe(await textOf({}));
  });
});

describe('streamed chat completions', () => {
  const join = (chunks: z.infer<typeof shapes.chatChunk>[], index = 0) =>
    chunks
      .map(({ choices: [choice] }) => (choice!.index === index ? (choice!.delta.content ?? '') : ''))
      .join('');

  it('without include_usage no chunk has usage, nor anything else that was not asked for', async () => {
    const { events, text } = await stage.events(chatPath, chat);
    const chunks = events.map((event) => shapes.chatChunk.parse(event));
    expect(text).not.toContain('usage');
    expect(text).not.toContain('hpcserve');
    expect(join(chunks)).toBe(await textOf({}));
    expect(chunks[0]!.choices[0]!.delta).toEqual({ role: 'assistant', content: '' });
    expect(chunks.filter(({ choices: [choice] }) => choice!.delta.role).length).toBe(1);
    expect(chunks.map(({ choices: [choice] }) => choice!.finish_reason).filter(Boolean)).toEqual(['length']);
    expect(chunks.at(-1)!.choices[0]!.finish_reason).toBe('length');
    expect(new Set(chunks.map(({ id, created }) => `${id} ${created}`)).size).toBe(1);
    const explicit = await stage.events(chatPath, { ...chat, stream_options: { include_usage: false } });
    expect(explicit.text).not.toContain('usage');
  });

  it('with include_usage it is null in every chunk, and in one more without choices', async () => {
    const { events } = await stage.events(chatPath, { ...chat, stream_options: { include_usage: true } });
    const last = shapes.chatUsageChunk.parse(events.pop());
    const chunks = events.map((event) => shapes.chatChunkBeforeUsage.parse(event));
    expect(join(chunks)).toBe(await textOf({}));
    expect(last.usage).toEqual((await ask({})).usage);
  });

  it('logprobs and n: of every choice all of it, as the whole answer has it', async () => {
    const more = { n: 2, logprobs: true, top_logprobs: 2, stop: ['qq'] };
    const whole = await ask(more);
    const { events } = await stage.events(chatPath, { ...chat, ...more });
    const chunks = events.map((event) => shapes.chatChunk.parse(event));
    for (const index of [0, 1]) {
      const of = chunks.filter(({ choices: [choice] }) => choice!.index === index);
      expect(join(of, index)).toBe(whole.choices[index]!.message.content);
      expect(of.flatMap(({ choices: [choice] }) => choice!.logprobs?.content ?? [])).toEqual(
        whole.choices[index]!.logprobs!.content,
      );
    }
  });

  it('the helper of the client puts them together', async () => {
    const runner = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
    const final = await runner.finalChatCompletion();
    expect(final.choices[0]!.message.content).toBe(await textOf({}));
    expect(final.usage!.completion_tokens).toBe(12);
  });
});

describe('tools', () => {
  const weather = {
    type: 'function' as const,
    function: {
      name: 'weather',
      description: 'Weather of a city',
      parameters: {
        type: 'object',
        properties: { city: { enum: ['Bern', 'Oslo'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
        required: ['city', 'days'],
        additionalProperties: false,
      },
    },
  };
  const clock = {
    type: 'function' as const,
    function: { name: 'clock', parameters: { type: 'object', properties: {} } },
  };
  const body = { ...chat, model: 'tools', max_completion_tokens: 200, tools: [weather, clock] };

  it('required: at least one call that is valid', async () => {
    const answer = shapes.chatCompletion.parse(await ask({ ...body, tool_choice: 'required' }));
    const [choice] = answer.choices;
    expect(choice!.finish_reason).toBe('tool_calls');
    expect(choice!.message.content).toBeNull();
    for (const call of choice!.message.tool_calls!) {
      expect(['weather', 'clock']).toContain(call.function.name);
      expect(typeof JSON.parse(call.function.arguments)).toBe('object');
    }
  });

  it('named: that function, once', async () => {
    const tool_choice = { type: 'function' as const, function: { name: 'weather' } };
    const answer = shapes.chatCompletion.parse(await ask({ ...body, tool_choice }));
    const calls = answer.choices[0]!.message.tool_calls!;
    expect(calls.map((call) => call.function.name)).toEqual(['weather']);
    const { city, days } = JSON.parse(calls[0]!.function.arguments);
    expect(['Bern', 'Oslo']).toContain(city);
    expect(days).toBeGreaterThanOrEqual(1);
  });

  it('allowed: some of the functions, whether or not one must be called', async () => {
    const choose = (mode: 'auto' | 'required') => ({
      type: 'allowed_tools' as const,
      allowed_tools: { mode, tools: [{ type: 'function', function: { name: 'clock' } }] },
    });
    for (const seed of [1, 2, 3, 4]) {
      const answer = await ask({ ...body, seed, tool_choice: choose('required') });
      for (const call of shapes.chatCompletion.parse(answer).choices[0]!.message.tool_calls!)
        expect(call.function.name).toBe('clock');
    }
    const prompt_tokens = async (more: ChatBody) =>
      (await ask({ ...body, max_completion_tokens: 1, ...more })).usage!.prompt_tokens;
    // A call that must be made is bound to what is allowed; an answer that may be text is told of nothing else.
    expect(await prompt_tokens({ tool_choice: choose('required') })).toBe(await prompt_tokens({}));
    expect(await prompt_tokens({ tool_choice: choose('auto') })).toBe(
      await prompt_tokens({ tools: [clock] }),
    );
    const other = [{ type: 'function', function: { name: 'other' } }];
    for (const [param, allowed_tools] of [
      ['tool_choice.allowed_tools.tools.0.function.name', { mode: 'auto', tools: other }],
      ['tool_choice.allowed_tools.tools', { mode: 'required', tools: [] }],
      ['tool_choice.allowed_tools.mode', { tools: [] }],
      ['tool_choice.allowed_tools', undefined],
    ]) {
      const tool_choice = { type: 'allowed_tools', allowed_tools };
      const response = await stage.post(chatPath, { ...body, tool_choice });
      const { error } = (await response.json()) as { error: { param: string } };
      expect([response.status, error.param]).toEqual([400, param]);
    }
  });

  it('streamed: the name once, arguments in pieces, calls told apart by index', async () => {
    const more = { ...body, tool_choice: 'required' as const };
    const whole = await ask(more);
    const { events } = await stage.events(chatPath, more);
    const deltas = events.flatMap(
      (event) => shapes.chatChunk.parse(event).choices[0]!.delta.tool_calls ?? [],
    );
    const calls = whole.choices[0]!.message.tool_calls!;
    for (const [index, call] of calls.entries()) {
      const parts = deltas.filter((part) => part.index === index);
      expect(parts.map((part) => part.function.name).filter(Boolean)).toHaveLength(1);
      expect(parts.map(({ id }) => id).filter(Boolean)).toHaveLength(1);
      expect(parts.map((part) => part.function.arguments).join('')).toBe(
        call.type === 'function' ? call.function.arguments : '',
      );
    }
    expect(deltas.every(({ index }) => index < calls.length)).toBe(true);
    const final = await client.chat.completions.stream(more).finalChatCompletion();
    expect(final.choices[0]!.finish_reason).toBe('tool_calls');
  });

  it('auto answers in text unless the model calls; none offers no tool at all', async () => {
    const auto = shapes.chatCompletion.parse(await ask({ ...body, max_completion_tokens: 12 }));
    expect(auto.choices[0]!.message.tool_calls).toBeUndefined();
    expect(auto.choices[0]!.message.content).not.toBe('');
    const none = await ask({ ...body, tool_choice: 'none', max_completion_tokens: 12 });
    const plain = await ask({ ...chat, model: 'tools', max_completion_tokens: 12 });
    expect(none.usage!.prompt_tokens).toBe(plain.usage!.prompt_tokens);
    expect(auto.usage!.prompt_tokens).toBeGreaterThan(plain.usage!.prompt_tokens);
  });

  it('results of calls go back as messages', async () => {
    const answer = await ask({
      ...body,
      max_completion_tokens: 8,
      messages: [
        ...messages,
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'clock', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: 'call_1', content: '12:00' },
      ],
    });
    expect(answer.usage!.completion_tokens).toBe(8);
  });
});

describe('completions', () => {
  const body = { model: 'tiny', prompt: 'Once upon a time', max_tokens: 10, seed: 3 };

  it('whole and streamed, with every member and no other', async () => {
    // Asked before, so that as much of the prompt is known to all that follow.
    await stage.post('/v1/completions', body);
    const whole = shapes.completion.parse(await (await stage.post('/v1/completions', body)).json());
    const { events, text } = await stage.events('/v1/completions', body);
    const chunks = events.map((event) => shapes.completionChunk.parse(event));
    expect(chunks.map(({ choices: [choice] }) => choice!.text).join('')).toBe(whole.choices[0]!.text);
    expect(text).not.toContain('usage');
    const counted = await stage.events('/v1/completions', {
      ...body,
      stream_options: { include_usage: true },
    });
    expect(shapes.completionUsageChunk.parse(counted.events.at(-1)).usage).toEqual(whole.usage);
  });

  it('echo puts the prompt before the answer; 16 tokens where nothing is said', async () => {
    const plain = await client.completions.create(body);
    const echoed = await client.completions.create({ ...body, echo: true });
    expect(echoed.choices[0]!.text).toBe(body.prompt + plain.choices[0]!.text);
    const { max_tokens: _, ...unlimited } = body;
    expect((await client.completions.create(unlimited)).usage!.completion_tokens).toBe(16);
  });

  it('several prompts, as texts and as tokens; logprobs with offsets', async () => {
    const two = await client.completions.create({ ...body, prompt: ['one', 'two'], n: 2 });
    expect(two.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    const tokens = await client.completions.create({ ...body, prompt: [[72, 73], [74]] });
    expect(tokens.usage!.prompt_tokens).toBe(3);
    const described = shapes.completion.parse(await client.completions.create({ ...body, logprobs: 2 }));
    const { tokens: texts, token_logprobs, text_offset } = described.choices[0]!.logprobs!;
    expect(texts.join('')).toBe(described.choices[0]!.text);
    expect(token_logprobs).toHaveLength(10);
    expect(text_offset[0]).toBe(0);
  });
});

describe('embeddings', () => {
  it('are the same as floats, as base64 and as the client reads them', async () => {
    const body = { model: 'tiny', input: ['one', 'two'] };
    const floats = shapes.embeddings.parse(
      await (await stage.post('/v1/embeddings', { ...body, encoding_format: 'float' })).json(),
    );
    const base64 = shapes.embeddings.parse(
      await (await stage.post('/v1/embeddings', { ...body, encoding_format: 'base64' })).json(),
    );
    const read = await client.embeddings.create(body); // asks for base64, and decodes it
    for (const [index, { embedding }] of floats.data.entries()) {
      const bytes = Buffer.from(base64.data[index]!.embedding as string, 'base64');
      const decoded = Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readFloatLE(4 * at));
      expect(decoded).toEqual((embedding as number[]).map(Math.fround));
      expect(read.data[index]!.embedding).toEqual(decoded);
    }
    expect(floats.usage.total_tokens).toBe(floats.usage.prompt_tokens);
  });

  it('of token ids, one list or several; of the only size there is', async () => {
    const one = await client.embeddings.create({ model: 'tiny', input: [72, 73, 74] });
    const several = await client.embeddings.create({ model: 'tiny', input: [[72, 73, 74], [75]] });
    expect(several.data[0]!.embedding).toEqual(one.data[0]!.embedding);
    expect(several.usage.prompt_tokens).toBe(4);
    const dimensions = one.data[0]!.embedding.length;
    const same = await client.embeddings.create({ model: 'tiny', input: [72, 73, 74], dimensions });
    expect(same.data[0]!.embedding).toEqual(one.data[0]!.embedding);
    await expect(
      client.embeddings.create({ model: 'tiny', input: 'x', dimensions: dimensions - 1 }),
    ).rejects.toMatchObject({ status: 400, param: 'dimensions' });
  });
});

describe('tokens, as vLLM tells them', () => {
  type Told = { count: number; tokens: number[]; token_strs: string[] | null; max_model_len: number };
  const told = async (path: string, body: object): Promise<{ status: number; answer: Told & Refused }> => {
    const answer = await stage.post(path, body);
    return { status: answer.status, answer: (await answer.json()) as Told & Refused };
  };
  type Refused = { prompt: string; error: { message: string } };

  it('of a text are those that a completion counts, and spell it again', async () => {
    const prompt = 'Ships float, don’t they?';
    const { answer } = await told('/tokenize', { model: 'tiny', prompt, return_token_strs: true });
    const completion = await client.completions.create({ model: 'tiny', prompt, max_tokens: 1 });
    expect(answer.count).toBe(completion.usage!.prompt_tokens);
    expect(answer.tokens).toHaveLength(answer.count);
    expect(answer.token_strs).toHaveLength(answer.count);
    expect(answer.max_model_len).toBe(context_tokens);
    const bare = await told('/tokenize', { model: 'tiny', prompt, add_special_tokens: false });
    expect(bare.answer.tokens).toEqual(answer.tokens.slice(1));
    const { answer: text } = await told('/detokenize', { model: 'tiny', tokens: bare.answer.tokens });
    expect(text).toEqual({ prompt });
  });

  it('of a chat are those that its answer counts', async () => {
    const messages = [{ role: 'user' as const, content: 'Why?' }];
    const { answer } = await told('/tokenize', { model: 'tools', messages });
    const chat = await client.chat.completions.create({ model: 'tools', messages, max_tokens: 1 });
    expect(answer.count).toBe(chat.usage!.prompt_tokens);
  });

  it('are refused by name where the engine does not tell them', async () => {
    const { status, answer } = await told('/tokenize', { model: 'foreign', prompt: 'x' });
    expect(status).toBe(400);
    expect(answer.error.message).toMatch(/\/tokenize is not supported.*use the tokenizer of the model/);
  });
});

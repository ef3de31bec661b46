import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { test_device } from '../engine/test-backend.ts';
import { tinyModel, WorkerHarness } from './support.ts';

const worker = new WorkerHarness();
const { client } = worker;
const messages = [{ role: 'user' as const, content: 'Tell me something about clusters.' }];

beforeAll(async () => {
  const qwen = await tinyModel(worker.folder, 'tiny-qwen3');
  const llama = await tinyModel(worker.folder, 'tiny-llama');
  await worker.configure();
  // The same seed gives the same answer, whatever of the prompt is in the cache, in this mode.
  await worker.load({ name: 'qwen', aliases: ['default'], model_path: qwen, batch_invariant: true });
  await worker.load({ name: 'llama', model_path: llama });
});
afterAll(() => worker.close());

describe('chat completions, asked with the official client', () => {
  it('streams a role, text, one finish reason and usage', async () => {
    const stream = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 24,
      seed: 5,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    expect(chunks[0]!.choices[0]!.delta).toEqual({ role: 'assistant', content: '' });
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
    expect(text.length).toBeGreaterThan(0);
    expect(
      chunks.flatMap(({ choices }) => choices.map(({ finish_reason }) => finish_reason)).filter(Boolean),
    ).toHaveLength(1);
    const last = chunks.at(-1)!;
    expect(last.choices).toEqual([]);
    expect(last.usage!.total_tokens).toBe(last.usage!.prompt_tokens + last.usage!.completion_tokens);
    for (const chunk of chunks.slice(0, -1)) expect(chunk.usage).toBeNull();
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);

    const whole = await client.chat.completions.create({
      model: 'default',
      messages,
      max_tokens: 24,
      seed: 5,
    });
    expect(whole.choices[0]!.message.content).toBe(text);
    expect(whole.usage!.completion_tokens).toBe(last.usage!.completion_tokens);
    expect(whole.model).toBe('qwen');
  });

  it('says in every chunk what was used until then, where it is asked for as vLLM is', async () => {
    const stream = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 12,
      seed: 5,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true } as { include_usage: boolean },
    });
    const usage = [];
    for await (const chunk of stream) usage.push(chunk.usage!);
    const counts = usage.map(({ completion_tokens }) => completion_tokens);
    expect(counts).toEqual([...counts].sort((a, b) => a - b));
    expect(counts.at(-1)).toBeLessThanOrEqual(12);
    expect(new Set(counts).size).toBeGreaterThan(1);
    expect(new Set(usage.map(({ prompt_tokens }) => prompt_tokens)).size).toBe(1);
  });

  it('n answers differ, and usage counts the prompt once', async () => {
    const one = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 12,
      seed: 1,
      logit_bias: {},
    });
    const three = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 12,
      seed: 1,
      n: 3,
    });
    expect(three.choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(new Set(three.choices.map(({ message }) => message.content)).size).toBe(3);
    expect(three.usage!.prompt_tokens).toBe(one.usage!.prompt_tokens);
    expect(three.usage!.completion_tokens).toBeGreaterThan(one.usage!.completion_tokens);
  });

  it('logprobs: probabilities of the chosen and the best tokens, bytes that join to the text', async () => {
    const { choices } = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 10,
      temperature: 0,
      logprobs: true,
      top_logprobs: 3,
    });
    const content = choices[0]!.logprobs!.content!;
    expect(content.length).toBeGreaterThan(0);
    for (const entry of content) {
      expect(entry.top_logprobs).toHaveLength(3);
      expect(entry.top_logprobs[0]!.logprob).toBeCloseTo(entry.logprob, 6);
      expect(entry.logprob).toBeLessThan(0);
    }
    const bytes = Buffer.from(content.flatMap((entry) => entry.bytes ?? []));
    expect(bytes.toString('utf8').startsWith(choices[0]!.message.content!)).toBe(true);
  });

  it('stops at a string that spans tokens, and never sends a part of it', async () => {
    const free = await client.chat.completions.create({
      model: 'qwen',
      messages,
      max_tokens: 40,
      temperature: 0,
    });
    const text = free.choices[0]!.message.content!;
    expect(text.length).toBeGreaterThan(12);
    const stop = text.slice(6, 12);
    const at = text.indexOf(stop);
    const events = await worker.stream('/v1/chat/completions', {
      model: 'qwen',
      messages,
      max_tokens: 40,
      temperature: 0,
      stop: [stop, 'never there'],
    });
    const sent = events.map(({ choices }) => choices[0].delta.content ?? '').join('');
    expect(sent).toBe(text.slice(0, at));
    expect(events.at(-1).choices[0].finish_reason).toBe('stop');
  });

  it('JSON schema: the answer is valid, streamed or not', async () => {
    const schema = {
      type: 'object',
      properties: {
        name: { type: 'string', minLength: 1, maxLength: 8 },
        age: { type: 'integer', minimum: 0, maximum: 120 },
        kind: { enum: ['cat', 'dog'] },
        tags: { type: 'array', items: { type: 'boolean' }, minItems: 1, maxItems: 3 },
        born: { type: 'string', format: 'date' },
      },
      required: ['name', 'age', 'kind', 'tags', 'born'],
      additionalProperties: false,
    };
    const validate = new Ajv2020({ formats: { date: true } }).compile(schema);
    for (const [model, temperature] of [
      ['qwen', 1],
      ['llama', 1.5],
      ['qwen', 0],
    ] as const) {
      const { choices } = await client.chat.completions.create({
        model,
        messages,
        temperature,
        max_tokens: 400,
        seed: 9,
        response_format: { type: 'json_schema', json_schema: { name: 'animal', schema, strict: true } },
      });
      expect(choices[0]!.finish_reason).toBe('stop');
      const value: unknown = JSON.parse(choices[0]!.message.content!);
      expect(validate(value), choices[0]!.message.content!).toBe(true);
    }
  });

  it('tools: a required call is valid, also as streamed deltas', async () => {
    const tools = [
      {
        type: 'function' as const,
        function: {
          name: 'add',
          description: 'adds',
          parameters: {
            type: 'object',
            properties: { a: { type: 'integer', minimum: 0, maximum: 99 }, b: { enum: ['x', 'y'] } },
            required: ['a', 'b'],
          },
        },
      },
      { type: 'function' as const, function: { name: 'stop' } },
    ];
    for (const model of ['qwen', 'llama']) {
      const named = await client.chat.completions.create({
        model,
        messages,
        tools,
        max_tokens: 300,
        seed: 3,
        tool_choice: { type: 'function', function: { name: 'add' } },
      });
      const [choice] = named.choices;
      expect(choice!.finish_reason).toBe('tool_calls');
      expect(choice!.message.content).toBeNull();
      const [call] = choice!.message.tool_calls!;
      if (call?.type !== 'function') throw new Error('no function call');
      expect(call.function.name).toBe('add');
      const isValid = (text: string): boolean => {
        const { a, b } = JSON.parse(text);
        return Number.isInteger(a) && ['x', 'y'].includes(b);
      };
      expect(isValid(call.function.arguments)).toBe(true);

      const runner = client.chat.completions.stream({
        model,
        messages,
        tools,
        max_tokens: 300,
        seed: 3,
        tool_choice: { type: 'function', function: { name: 'add' } },
      });
      const final = await runner.finalChatCompletion();
      const streamed = final.choices[0]!.message.tool_calls![0]!;
      if (streamed.type !== 'function') throw new Error('no function call');
      expect(isValid(streamed.function.arguments)).toBe(true);
      // On a device what is in the cache by now may change a token of the other.
      if (model === 'qwen' || test_device === undefined)
        expect(streamed.function.arguments).toBe(call.function.arguments);
      expect(streamed.id).toMatch(/^call_/);
    }
  });

  it('tools: a call that is cut off ends the answer by its length', async () => {
    const parameters = {
      type: 'object',
      properties: { a: { type: 'integer', minimum: 1000, maximum: 9999 }, b: { enum: ['first', 'second'] } },
      required: ['a', 'b'],
      additionalProperties: false,
    };
    const asked = {
      model: 'qwen',
      messages,
      tools: [{ type: 'function' as const, function: { name: 'add', parameters } }],
      tool_choice: 'required' as const,
      parallel_tool_calls: false,
      seed: 3,
    };
    const whole = await client.chat.completions.create({ ...asked, max_tokens: 300 });
    expect(whole.choices[0]!.finish_reason).toBe('tool_calls');
    // A few tokens before the end of the call, so that its name is out and its arguments are not.
    const max_tokens = whole.usage!.completion_tokens - 6;
    const cut = await client.chat.completions.create({ ...asked, max_tokens });
    expect(cut.choices[0]!.finish_reason).toBe('length');
    expect(cut.choices[0]!.message.tool_calls).toHaveLength(1);
    // Not even the name is out.
    const first = await client.chat.completions.create({ ...asked, max_tokens: 5 });
    expect(first.choices[0]!.finish_reason).toBe('length');
  });

  it('reasoning: a template that opens it, as reasoning_content; JSON binds only after it', async () => {
    const template = join(worker.folder, 'reasoning.jinja');
    writeFileSync(
      template,
      "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{{ '<think>\\n' if thinking is not defined or thinking else '' }}",
    );
    const model_path = join(worker.folder, 'tiny-qwen3-1.gguf');
    await worker.load({ name: 'thinker', model_path, chat_template_file: template });
    const ask = async (more: Record<string, unknown>) =>
      JSON.parse(
        (
          await worker.post('/v1/chat/completions', {
            model: 'thinker',
            messages,
            seed: 8,
            max_tokens: 30,
            ...more,
          })
        ).text,
      ).choices[0].message;
    const thought = await ask({ response_format: { type: 'json_object' } });
    expect(thought.content).toBe('');
    expect(thought.reasoning_content.length).toBeGreaterThan(10);
    const plain = await ask({ chat_template_kwargs: { thinking: false } });
    expect(plain.content.length).toBeGreaterThan(10);
    expect(plain.reasoning_content).toBeUndefined();
    worker.send({ type: 'unload', name: 'thinker' });
    await worker.message(
      (message) => message.type === 'model' && message.name === 'thinker' && message.state === 'unloaded',
    );
  });

  it('min_tokens and ignore_eos reach exactly max_tokens', async () => {
    const body = { model: 'qwen', messages, max_tokens: 64, seed: 4, ignore_eos: true };
    const { text } = await worker.post('/v1/chat/completions', body);
    expect(JSON.parse(text).usage.completion_tokens).toBe(64);
    const again = await worker.post('/v1/chat/completions', { ...body, ignore_eos: false, min_tokens: 64 });
    expect(JSON.parse(again.text).usage.completion_tokens).toBe(64);
  });

  it('two models answer at the same time', async () => {
    const ask = (model: string) =>
      client.chat.completions.create({ model, messages, max_tokens: 16, seed: 2 });
    const alone = [await ask('qwen'), await ask('llama')];
    const together = await Promise.all([ask('qwen'), ask('llama')]);
    expect(together.map(({ model }) => model)).toEqual(['qwen', 'llama']);
    expect(together[0]!.choices[0]!.message.content).not.toBe(together[1]!.choices[0]!.message.content);
    expect(alone.every(({ usage }) => usage!.completion_tokens > 0)).toBe(true);
  });
});

describe('text completions', () => {
  it('texts, tokens and lists of both; legacy logprobs with offsets; echo', async () => {
    const { choices, usage } = await client.completions.create({
      model: 'llama',
      prompt: ['Once upon a time', 'The cluster'],
      max_tokens: 6,
      temperature: 0,
      logprobs: 2,
      echo: true,
      n: 1,
    });
    expect(choices.map(({ index }) => index)).toEqual([0, 1]);
    expect(choices[0]!.text.startsWith('Once upon a time')).toBe(true);
    const { tokens, token_logprobs, top_logprobs, text_offset } = choices[0]!.logprobs!;
    expect(tokens!.length).toBe(token_logprobs!.length);
    expect(token_logprobs![0]).toBeNull();
    expect(token_logprobs!.slice(1).every((value) => typeof value === 'number' && value <= 0)).toBe(true);
    expect(Object.keys(top_logprobs![1]!).length).toBeGreaterThanOrEqual(2);
    for (const [index, offset] of text_offset!.entries()) {
      const end = text_offset![index + 1] ?? choices[0]!.text.length;
      if (!tokens![index]!.includes('\ufffd') && !tokens![index]!.startsWith('<|'))
        expect(choices[0]!.text.slice(offset, end)).toBe(tokens![index]);
    }
    const ids = await client.completions.create({
      model: 'llama',
      prompt: [
        [5, 6, 7],
        [8, 9],
      ],
      max_tokens: 3,
    });
    expect(ids.usage!.prompt_tokens).toBe(5);
    expect(ids.choices).toHaveLength(2);
    expect(usage!.completion_tokens).toBeLessThanOrEqual(12);
    const scored = await client.completions.create({
      model: 'llama',
      prompt: 'Only scored',
      max_tokens: 0,
      echo: true,
      logprobs: 1,
    });
    expect(scored.choices[0]!.text).toBe('Only scored');
    expect(scored.usage!.completion_tokens).toBe(0);
  });

  it('echo with logprobs lists the one token of a prompt, which nothing predicts', async () => {
    const ask = async (max_tokens: number) => {
      const prompt = [5];
      const { choices } = await client.completions.create({
        model: 'llama',
        prompt,
        max_tokens,
        temperature: 0,
        echo: true,
        logprobs: 1,
      });
      return choices[0]!;
    };
    const { text, logprobs } = await ask(1);
    const { tokens, token_logprobs, top_logprobs, text_offset } = logprobs!;
    expect(tokens!.join('')).toBe(text);
    expect(token_logprobs).toEqual([null, expect.any(Number)]);
    expect(top_logprobs).toEqual([null, expect.anything()]);
    expect(text_offset).toEqual([0, tokens![0]!.length]);
    expect((await ask(0)).logprobs).toMatchObject({ tokens: [tokens![0]], token_logprobs: [null] });
  });

  it('a grammar that would keep the worker busy for hours is a bad request; the widest is followed in time', async () => {
    const ask = (grammar: string) =>
      worker.post('/v1/completions', { model: 'llama', prompt: 'x', max_tokens: 12, grammar });
    const refused = await ask('root ::= (("a"?){30}){30}');
    expect([refused.status, JSON.parse(refused.text).error.param]).toEqual([400, 'grammar']);
    const began_ms = performance.now();
    expect((await ask('root ::= (("a"?){10}){10}')).status).toBe(200);
    expect(performance.now() - began_ms).toBeLessThan(10_000);
  });

  it('a raw grammar binds, and one that does not parse is a bad request', async () => {
    const body = { model: 'llama', prompt: 'x', max_tokens: 60, grammar: 'root ::= "yes" | "no"' };
    const answer = JSON.parse((await worker.post('/v1/completions', body)).text);
    expect(['yes', 'no']).toContain(answer.choices[0].text);
    expect(answer.choices[0].finish_reason).toBe('stop');
    const { status, text } = await worker.post('/v1/completions', { ...body, grammar: 'root ::= (' });
    expect(status).toBe(400);
    expect(text).toContain('grammar');
  });
});

describe('embeddings', () => {
  it('are normalised, and the same as floats and as base64', async () => {
    const input = ['one text', 'another one'];
    const floats = await client.embeddings.create({ model: 'qwen', input, encoding_format: 'float' });
    // The client asks for base64 by itself and decodes it.
    const decoded = await client.embeddings.create({ model: 'qwen', input });
    for (const [index, { embedding }] of floats.data.entries()) {
      expect(embedding).toHaveLength(256);
      expect(Math.hypot(...embedding)).toBeCloseTo(1, 4);
      for (const [at, value] of embedding.entries())
        expect(decoded.data[index]!.embedding[at]).toBeCloseTo(value, 5);
    }
    expect(floats.data[0]!.embedding).not.toEqual(floats.data[1]!.embedding);
    expect(floats.usage.prompt_tokens).toBeGreaterThan(2);
  });
});

describe('reading', () => {
  it('lists models, health and metrics', async () => {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    expect(names).toEqual(['qwen', 'llama']);
    expect((await client.models.retrieve('default')).id).toBe('qwen');
    const health = JSON.parse((await worker.request('GET', '/health')).text);
    expect(health.status).toBe('ok');
    const metrics = (await worker.request('GET', '/metrics')).text;
    expect(metrics).toMatch(/hpcserve_generated_tokens_total\{model="qwen",device="test"\} [1-9]/);
    expect(metrics).toContain('hpcserve_kv_tokens_total');
    expect(metrics).toMatch(/hpcserve_weight_bytes\{model="qwen",layout="\w+",device="test"\} [1-9]/);
  });
});

describe('bad requests get the OpenAI error envelope, and the worker goes on', () => {
  const chat = (more: Record<string, unknown>) => ({ model: 'qwen', messages, max_tokens: 4, ...more });
  it.each<[string, unknown, number, string | null, RegExp]>([
    ['no JSON', '{"model": ', 400, null, /not valid JSON/],
    ['empty', '', 400, null, /is empty/],
    ['a list', [], 400, null, /must be a JSON object/],
    ['no model', { messages }, 400, 'model', /is required/],
    [
      'unknown model',
      chat({ model: 'qwne' }),
      404,
      'model',
      /does not exist.*served here: qwen, llama.*did you mean qwen/,
    ],
    ['unknown parameter', chat({ temperatur: 1 }), 400, 'temperatur', /did you mean `temperature`/],
    ['wrong type', chat({ temperature: 'hot' }), 400, 'temperature', /must be a number, not a string/],
    ['out of range', chat({ top_p: 2 }), 400, 'top_p', /from 0 to 1/],
    ['no messages', { model: 'qwen' }, 400, 'messages', /is required/],
    ['a role', chat({ messages: [{ role: 'usr', content: '' }] }), 400, 'messages.0.role', /must be one of/],
    [
      'an image',
      chat({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }),
      400,
      'messages.0.content.0',
      /reads text only/,
    ],
    [
      'schema',
      chat({
        response_format: {
          type: 'json_schema',
          json_schema: { name: 'x', strict: true, schema: { type: 'array', uniqueItems: true } },
        },
      }),
      400,
      'response_format.json_schema.schema.uniqueItems',
      /uniqueItems/,
    ],
    ['named tool', chat({ tools: [], tool_choice: 'required' }), 400, 'tool_choice', /where `tools`/],
    ['empty stop', chat({ stop: [''] }), 400, 'stop', /empty/],
    ['top_logprobs alone', chat({ top_logprobs: 2 }), 400, 'top_logprobs', /where `logprobs` is true/],
    ['stream options', chat({ stream_options: {} }), 400, 'stream_options', /where `stream` is true/],
    ['bias', chat({ logit_bias: { '99999999': 1 } }), 400, 'logit_bias.99999999', /not a token id/],
    [
      'too long',
      chat({ messages: [{ role: 'user', content: 'word '.repeat(3000) }] }),
      400,
      'messages',
      /maximum context length is 1024 tokens/,
    ],
    [
      'far too long',
      chat({ messages: [{ role: 'user', content: 'x'.repeat(4_000_000) }] }),
      400,
      'messages',
      /has at least \d+/,
    ],
    ['too many tokens', chat({ max_tokens: 5000 }), 400, 'messages', /5000 for the answer/],
  ])('%s', async (_, body, status, param, message) => {
    const answer = await worker.post('/v1/chat/completions', body);
    expect(answer.status).toBe(status);
    const { error } = JSON.parse(answer.text);
    expect(error.param).toBe(param);
    expect(error.message).toMatch(message);
    expect(error.type).toBe('invalid_request_error');
  });

  it('codes that clients know', async () => {
    const failure = client.chat.completions.create({ model: 'none', messages });
    await expect(failure).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(failure).rejects.toMatchObject({ code: 'model_not_found' });
    await expect(
      client.completions.create({ model: 'llama', prompt: 'x'.repeat(9000) }),
    ).rejects.toMatchObject({ code: 'context_length_exceeded' });
  });

  it('paths, methods, suffix, best_of, and harmless parameters', async () => {
    expect((await worker.request('GET', '/v1/nothing')).status).toBe(404);
    const wrong = await worker.request('GET', '/v1/chat/completions');
    expect([wrong.status, wrong.headers.allow]).toEqual([405, 'POST']);
    const suffix = await worker.post('/v1/completions', { model: 'llama', prompt: 'a', suffix: 'b' });
    expect([suffix.status, JSON.parse(suffix.text).error.param]).toEqual([400, 'suffix']);
    expect((await worker.post('/v1/completions', { model: 'llama', prompt: 'a', best_of: 4 })).status).toBe(
      400,
    );
    const fine = await worker.post(
      '/v1/chat/completions',
      chat({ user: 'me', store: false, metadata: {}, seed: null }),
    );
    expect(fine.status).toBe(200);
  });

  it('a body over the limit is refused without being read', async () => {
    const { status, text } = await worker.request('POST', '/v1/completions', '{}', {
      'content-length': String(64 * 1024 * 1024),
    });
    expect(status).toBe(413);
    expect(text).toContain('larger than');
  });
});

/** What SDKs and older clients send beside the API of today: taken, and said in a header where it has no effect. */
import type OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { headers } from '../../spec/wire.ts';
import { openStage, type Stage } from './support.ts';

const chatPath = '/v1/chat/completions';
const hello = { role: 'user' as const, content: 'Hello' };
const chat = { model: 'tools', messages: [hello], max_tokens: 8, seed: 1 };

let stage: Stage;
let client: OpenAI;
beforeAll(async () => {
  stage = await openStage();
  client = stage.client;
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

type Answer = OpenAI.ChatCompletion;
async function ask(more: object): Promise<{ answer: Answer; warning: string | null }> {
  const response = await stage.post(chatPath, { ...chat, ...more });
  const answer = (await response.json()) as Answer;
  expect(answer).not.toHaveProperty('error');
  expect(response.status).toBe(200);
  return { answer, warning: response.headers.get(headers.warning) };
}
const textOf = async (more: object): Promise<string> => (await ask(more)).answer.choices[0]!.message.content!;

it('a seed may have 64 bits, such as the time in nanoseconds', async () => {
  const warm = { temperature: 2, max_tokens: 12 };
  for (const seed of ['1764410000123456789', '9223372036854775807', '-9223372036854775808']) {
    const body = JSON.stringify({ ...chat, ...warm }).replace('"seed":1', `"seed":${seed}`);
    const answers = await Promise.all([1, 2].map(() => stage.post(chatPath, body)));
    for (const answer of answers) expect([seed, answer.status]).toEqual([seed, 200]);
    const texts = await Promise.all(
      answers.map(async (answer) => ((await answer.json()) as Answer).choices[0]!.message),
    );
    expect(texts[1]).toEqual(texts[0]);
    expect(texts[0]!.content).not.toBe(await textOf(warm));
  }
  for (const seed of [1.5, 1e19, '7'])
    expect((await stage.post(chatPath, { ...chat, seed })).status).toBe(400);
});

describe('messages that helpers of the official client made go back', () => {
  const digits = zodResponseFormat(z.object({ digit: z.enum(['1', '2']) }), 'digits');
  const next = (message: ChatCompletionMessageParam) =>
    client.chat.completions.create({ ...chat, messages: [hello, message, hello] });

  it('parse()', async () => {
    const { choices } = await client.chat.completions.parse({
      ...chat,
      max_tokens: 40,
      response_format: digits,
    });
    expect(choices[0]!.message.parsed!.digit).toMatch(/[12]/);
    expect((await next(choices[0]!.message)).choices).toHaveLength(1);
  });

  it('stream().finalChatCompletion()', async () => {
    const stream = client.chat.completions.stream({ ...chat, max_tokens: 40, response_format: digits });
    const { choices } = await stream.finalChatCompletion();
    expect((await next(choices[0]!.message)).choices).toHaveLength(1);
  });

  it('runTools()', async () => {
    let called = 0;
    const runner = client.chat.completions.runTools(
      {
        ...chat,
        max_tokens: 80,
        tools: [
          zodFunction({
            name: 'weather',
            parameters: z.object({ place: z.enum(['here', 'there']) }),
            function: ({ place }) => `${++called}: fine ${place}`,
          }),
        ],
        tool_choice: { type: 'function', function: { name: 'weather' } },
      },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    expect(called).toBe(1);
    expect(runner.messages.map(({ role }) => role)).toEqual(['user', 'assistant', 'tool']);
  });
});

describe('members of messages', () => {
  const said = { role: 'assistant', content: 'Hi.' };

  it('that are about an answer are dropped; the prompt is the same', async () => {
    const message = {
      ...said,
      ...{ id: 'msg_1', refusal: null, annotations: [], audio: null, parsed: { a: 1 }, logprobs: null },
      ...{ function_call: null, tool_calls: null, provider_specific_fields: { a: [] } },
      ...{ thinking_blocks: [{ type: 'thinking', thinking: 'x' }], cache_control: { type: 'ephemeral' } },
    };
    const [bare, laden] = await Promise.all(
      [said, message].map((one) => ask({ messages: [hello, one, hello] })),
    );
    expect(laden!.answer.usage!.prompt_tokens).toBe(bare!.answer.usage!.prompt_tokens);
    expect(laden!.answer.choices[0]!.message.content).toBe(bare!.answer.choices[0]!.message.content);
    expect(laden!.warning).toBeNull();
  });

  it('that nobody knows are named in a header', async () => {
    const { warning } = await ask({ messages: [hello, { ...said, mood: 'good', höhe: 1 }, hello] });
    expect(warning).toBe(
      'messages.1.mood is not known and left out; messages.1.h\\u{f6}he is not known and left out',
    );
  });

  it('of the body are refused as ever, with the name that other servers have for another', async () => {
    const response = await stage.post(chatPath, { ...chat, repeat_penalty: 1.1 });
    expect(response.status).toBe(400);
    expect(await response.text()).toContain('did you mean `repetition_penalty`? Try: ');
  });
});

describe('functions, as they were before tools', () => {
  const functions = [
    {
      name: 'weather',
      parameters: { type: 'object', properties: { place: { enum: ['here'] } }, required: ['place'] },
    },
  ];
  const call = { max_tokens: 80, functions, function_call: { name: 'weather' } };

  it('are called in their form, streamed or not, and their results go back', async () => {
    const { answer } = await ask(call);
    const [{ message, finish_reason }] = answer.choices as [Answer['choices'][0]];
    expect(finish_reason).toBe('function_call');
    expect(message).not.toHaveProperty('tool_calls');
    expect(message.function_call).toMatchObject({ name: 'weather' });
    expect(JSON.parse(message.function_call!.arguments)).toEqual({ place: 'here' });
    const { events } = await stage.events(chatPath, { ...chat, ...call });
    const parts = (events as unknown as OpenAI.ChatCompletionChunk[]).flatMap(
      ({ choices }) => choices[0]?.delta.function_call ?? [],
    );
    expect(parts.map((part) => part.arguments).join('')).toBe(message.function_call!.arguments);
    expect(parts.filter((part) => part.name)).toHaveLength(1);
    const result = { role: 'function', name: 'weather', content: 'Fine.' };
    const [asFunction, asTool] = await Promise.all(
      [
        [message, result],
        [
          { role: 'assistant', tool_calls: [{ id: 'c', type: 'function', function: message.function_call }] },
          { role: 'tool', tool_call_id: 'c', content: 'Fine.' },
        ],
      ].map((turn) => ask({ messages: [hello, ...turn] })),
    );
    expect(asFunction!.answer.usage!.prompt_tokens).toBe(asTool!.answer.usage!.prompt_tokens);
  });

  it('may not be mixed with tools', async () => {
    for (const more of [
      { functions, tool_choice: 'required' },
      { tools: [{ type: 'function', function: functions[0] }], function_call: 'auto' },
      { functions, function_call: { name: 'other' } },
    ])
      expect((await stage.post(chatPath, { ...chat, ...more })).status).toBe(400);
  });
});

describe('ways to bind an answer', () => {
  const schema = { type: 'object', properties: { a: { enum: [1, 2] } }, required: ['a'] };
  const tokens = { max_tokens: 60 };

  it.each([
    ['response_format.schema', { response_format: { type: 'json_object', schema } }],
    ['response_format.schema of json_schema', { response_format: { type: 'json_schema', schema } }],
    ['guided_json', { guided_json: schema }],
    ['guided_json as a text', { guided_json: JSON.stringify(schema), guided_decoding_backend: 'xgrammar' }],
    ['structured_outputs.json', { structured_outputs: { json: schema } }],
  ])('%s', async (_, more) => {
    expect([1, 2]).toContain((JSON.parse(await textOf({ ...tokens, ...more })) as { a: number }).a);
  });

  it('a regular expression, of the whole text', async () => {
    for (const more of [
      { guided_regex: '[a-c]{3}"?\\n' },
      { structured_outputs: { regex: '^[a-c]{3}"?\\n$' } },
    ])
      expect(await textOf({ ...tokens, ...more })).toMatch(/^[a-c]{3}"?\n$/);
    const alternatives = await textOf({ ...tokens, guided_regex: 'yes|no, "never"' });
    expect(['yes', 'no, "never"']).toContain(alternatives);
  });

  it('a choice, a grammar, any object; also of a text completion', async () => {
    expect(['red', 'a "blue" one']).toContain(await textOf({ guided_choice: ['red', 'a "blue" one'] }));
    expect(await textOf({ guided_grammar: 'root ::= "x" [yz]' })).toMatch(/^x[yz]$/);
    const { choices } = await client.completions.create({
      model: 'tiny',
      prompt: 'x',
      structured_outputs: { choice: ['left', 'right'] },
    } as OpenAI.CompletionCreateParamsNonStreaming);
    expect(['left', 'right']).toContain(choices[0]!.text);
  });

  it('are for texts: a call may stand in their place, and must where one is asked for', async () => {
    const parameters = { type: 'object', properties: { b: { enum: [3, 4] } }, required: ['b'] };
    const both = {
      ...{ max_tokens: 120, temperature: 1 },
      tools: [{ type: 'function', function: { name: 'f', parameters } }],
      response_format: { type: 'json_schema', json_schema: { name: 'x', schema, strict: true } },
    };
    const told = async (more: object) => {
      const { message } = (await ask({ ...both, ...more })).answer.choices[0]!;
      const [call] = message.tool_calls ?? [];
      if (!call) return { text: (JSON.parse(message.content!) as { a: number }).a };
      const { arguments: text } = (call as OpenAI.ChatCompletionMessageFunctionToolCall).function;
      return { call: (JSON.parse(text) as { b: number }).b };
    };
    for (const tool_choice of ['required', { type: 'function', function: { name: 'f' } }])
      expect([3, 4]).toContain((await told({ tool_choice })).call);
    for (const seed of [1, 2, 3, 4]) {
      const { text, call } = await told({ seed });
      expect(call === undefined ? [1, 2] : [3, 4]).toContain(call ?? text);
    }
    expect([1, 2]).toContain((await told({ tool_choice: 'none' })).text);
  });

  it('are refused by name where there are two, or where they cannot be kept', async () => {
    for (const [param, more] of [
      ['guided_choice', { guided_choice: ['a'], guided_json: {} }],
      ['guided_json', { guided_json: {}, response_format: { type: 'json_object' } }],
      ['structured_outputs.choice', { structured_outputs: { choice: [] } }],
      ['structured_outputs.surprise', { structured_outputs: { surprise: 1 } }],
      ['guided_json.uniqueItems', { guided_json: { type: 'array', uniqueItems: true } }],
    ] as const) {
      const response = await stage.post(chatPath, { ...chat, ...more });
      const { error } = (await response.json()) as { error: { param: string } };
      expect([response.status, error.param]).toEqual([400, param]);
    }
  });
});

describe('schemas that cannot be kept to the letter', () => {
  const parameters = {
    type: 'object',
    properties: {
      n: { type: 'integer', minimum: 1, maximum: 9, multipleOf: 2 },
      s: { type: 'string', pattern: '^(?=a)', nullable: true },
      f: { type: 'string', format: 'byte', enum: ['a'] },
    },
    required: ['n'],
    minProperties: 1,
    not: { required: ['x'] },
  };
  const tools = (strict?: boolean) => ({
    max_tokens: 120,
    tools: [{ type: 'function', function: { name: 'f', parameters, strict } }],
    tool_choice: 'required',
  });

  it('are taken where they are not strict: the rest binds, and a header says what does not', async () => {
    const { answer, warning } = await ask(tools());
    const [call] = answer.choices[0]!.message.tool_calls!;
    const { n } = JSON.parse((call as OpenAI.ChatCompletionMessageFunctionToolCall).function.arguments) as {
      n: number;
    };
    expect(n).toBeGreaterThanOrEqual(1);
    expect(n).toBeLessThanOrEqual(9);
    for (const keyword of ['minProperties', 'not', 'properties.n.multipleOf', 'properties.f.format'])
      expect(warning).toContain(`tools.0.function.parameters.${keyword} cannot constrain the answer`);
    expect(warning).toContain('pattern');
    const format = {
      type: 'json_schema',
      json_schema: { name: 'x', schema: { type: 'array', uniqueItems: true } },
    };
    expect((await ask({ response_format: format })).warning).toMatch(/uniqueItems/);
  });

  it('are refused by name where they are', async () => {
    const response = await stage.post(chatPath, { ...chat, ...tools(true) });
    const { error } = (await response.json()) as { error: { param: string; code: string } };
    expect([response.status, error.code]).toEqual([400, 'E_REQUEST_SCHEMA']);
    expect(error.param).toMatch(/^tools\.0\.function\.parameters\.(minProperties|not)$/);
  });
});

describe('tools that take nothing', () => {
  it.each([
    ['no parameters', undefined],
    ['{}', {}],
    ['an object without properties', { type: 'object', properties: {} }],
  ])('%s: called with {}', async (_, parameters) => {
    const tools = [{ type: 'function', function: { name: 'now', parameters } }];
    for (const seed of [1, 2, 3]) {
      const { answer } = await ask({
        tools,
        tool_choice: 'required',
        seed,
        max_tokens: 40,
        parallel_tool_calls: false,
      });
      expect(answer.choices[0]!.message.tool_calls).toMatchObject([
        { function: { name: 'now', arguments: '{}' } },
      ]);
    }
  });
});

it('verbosity is taken; a template that does not know it is named', async () => {
  expect((await ask({ verbosity: 'medium' })).warning).toBeNull();
  expect((await ask({ verbosity: 'low' })).warning).toMatch(/verbosity/);
  expect((await stage.post(chatPath, { ...chat, verbosity: 'loud' })).status).toBe(400);
});

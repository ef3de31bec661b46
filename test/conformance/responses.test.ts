/** OpenAI's responses API over the native engine, as the official client asks and reads it. */
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import type {
  FunctionTool,
  ResponseCreateParamsNonStreaming,
  ResponseInputItem,
  ResponseStreamEvent,
} from 'openai/resources/responses/responses';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { openStage, type Stage } from './support.ts';

const asked = { model: 'tiny', input: 'Tell me a story.', max_output_tokens: 12, temperature: 0 } as const;
const weather: FunctionTool = {
  type: 'function',
  name: 'weather',
  description: 'The weather of a place',
  parameters: {
    type: 'object',
    properties: { place: { enum: ['here', 'there'] } },
    required: ['place'],
    additionalProperties: false,
  },
  strict: true,
};

let stage: Stage;
let client: OpenAI;
beforeAll(async () => {
  stage = await openStage();
  client = stage.client;
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

const ask = (more: Partial<ResponseCreateParamsNonStreaming>) =>
  client.responses.create({ ...asked, ...more });

async function told(more: Partial<ResponseCreateParamsNonStreaming>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = [];
  for await (const event of await client.responses.create({ ...asked, ...more, stream: true }))
    events.push(event);
  return events;
}

describe('an answer', () => {
  it('is that of the chat, with what was asked of it', async () => {
    const answer = await ask({ instructions: 'Be brief.', metadata: { of: 'test' } });
    const { choices, usage } = await client.chat.completions.create({
      model: 'tiny',
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: asked.input },
      ],
      max_completion_tokens: 12,
      temperature: 0,
    });
    expect(answer.output_text).toBe(choices[0]!.message.content);
    expect(answer).toMatchObject({
      object: 'response',
      status: 'incomplete',
      incomplete_details: { reason: 'max_output_tokens' },
      model: 'tiny',
      instructions: 'Be brief.',
      metadata: { of: 'test' },
      store: false,
      usage: {
        input_tokens: usage!.prompt_tokens,
        output_tokens: 12,
        total_tokens: usage!.total_tokens,
      },
    });
    expect(answer.output).toMatchObject([{ type: 'message', role: 'assistant', status: 'incomplete' }]);
  });

  it('is told by events in their order, and is the same whole', async () => {
    const [events, whole] = [await told({}), await ask({})];
    const types = events.map(({ type }) => type);
    const deltas = events.filter((event) => event.type === 'response.output_text.delta');
    expect(types).toEqual([
      ...['response.created', 'response.in_progress'],
      ...['response.output_item.added', 'response.content_part.added'],
      ...deltas.map(({ type }) => type),
      ...['response.output_text.done', 'response.content_part.done', 'response.output_item.done'],
      'response.incomplete',
    ]);
    expect(events.map(({ sequence_number }) => sequence_number)).toEqual(events.map((_, at) => at));
    expect(deltas.length).toBeGreaterThan(5);
    expect(deltas.map(({ delta }) => delta).join('')).toBe(whole.output_text);
    const last = events.at(-1)! as Extract<ResponseStreamEvent, { type: 'response.incomplete' }>;
    expect(last.response.output).toMatchObject([{ content: [{ text: whole.output_text }] }]);
    expect(last.response.usage!.total_tokens).toBe(whole.usage!.total_tokens);
  });

  it('is put together by the client’s own helper', async () => {
    const stream = client.responses.stream(asked);
    expect((await stream.finalResponse()).output_text).toBe((await ask({})).output_text);
  });

  it('keeps to a schema, and the client’s helper reads it', async () => {
    const format = zodTextFormat(z.object({ digit: z.enum(['1', '2']) }), 'digits');
    const { output_parsed, status } = await client.responses.parse({
      ...asked,
      max_output_tokens: 60,
      text: { format },
    });
    expect(['1', '2']).toContain(output_parsed!.digit);
    expect(status).toBe('completed');
  });

  it('of a model that reasons has its reasoning as an item', async () => {
    const more = { model: 'org/thinker', max_output_tokens: 40, reasoning: { effort: 'low' } } as const;
    const answer = await ask(more);
    expect(answer.output.map(({ type }) => type)).toEqual(['reasoning', 'message']);
    expect(answer.usage!.output_tokens_details.reasoning_tokens).toBeGreaterThan(0);
    const text = (answer.output[0] as { content: { text: string }[] }).content[0]!.text;
    const events = await told(more);
    const thought = events.filter((event) => event.type === 'response.reasoning_text.delta');
    expect(thought.map(({ delta }) => delta).join('')).toBe(text);
  });
});

describe('functions', () => {
  const more: Partial<ResponseCreateParamsNonStreaming> = {
    model: 'tools',
    max_output_tokens: 80,
    tools: [weather],
    tool_choice: 'required',
  };

  it('are called, and their results go back as items', async () => {
    const first = await ask(more);
    const call = first.output.find((item) => item.type === 'function_call')!;
    expect(call).toMatchObject({ name: 'weather', status: 'completed' });
    expect(['here', 'there']).toContain((JSON.parse(call.arguments) as { place: string }).place);
    const second = await ask({
      model: 'tools',
      tools: [weather],
      tool_choice: 'none',
      input: [
        { role: 'user', content: 'How is the weather?' },
        ...(first.output as ResponseInputItem[]),
        { type: 'function_call_output', call_id: call.call_id, output: 'Fine.' },
      ],
    });
    expect(second.output_text.length).toBeGreaterThan(0);
    const without = await ask({ model: 'tools', input: 'How is the weather?' });
    expect(second.usage!.input_tokens).toBeGreaterThan(without.usage!.input_tokens);
  });

  it('are told as they are written', async () => {
    const events = await told({ ...more, tool_choice: { type: 'function', name: 'weather' } });
    const deltas = events.filter((event) => event.type === 'response.function_call_arguments.delta');
    const done = events.find((event) => event.type === 'response.function_call_arguments.done')!;
    expect(deltas.map(({ delta }) => delta).join('')).toBe(done.arguments);
    expect(events.at(-1)!.type).toBe('response.completed');
  });
});

describe('what is not here is refused by name', () => {
  it.each([
    ['previous_response_id', { previous_response_id: 'resp_1' }],
    ['background', { background: true }],
    ['previous_response_id', { previous_response_id: 'resp_1', store: true }],
    ['include', { include: ['file_search_call.results'] }],
    ['tools[0].type', { tools: [{ type: 'web_search' }] }],
    [
      'input[0].content[0].type',
      { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'f' }] }] },
    ],
    ['input', { input: 7 }],
    ['surprise', { surprise: 1 }],
  ] as [string, object][])('%s', async (param, more) => {
    const refused = ask(more as Partial<ResponseCreateParamsNonStreaming>);
    await expect(refused).rejects.toMatchObject({ status: 400, param });
    await expect(refused).rejects.toBeInstanceOf(OpenAI.BadRequestError);
  });

  it('a model that nobody has; a key that nobody made; a body that is none', async () => {
    await expect(ask({ model: 'none' })).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    const stranger = stage.clientWith({ apiKey: 'hs-no' });
    await expect(stranger.responses.create(asked)).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
    for (const body of ['{', '[]', '{"model":"tiny"}', '"x"'])
      expect((await stage.post('/v1/responses', body)).status).toBe(400);
    expect((await stage.fetch('/v1/responses')).headers.get('allow')).toBe('POST');
  });
});

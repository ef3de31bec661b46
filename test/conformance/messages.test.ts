/** Anthropic's messages API over the native engine, as its official client asks and reads it. */
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openStage, type Stage } from './support.ts';

type Asked = Anthropic.MessageCreateParamsNonStreaming;
const asked: Asked = {
  model: 'tiny',
  max_tokens: 12,
  // Not in the types of this version, and sent by many.
  ...({ temperature: 0 } as object),
  messages: [{ role: 'user', content: 'Tell me a story.' }],
};
const weather: Anthropic.Tool = {
  name: 'weather',
  description: 'The weather of a place',
  input_schema: {
    type: 'object',
    properties: { place: { enum: ['here', 'there'] } },
    required: ['place'],
    additionalProperties: false,
  },
};

let stage: Stage;
let client: Anthropic;
beforeAll(async () => {
  stage = await openStage();
  client = new Anthropic({ baseURL: stage.url, apiKey: stage.key, maxRetries: 0 });
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

const ask = (more: Partial<Asked>) => client.messages.create({ ...asked, ...more });
const textOf = ({ content }: Anthropic.Message) =>
  content.map((block) => (block.type === 'text' ? block.text : '')).join('');

describe('an answer', () => {
  it('is that of the chat', async () => {
    const answer = await ask({
      system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
    });
    const { choices, usage } = await stage.client.chat.completions.create({
      model: 'tiny',
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Tell me a story.' },
      ],
      max_tokens: 12,
      temperature: 0,
    });
    expect(textOf(answer)).toBe(choices[0]!.message.content);
    expect(answer).toMatchObject({
      type: 'message',
      role: 'assistant',
      model: 'tiny',
      stop_reason: 'max_tokens',
      stop_sequence: null,
      usage: { output_tokens: 12 },
    });
    const { input_tokens, cache_read_input_tokens } = answer.usage;
    expect(input_tokens + cache_read_input_tokens!).toBe(usage!.prompt_tokens);
  });

  it('is told by events, and the client’s helper puts the same together', async () => {
    const stream = client.messages.stream(asked);
    const types: string[] = [];
    for await (const { type } of stream) types.push(type);
    const { content, stop_reason, usage } = await stream.finalMessage();
    const whole = await ask({});
    expect(content).toEqual(whole.content);
    expect(stop_reason).toBe('max_tokens');
    expect(usage.input_tokens + usage.cache_read_input_tokens!).toBe(
      whole.usage.input_tokens + whole.usage.cache_read_input_tokens!,
    );
    expect(types.slice(0, 2)).toEqual(['message_start', 'content_block_start']);
    expect(types.slice(-3)).toEqual(['content_block_stop', 'message_delta', 'message_stop']);
  });

  it('goes on from a beginning of it', async () => {
    const begun = textOf(await ask({ max_tokens: 6 }));
    const rest = await ask({
      max_tokens: 6,
      messages: [...asked.messages, { role: 'assistant', content: begun }],
    });
    expect(begun + textOf(rest)).toBe(textOf(await ask({})));
  });

  it('of a model that reasons begins with its thinking', async () => {
    const thinking = { type: 'enabled', budget_tokens: 8 } as const;
    const answer = await ask({ model: 'org/thinker', max_tokens: 30, thinking });
    expect(answer.content.map(({ type }) => type)).toEqual(['thinking', 'text']);
    const none = await ask({ model: 'org/thinker', max_tokens: 30, thinking: { type: 'disabled' } });
    expect(none.content.map(({ type }) => type)).toEqual(['text']);
  });

  it('has as many tokens as are counted', async () => {
    const { messages, model } = asked;
    const { input_tokens } = await client.messages.countTokens({ messages, model });
    const { usage } = await ask({});
    expect(input_tokens).toBe(usage.input_tokens + usage.cache_read_input_tokens!);
  });
});

describe('tools', () => {
  const more: Partial<Asked> = {
    model: 'tools',
    max_tokens: 80,
    tools: [weather],
    tool_choice: { type: 'tool', name: 'weather' },
  };

  it('are used, and their results go back', async () => {
    const first = await ask(more);
    const use = first.content.find((block) => block.type === 'tool_use')!;
    expect(first.stop_reason).toBe('tool_use');
    expect(['here', 'there']).toContain((use.input as { place: string }).place);
    const second = await ask({
      ...more,
      tool_choice: { type: 'none' },
      messages: [
        ...asked.messages,
        { role: 'assistant', content: first.content },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: use.id, content: 'Fine.' },
            { type: 'text', text: 'And then?' },
          ],
        },
      ],
    });
    expect(textOf(second).length).toBeGreaterThan(0);
  });

  it('are told as they are written', async () => {
    const stream = client.messages.stream({ ...asked, ...more });
    const { content } = await stream.finalMessage();
    const use = content.find((block) => block.type === 'tool_use')!;
    expect(['here', 'there']).toContain((use.input as { place: string }).place);
  });
});

describe('refusals have Anthropic’s form', () => {
  it('raised by its client as its own classes', async () => {
    await expect(ask({ model: 'none' })).rejects.toBeInstanceOf(Anthropic.NotFoundError);
    const stranger = new Anthropic({ baseURL: stage.url, apiKey: 'hs-no', maxRetries: 0 });
    await expect(stranger.messages.create(asked)).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
    const refused = ask({ tools: [{ type: 'web_search_20250305', name: 'web_search' }] });
    await expect(refused).rejects.toBeInstanceOf(Anthropic.BadRequestError);
    await expect(refused).rejects.toMatchObject({
      error: { type: 'error', error: { type: 'invalid_request_error' } },
    });
  });
});

// Anthropic's client, which speaks /v1/messages.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {
  bound_tokens,
  chat_model,
  host,
  image,
  long_tokens,
  places,
  refusesImages,
  run,
  server,
  story,
  story_tokens,
  thrownBy,
  tools_model,
} from './checks.mjs';

const client = new Anthropic({ baseURL: host, apiKey: server.apiKey, maxRetries: 0 });
const asked = {
  model: chat_model,
  max_tokens: story_tokens,
  temperature: 0,
  messages: [{ role: 'user', content: story }],
};
const textOf = ({ content }) => content.map((block) => block.text ?? '').join('');

await run({
  async chat() {
    const answer = await client.messages.create(asked);
    assert.equal(answer.stop_reason, 'max_tokens');
    assert.equal(answer.usage.output_tokens, story_tokens);
    assert.ok(
      (await thrownBy(() => client.messages.create({ ...asked, model: 'none' }))) instanceof
        Anthropic.NotFoundError,
    );
    assert.ok(
      (await client.messages.countTokens({ model: chat_model, messages: asked.messages })).input_tokens > 0,
    );
  },

  async stream() {
    const whole = await client.messages.create(asked);
    const streamed = await client.messages.stream(asked).finalMessage();
    assert.equal(textOf(streamed), textOf(whole));
  },

  async abort() {
    const stream = client.messages.stream({ ...asked, max_tokens: long_tokens });
    let parts = 0;
    stream.on('text', () => {
      if (++parts === 3) stream.abort();
    });
    assert.ok((await thrownBy(() => stream.done())) instanceof Anthropic.APIUserAbortError);
    assert.ok(parts < long_tokens / 2, `${parts} parts`);
  },

  async tools() {
    const tools = [
      {
        name: 'weather',
        description: 'The weather of a place',
        input_schema: {
          type: 'object',
          properties: { place: { enum: places } },
          required: ['place'],
          additionalProperties: false,
        },
        strict: true,
      },
    ];
    const ofTools = { ...asked, model: tools_model, max_tokens: bound_tokens, tools };
    const { content } = await client.messages.create({
      ...ofTools,
      tool_choice: { type: 'tool', name: 'weather' },
    });
    const call = content.find(({ type }) => type === 'tool_use');
    assert.ok(places.includes(call.input.place));
    const result = { type: 'tool_result', tool_use_id: call.id, content: 'Fine.' };
    const next = await client.messages.create({
      ...ofTools,
      max_tokens: story_tokens,
      tool_choice: { type: 'none' },
      messages: [...asked.messages, { role: 'assistant', content }, { role: 'user', content: [result] }],
    });
    assert.equal(next.role, 'assistant');
  },

  async image() {
    const source = { type: 'base64', media_type: 'image/png', data: image };
    await refusesImages(() =>
      client.messages.create({
        ...asked,
        messages: [{ role: 'user', content: [{ type: 'image', source }] }],
      }),
    );
  },
});

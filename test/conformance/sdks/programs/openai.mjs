// OpenAI's client for JavaScript, in the version that `way` names: `openai`, or `openai-5`.

import assert from 'node:assert/strict';
import { Buffer } from 'node:buffer';
import { z } from 'zod';
import {
  bound_tokens,
  chat_model,
  digits,
  engine,
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
  way,
} from './checks.mjs';

const { default: OpenAI } = await import(way);
const { zodFunction, zodResponseFormat, zodTextFormat } = await import(`${way}/helpers/zod`);

const client = new OpenAI({ ...server, maxRetries: 0 });
const chats = client.chat.completions;
// Version 4 has them apart.
const helpers = client.beta?.chat?.completions ?? chats;
const asked = {
  model: chat_model,
  messages: [{ role: 'user', content: story }],
  max_completion_tokens: story_tokens,
  temperature: 0,
};
const digit = z.object({ digit: z.enum(digits) });
// Strict: without that vLLM binds no arguments.
const weather = {
  name: 'weather',
  description: 'The weather of a place',
  parameters: {
    type: 'object',
    properties: { place: { enum: places } },
    required: ['place'],
    additionalProperties: false,
  },
  strict: true,
};
const ofTools = { ...asked, model: tools_model, max_completion_tokens: bound_tokens };
const named = { type: 'function', function: { name: 'weather' } };
const placeOf = (text) => assert.ok(places.includes(JSON.parse(text).place), text);

/** The message of an answer goes back as the helper made it. */
async function goesBack(message) {
  const { choices } = await chats.create({
    ...asked,
    messages: [...asked.messages, message, { role: 'user', content: 'Go on.' }],
  });
  assert.equal(choices.length, 1);
}

await run({
  async models() {
    const names = (await client.models.list()).data.map(({ id }) => id);
    assert.ok(names.includes(chat_model), names.join(', '));
    assert.equal((await client.models.retrieve(chat_model)).id, chat_model);
    assert.ok(
      (await thrownBy(() => chats.create({ ...asked, model: 'none' }))) instanceof OpenAI.NotFoundError,
    );
  },

  async chat() {
    const answer = await chats.create(asked);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.equal(answer.usage.completion_tokens, story_tokens);
  },

  async stream() {
    const [{ message }] = (await chats.create(asked)).choices;
    const stream = await chats.create({ ...asked, stream: true, stream_options: { include_usage: true } });
    let text = '';
    let usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, message.content);
    assert.equal(usage.completion_tokens, story_tokens);
  },

  async abort() {
    const stream = await chats.create({ ...asked, max_completion_tokens: long_tokens, stream: true });
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
    assert.ok(chunks < long_tokens / 2, `${chunks} chunks`);
    const whole = chats.create(
      { ...asked, max_completion_tokens: long_tokens },
      { signal: AbortSignal.timeout(100) },
    );
    assert.ok((await thrownBy(() => whole)) instanceof OpenAI.APIUserAbortError);
    assert.equal((await chats.create(asked)).usage.completion_tokens, story_tokens);
  },

  async 'choices and logprobs'() {
    const { choices, usage } = await chats.create({
      ...asked,
      ...{ n: 2, temperature: 1, seed: 7, logprobs: true, top_logprobs: 2 },
    });
    assert.deepEqual(
      choices.map(({ index }) => index),
      [0, 1],
    );
    assert.equal(usage.completion_tokens, 2 * story_tokens);
    for (const { logprobs } of choices) {
      assert.equal(logprobs.content.length, story_tokens);
      for (const { top_logprobs, bytes } of logprobs.content) {
        assert.ok(top_logprobs.length >= 2);
        assert.ok(Array.isArray(bytes));
      }
    }
  },

  async tools() {
    const tools = [{ type: 'function', function: weather }];
    const [{ message, finish_reason }] = (await chats.create({ ...ofTools, tools, tool_choice: named }))
      .choices;
    assert.ok(['tool_calls', 'stop'].includes(finish_reason), finish_reason);
    const [call] = message.tool_calls;
    placeOf(call.function.arguments);
    const result = { role: 'tool', tool_call_id: call.id, content: 'Fine.' };
    const next = await chats.create({
      ...ofTools,
      tools,
      tool_choice: 'none',
      messages: [...ofTools.messages, message, result],
      max_completion_tokens: story_tokens,
    });
    assert.equal(next.choices[0].message.role, 'assistant');
    const stream = await chats.create({ ...ofTools, tools, tool_choice: named, stream: true });
    let text = '';
    for await (const { choices } of stream)
      text += choices[0]?.delta.tool_calls?.[0]?.function.arguments ?? '';
    placeOf(text);
  },

  async runTools() {
    let called = 0;
    const runner = helpers.runTools(
      {
        ...ofTools,
        tools: [
          zodFunction({
            name: 'weather',
            parameters: z.object({ place: z.enum(places) }),
            function: ({ place }) => `${++called}: fine ${place}`,
          }),
        ],
        tool_choice: named,
      },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    assert.equal(called, 1);
    assert.deepEqual(
      runner.messages.map(({ role }) => role),
      ['user', 'assistant', 'tool'],
    );
  },

  async schema() {
    const bound = {
      ...asked,
      max_completion_tokens: bound_tokens,
      response_format: zodResponseFormat(digit, 'digits'),
    };
    const [{ message }] = (await helpers.parse(bound)).choices;
    assert.ok(digits.includes(message.parsed.digit));
    await goesBack(message);
    const stream = helpers.stream(bound);
    const [last] = (await stream.finalChatCompletion()).choices;
    assert.ok(digits.includes(last.message.parsed.digit));
    await goesBack(last.message);
  },

  async embeddings() {
    const ask = { model: chat_model, input: ['one', 'two'] };
    if (engine !== 'native') {
      // It serves a model that writes.
      const { status } = await thrownBy(() => client.embeddings.create(ask));
      assert.ok([400, 404].includes(status), `${status}`);
      return;
    }
    // By default as base64, which the client unpacks.
    const { data } = await client.embeddings.create(ask);
    const floats = await client.embeddings.create({ ...ask, encoding_format: 'float' });
    assert.equal(data.length, 2);
    for (const [at, { embedding }] of data.entries())
      for (const [index, value] of embedding.entries())
        assert.ok(Math.abs(value - floats.data[at].embedding[index]) < 1e-6);
  },

  async image() {
    const url = `data:image/png;base64,${image}`;
    assert.ok(Buffer.from(image, 'base64').length > 0);
    await refusesImages(() =>
      chats.create({
        ...asked,
        messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }],
      }),
    );
  },

  async responses() {
    const ask = {
      model: chat_model,
      input: story,
      max_output_tokens: story_tokens,
      temperature: 0,
      store: false,
    };
    const whole = await client.responses.create(ask);
    assert.equal(whole.status, 'incomplete');
    assert.equal(whole.usage.output_tokens, story_tokens);
    let text = '';
    const types = [];
    for await (const event of await client.responses.create({ ...ask, stream: true })) {
      types.push(event.type);
      if (event.type === 'response.output_text.delta') text += event.delta;
    }
    assert.equal(text, whole.output_text);
    assert.equal(types[0], 'response.created');
    assert.ok(['response.incomplete', 'response.completed'].includes(types.at(-1)), types.at(-1));
  },

  async 'responses: tools and schema'() {
    const ask = {
      model: tools_model,
      input: story,
      max_output_tokens: bound_tokens,
      temperature: 0,
      store: false,
    };
    const tools = [{ type: 'function', ...weather }];
    const tool_choice = { type: 'function', name: 'weather' };
    const { output } = await client.responses.create({ ...ask, tools, tool_choice });
    const call = output.find(({ type }) => type === 'function_call');
    placeOf(call.arguments);
    const next = await client.responses.create({
      ...ask,
      tools,
      tool_choice: 'none',
      max_output_tokens: story_tokens,
      input: [
        { role: 'user', content: story },
        ...output,
        { type: 'function_call_output', call_id: call.call_id, output: 'Fine.' },
      ],
    });
    assert.ok(next.output_text.length > 0);
    const parsed = await client.responses.parse({
      ...ask,
      model: chat_model,
      text: { format: zodTextFormat(digit, 'digits') },
    });
    assert.ok(digits.includes(parsed.output_parsed.digit));
  },
});

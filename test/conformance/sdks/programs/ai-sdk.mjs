// Vercel's AI SDK: `responses` is its default for OpenAI, `chats` the same provider's other API, and `compatible` the
// provider for any server.
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, isStepCount, Output, streamText, tool } from 'ai';
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

const openai = createOpenAI(server);
const compatible = createOpenAICompatible({
  ...server,
  name: 'hpcserve',
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const ways = { responses: openai, chats: openai.chat, compatible };
const model = ways[way];
const embedding = way === 'compatible' ? compatible.embeddingModel : openai.embedding;
const asked = { prompt: story, maxOutputTokens: story_tokens, temperature: 0, maxRetries: 0 };

await run({
  async chat() {
    const { text, usage, finishReason } = await generateText({ ...asked, model: model(chat_model) });
    assert.ok(text.length > 0);
    assert.equal(usage.outputTokens, story_tokens);
    assert.equal(finishReason, 'length');
    const { statusCode } = await thrownBy(() => generateText({ ...asked, model: model('none') }));
    assert.equal(statusCode, 404);
  },

  async stream() {
    const whole = await generateText({ ...asked, model: model(chat_model) });
    const stream = streamText({ ...asked, model: model(chat_model) });
    let text = '';
    for await (const part of stream.textStream) text += part;
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).outputTokens, story_tokens);
  },

  async abort() {
    const controller = new AbortController();
    let parts = 0;
    const stream = streamText({
      ...asked,
      model: model(chat_model),
      maxOutputTokens: long_tokens,
      abortSignal: controller.signal,
    });
    for await (const _ of stream.textStream) if (++parts === 3) controller.abort();
    assert.ok(parts < long_tokens / 2, `${parts} parts`);
    assert.equal(
      (await generateText({ ...asked, model: model(chat_model) })).usage.outputTokens,
      story_tokens,
    );
  },

  async tools() {
    const weather = tool({
      description: 'The weather of a place',
      inputSchema: z.object({ place: z.enum(places) }),
      strict: true,
      execute: async ({ place }) => `fine ${place}`,
    });
    const { steps } = await generateText({
      ...asked,
      model: model(tools_model),
      maxOutputTokens: bound_tokens,
      tools: { weather },
      toolChoice: { type: 'tool', toolName: 'weather' },
      stopWhen: isStepCount(2),
    });
    assert.equal(steps.length, 2);
    assert.match(steps[0].toolResults[0].output, /^fine (here|there)$/);
  },

  async schema() {
    const { output } = await generateText({
      ...asked,
      model: model(chat_model),
      maxOutputTokens: bound_tokens,
      output: Output.object({ schema: z.object({ digit: z.enum(digits) }) }),
    });
    assert.ok(digits.includes(output.digit));
  },

  async embeddings() {
    const ask = () => embedMany({ model: embedding(chat_model), values: ['one', 'two'], maxRetries: 0 });
    if (engine !== 'native') {
      assert.ok([400, 404].includes((await thrownBy(ask)).statusCode));
      return;
    }
    const { embeddings } = await ask();
    assert.equal(embeddings.length, 2);
    assert.equal(embeddings[0].length, embeddings[1].length);
  },

  async image() {
    const content = [{ type: 'file', mediaType: 'image/png', data: image }];
    await refusesImages(
      () =>
        generateText({
          ...asked,
          prompt: undefined,
          messages: [{ role: 'user', content }],
          model: model(chat_model),
        }),
      ({ statusCode }) => statusCode,
    );
  },
});

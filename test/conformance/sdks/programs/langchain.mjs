// LangChain's client for OpenAI: by `chats`, or by `responses`.
import assert from 'node:assert/strict';
import { HumanMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
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

const { apiKey, baseURL } = server;
const configuration = { baseURL };
const model = (name, more = {}) =>
  new ChatOpenAI({
    model: name,
    apiKey,
    configuration,
    temperature: 0,
    maxTokens: story_tokens,
    maxRetries: 0,
    useResponsesApi: way === 'responses',
    ...more,
  });

const checks = {
  async chat() {
    const { usage_metadata } = await model(chat_model).invoke(story);
    assert.equal(usage_metadata.output_tokens, story_tokens);
    assert.equal((await thrownBy(() => model('none').invoke(story))).status, 404);
  },

  async stream() {
    const whole = await model(chat_model).invoke(story);
    let text = '';
    for await (const chunk of await model(chat_model).stream(story)) text += chunk.text;
    assert.equal(text, whole.text);
  },

  async abort() {
    const controller = new AbortController();
    let chunks = 0;
    await thrownBy(async () => {
      const { signal } = controller;
      for await (const _ of await model(chat_model, { maxTokens: long_tokens }).stream(story, { signal }))
        if (++chunks === 3) controller.abort();
    });
    assert.equal(chunks, 3);
    assert.equal((await model(chat_model).invoke(story)).usage_metadata.output_tokens, story_tokens);
  },

  async tools() {
    const weather = tool(({ place }) => `fine ${place}`, {
      name: 'weather',
      description: 'The weather of a place',
      schema: z.object({ place: z.enum(places) }),
    });
    const question = new HumanMessage('How is the weather?');
    const calling = model(tools_model, { maxTokens: bound_tokens }).bindTools([weather], {
      tool_choice: 'weather',
      strict: true,
    });
    const answer = await calling.invoke([question]);
    const result = await weather.invoke({ ...answer.tool_calls[0], type: 'tool_call' });
    assert.match(result.content, /^fine (here|there)$/);
    const last = await model(tools_model)
      .bindTools([weather], { tool_choice: 'none' })
      .invoke([question, answer, result]);
    assert.ok(last.usage_metadata.output_tokens > 0);
  },

  async schema() {
    const bound = model(chat_model, { maxTokens: bound_tokens }).withStructuredOutput(
      z.object({ digit: z.enum(digits) }),
      { name: 'digits', method: 'jsonSchema' },
    );
    assert.ok(digits.includes((await bound.invoke(story)).digit));
  },

  async image() {
    const content = [{ type: 'image_url', image_url: { url: `data:image/png;base64,${image}` } }];
    await refusesImages(() => model(chat_model).invoke([new HumanMessage({ content })]));
  },
};

const ofChats = {
  async 'choices and logprobs'() {
    const { generations } = await model(chat_model, {
      n: 2,
      temperature: 1,
      logprobs: true,
      topLogprobs: 2,
    }).generate([[new HumanMessage(story)]]);
    assert.equal(generations[0].length, 2);
    const { logprobs } = generations[0][0].message.response_metadata;
    assert.equal(logprobs.content.length, story_tokens);
  },

  async embeddings() {
    const embeddings = new OpenAIEmbeddings({ model: chat_model, apiKey, configuration, maxRetries: 0 });
    const ask = () => embeddings.embedDocuments(['one', 'two']);
    if (engine === 'native') assert.equal((await ask()).length, 2);
    else assert.ok([400, 404].includes((await thrownBy(ask)).status));
  },
};

await run(way === 'chats' ? { ...checks, ...ofChats } : checks);

// LlamaIndex for TypeScript: by `chats`, or by `responses`, where it sends neither temperature nor schema by itself.
import assert from 'node:assert/strict';
import { OpenAI, OpenAIEmbedding, openaiResponses } from '@llamaindex/openai';
import { Document, Settings, tool, VectorStoreIndex } from 'llamaindex';
import { z } from 'zod';
import {
  bound_tokens,
  chat_model,
  digits,
  engine,
  places,
  run,
  server,
  story,
  story_tokens,
  thrownBy,
  tools_model,
  way,
} from './checks.mjs';

// vLLM refuses the `truncation: null` that it sends.
const additionalChatOptions = { temperature: 0, truncation: 'disabled' };
const model = (name, tokens = story_tokens) =>
  way === 'responses'
    ? openaiResponses({
        ...server,
        model: name,
        maxOutputTokens: tokens,
        maxRetries: 0,
        additionalChatOptions,
      })
    : new OpenAI({ ...server, model: name, temperature: 0, maxTokens: tokens, maxRetries: 0 });
const messages = [{ role: 'user', content: story }];

const checks = {
  async chat() {
    const { message } = await model(chat_model).chat({ messages });
    assert.ok(message.content.length > 0);
    await thrownBy(() => model('none').chat({ messages }));
  },

  async stream() {
    const { message } = await model(chat_model).chat({ messages });
    let text = '';
    // By responses it says the last part again with each event behind it.
    const isPart = ({ raw }) => way === 'chats' || raw.type === 'response.output_text.delta';
    for await (const chunk of await model(chat_model).chat({ messages, stream: true }))
      if (isPart(chunk)) text += chunk.delta;
    assert.equal(text, message.content);
  },

  async tools() {
    const weather = tool({
      name: 'weather',
      description: 'The weather of a place',
      parameters: z.object({ place: z.enum(places) }),
      execute: ({ place }) => `fine ${place}`,
    });
    const { message } = await model(tools_model, bound_tokens).chat({
      messages,
      tools: [weather],
      additionalChatOptions: { ...(way === 'responses' && additionalChatOptions), tool_choice: 'required' },
    });
    const [call] = message.options.toolCall;
    const input = typeof call.input === 'string' ? JSON.parse(call.input) : call.input;
    const result = await weather.call(input);
    assert.match(result, /^fine (here|there)$/);
    const told = {
      role: 'user',
      content: result,
      options: { toolResult: { result, isError: false, id: call.id } },
    };
    const next = await model(tools_model).chat({ messages: [...messages, message, told] });
    assert.ok(next.message.content.length > 0);
  },

  async schema() {
    const schema = z.object({ digit: z.enum(digits) });
    const format = { type: 'json_schema', name: 'digits', strict: true, schema: z.toJSONSchema(schema) };
    const { message } = await model(chat_model, bound_tokens).chat({
      messages,
      ...(way === 'responses'
        ? { additionalChatOptions: { ...additionalChatOptions, text: { format } } }
        : { responseFormat: schema }),
    });
    assert.ok(digits.includes(JSON.parse(message.content).digit));
  },
};

const ofChats = {
  async embeddings() {
    const embedding = new OpenAIEmbedding({ ...server, model: chat_model, maxRetries: 0 });
    const ask = () => embedding.getTextEmbeddings(['one', 'two']);
    if (engine === 'native') assert.equal((await ask()).length, 2);
    else await thrownBy(ask);
  },

  async retrieval() {
    Settings.embedModel = new OpenAIEmbedding({ ...server, model: chat_model });
    Settings.llm = model(chat_model);
    const texts = ['Ships float.', 'Stones sink.'];
    const index = await VectorStoreIndex.fromDocuments(texts.map((text) => new Document({ text })));
    const [first] = await index.asRetriever({ similarityTopK: 1 }).retrieve({ query: texts[1] });
    assert.equal(first.node.text, texts[1]);
    const { message } = await index.asQueryEngine().query({ query: 'Why?' });
    assert.ok(message.content.length > 0);
  },
};

await run(way === 'chats' ? { ...checks, ...ofChats } : checks);

/** LangChain's client for OpenAI over the native engine, by chats and by the responses API. */
import { type AIMessage, HumanMessage, type ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { openStage, type Stage } from './support.ts';

const prompt = 'Tell me a story.';
const weather = tool(({ place }: { place: string }) => `fine ${place}`, {
  name: 'weather',
  description: 'The weather of a place',
  schema: z.object({ place: z.enum(['here', 'there']) }),
});

let stage: Stage;
beforeAll(async () => {
  stage = await openStage();
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

describe.each([
  ['chats', false],
  ['responses', true],
])('%s', (_, useResponsesApi) => {
  const model = (name: string, more: object = {}) =>
    new ChatOpenAI({
      model: name,
      apiKey: stage.key,
      configuration: { baseURL: `${stage.url}/v1` },
      temperature: 0,
      maxTokens: 12,
      maxRetries: 0,
      useResponsesApi,
      ...more,
    });

  it('are answered as the official client is, whole and streamed', async () => {
    const { choices } = await stage.client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: prompt }],
      max_tokens: 12,
      temperature: 0,
    });
    const answer = await model('tiny').invoke(prompt);
    expect(answer.text).toBe(choices[0]!.message.content);
    expect(answer.usage_metadata!.output_tokens).toBe(12);
    let streamed = '';
    for await (const chunk of await model('tiny').stream(prompt)) streamed += chunk.text;
    expect(streamed).toBe(choices[0]!.message.content);
  });

  it('call tools, and go on with what they gave', async () => {
    const calling = model('tools', { maxTokens: 80 }).bindTools([weather], { tool_choice: 'weather' });
    const asked = new HumanMessage('How is the weather?');
    const answer = (await calling.invoke([asked])) as AIMessage;
    const [call] = answer.tool_calls!;
    const result = (await weather.invoke({ ...call!, type: 'tool_call' })) as ToolMessage;
    expect(result.content).toMatch(/^fine (here|there)$/);
    const last = await model('tools')
      .bindTools([weather], { tool_choice: 'none' })
      .invoke([asked, answer, result]);
    const alone = await model('tools').invoke([asked]);
    expect(last.usage_metadata!.input_tokens).toBeGreaterThan(alone.usage_metadata!.input_tokens);
  });

  it('keep to a schema', async () => {
    const bound = model('tiny', { maxTokens: 60 }).withStructuredOutput(
      z.object({ digit: z.enum(['1', '2']) }),
      { name: 'digits', method: 'jsonSchema' },
    );
    expect(['1', '2']).toContain((await bound.invoke(prompt)).digit);
  });
});

it('embeddings', async () => {
  const embeddings = new OpenAIEmbeddings({
    model: 'tiny',
    apiKey: stage.key,
    configuration: { baseURL: `${stage.url}/v1` },
  });
  expect(await embeddings.embedDocuments(['a', 'b'])).toHaveLength(2);
});

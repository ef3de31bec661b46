/** Vercel's AI SDK over the native engine: its default, which is the responses API, and chats by either provider. */
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, type LanguageModel, Output, stepCountIs, streamText, tool } from 'ai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { openStage, type Stage } from './support.ts';

const prompt = 'Tell me a story.';
const weather = tool({
  description: 'The weather of a place',
  inputSchema: z.object({ place: z.enum(['here', 'there']) }),
  execute: async ({ place }) => `fine ${place}`,
});

let stage: Stage;
let openai: ReturnType<typeof createOpenAI>;
let compatible: ReturnType<typeof createOpenAICompatible>;
beforeAll(async () => {
  stage = await openStage();
  const at = { baseURL: `${stage.url}/v1`, apiKey: stage.key };
  openai = createOpenAI(at);
  compatible = createOpenAICompatible({
    ...at,
    name: 'hpcserve',
    supportsStructuredOutputs: true,
    includeUsage: true,
  });
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

const kinds: [string, (name: string) => LanguageModel][] = [
  ['responses', (name) => openai(name)],
  ['chats', (name) => openai.chat(name)],
  ['chats of any server', (name) => compatible(name)],
];

describe.each(kinds)('%s', (_, model) => {
  const asked = { maxOutputTokens: 12, temperature: 0, maxRetries: 0 };

  it('are answered as the official client is, whole and streamed', async () => {
    const { choices } = await stage.client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: prompt }],
      max_tokens: 12,
      temperature: 0,
    });
    const text = choices[0]!.message.content;
    const whole = await generateText({ ...asked, model: model('tiny'), prompt });
    expect(whole.text).toBe(text);
    expect(whole.finishReason).toBe('length');
    expect(whole.usage.outputTokens).toBe(12);
    const stream = streamText({ ...asked, model: model('tiny'), prompt });
    let streamed = '';
    for await (const part of stream.textStream) streamed += part;
    expect(streamed).toBe(text);
    expect((await stream.usage).outputTokens).toBe(12);
  });

  it('call tools, and go on with what they gave', async () => {
    const { steps } = await generateText({
      ...asked,
      model: model('tools'),
      prompt: 'How is the weather?',
      maxOutputTokens: 80,
      tools: { weather },
      toolChoice: { type: 'tool', toolName: 'weather' },
      stopWhen: stepCountIs(2),
    });
    expect(steps).toHaveLength(2);
    expect(steps[0]!.toolResults[0]!.output).toMatch(/^fine (here|there)$/);
  });

  it('keep to a schema', async () => {
    const { output } = await generateText({
      ...asked,
      model: model('tiny'),
      prompt,
      maxOutputTokens: 60,
      output: Output.object({ schema: z.object({ digit: z.enum(['1', '2']) }) }),
    });
    expect(['1', '2']).toContain(output.digit);
  });

  it('are refused as errors of the SDK', async () => {
    await expect(generateText({ ...asked, model: model('none'), prompt })).rejects.toMatchObject({
      name: 'AI_APICallError',
      statusCode: 404,
    });
  });
});

it('reasoning of a model comes apart from its text, in chats: of responses this client shows summaries alone', async () => {
  const { reasoningText, usage } = await generateText({
    model: compatible('org/thinker'),
    prompt,
    maxOutputTokens: 40,
    maxRetries: 0,
    providerOptions: { hpcserve: { reasoningEffort: 'low' } },
  });
  expect(reasoningText!.length).toBeGreaterThan(0);
  expect(usage.outputTokenDetails.reasoningTokens).toBeGreaterThan(0);
});

it('embeddings', async () => {
  const { embeddings } = await embedMany({ model: openai.embedding('tiny'), values: ['a', 'b'] });
  expect(embeddings.map((one) => one.length)).toEqual([embeddings[0]!.length, embeddings[0]!.length]);
});

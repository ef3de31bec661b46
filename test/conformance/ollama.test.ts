/** Ollama's API over the native engine, as its official client asks and reads it. */
import { Ollama } from 'ollama';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { context_tokens, openStage, type Stage } from './support.ts';

const messages = [{ role: 'user', content: 'Tell me a story.' }];
const options = { temperature: 0, num_predict: 12, num_ctx: 2048 };

let stage: Stage;
let client: Ollama;
beforeAll(async () => {
  stage = await openStage();
  client = new Ollama({ host: stage.url, headers: { Authorization: `Bearer ${stage.key}` } });
}, 60_000);
afterAll(() => stage?.[Symbol.asyncDispose]());

it('chats, whole and streamed, as OpenAI’s clients are answered', async () => {
  const { choices, usage } = await stage.client.chat.completions.create({
    model: 'tiny',
    messages: [{ role: 'user', content: 'Tell me a story.' }],
    max_tokens: 12,
    temperature: 0,
  });
  const text = choices[0]!.message.content;
  const whole = await client.chat({ model: 'tiny', messages, options });
  expect(whole).toMatchObject({
    model: 'tiny',
    message: { role: 'assistant', content: text },
    done: true,
    done_reason: 'length',
    prompt_eval_count: usage!.prompt_tokens,
    eval_count: 12,
  });
  const lines = [];
  for await (const line of await client.chat({ model: 'tiny', messages, options, stream: true }))
    lines.push(line);
  expect(lines.map(({ message }) => message.content).join('')).toBe(text);
  expect(lines.map(({ done }) => done)).toEqual(lines.map((_, at) => at === lines.length - 1));
  expect(lines.at(-1)).toMatchObject({ done_reason: 'length', eval_count: 12 });
});

it('generates from a prompt, with its template or without', async () => {
  const prompt = 'Tell me a story.';
  const templated = await client.generate({ model: 'tiny', prompt, options });
  expect(templated.response).toBe((await client.chat({ model: 'tiny', messages, options })).message.content);
  const raw = await client.generate({ model: 'tiny', prompt, raw: true, options });
  const { choices } = await stage.client.completions.create({
    model: 'tiny',
    prompt,
    max_tokens: 12,
    temperature: 0,
  });
  expect(raw.response).toBe(choices[0]!.text);
});

it('calls functions, and takes their results', async () => {
  const tool = {
    type: 'function',
    function: {
      name: 'weather',
      description: 'The weather of a place',
      parameters: {
        type: 'object',
        properties: { place: { type: 'string', enum: ['here'] } },
        required: ['place'],
      },
    },
  };
  // Ollama leaves it to the model whether it calls: a call that was made goes on.
  const called = {
    role: 'assistant',
    content: '',
    tool_calls: [{ function: { name: 'weather', arguments: { place: 'here' } } }],
  };
  const answer = await client.chat({
    model: 'tools',
    tools: [tool],
    options,
    messages: [...messages, called, { role: 'tool', tool_name: 'weather', content: 'Fine.' }],
  });
  expect(answer.done).toBe(true);
});

it('keeps to a schema', async () => {
  const format = { type: 'object', properties: { digit: { enum: ['1', '2'] } }, required: ['digit'] };
  const answer = await client.chat({
    model: 'tiny',
    messages,
    format,
    options: { ...options, num_predict: 60 },
  });
  expect(['1', '2']).toContain((JSON.parse(answer.message.content) as { digit: string }).digit);
});

it('thinks apart from its answer, or not at all', async () => {
  const asked = { model: 'org/thinker', messages, options: { ...options, num_predict: 40 } };
  const thought = await client.chat({ ...asked, think: 'low' });
  expect(thought.message.thinking!.length).toBeGreaterThan(0);
  expect((await client.chat({ ...asked, think: false })).message.thinking).toBeUndefined();
});

it('refuses in its form what is not here', async () => {
  await expect(client.chat({ model: 'none', messages })).rejects.toMatchObject({ status_code: 404 });
  await expect(client.generate({ model: 'tiny', prompt: 'x', suffix: 'y' })).rejects.toThrow(/suffix/);
  const refused = await stage.post('/api/chat', { model: 'tiny', messages, options: { mirostat: 2 } });
  expect([refused.status, await refused.json()]).toEqual([
    400,
    { error: expect.stringContaining('mirostat') },
  ]);
});

it('models are listed and shown, as far as a gateway knows them', async () => {
  const { models } = await client.list();
  expect(models.map(({ name }) => name).sort()).toEqual([
    'foreign',
    'gpt-tiny',
    'org/thinker',
    'tiny',
    'tools',
  ]);
  expect(models[0]!.digest).toMatch(/^[0-9a-f]{64}$/);
  expect((await client.ps()).models.map(({ name }) => name)).toContain('tiny');
  const shown = await client.show({ model: 'tiny' });
  expect(shown.capabilities).toContain('completion');
  expect(shown.model_info).toMatchObject({ 'hpcserve.context_length': context_tokens });
  expect((await client.version()).version).toMatch(/^\d+\.\d+\.\d+$/);
  await expect(client.show({ model: 'none' })).rejects.toMatchObject({ status_code: 404 });
  await expect(client.show({ model: 'none' })).rejects.toThrow(/none/);
  const stranger = new Ollama({ host: stage.url });
  await expect(stranger.list()).rejects.toMatchObject({ status_code: 401 });
  expect((await stage.fetch('/api/tags', { method: 'POST' })).headers.get('allow')).toContain('GET');
});

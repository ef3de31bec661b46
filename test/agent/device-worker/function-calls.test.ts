/** A real worker whose model calls tools in the form of Qwen3-Coder. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { model } from '../engine/support.ts';
import { WorkerHarness } from './support.ts';

/** Its template, as far as it says how calls are written. */
const template = `{%- for tool in tools %}{{- tool.function.name ~ '\\n' }}{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}`;

const worker = new WorkerHarness();
beforeAll(async () => {
  const chat_template_file = join(worker.folder, 'coder.jinja');
  writeFileSync(chat_template_file, template);
  await worker.configure();
  // The same seed gives the same answer again, though its prompt is in the cache then, on every CPU.
  await worker.load({
    name: 'm',
    model_path: await model('tiny-qwen3', 'Q8_0'),
    chat_template_file,
    batch_invariant: true,
  });
}, 60_000);
afterAll(() => worker.close());

const parameters = {
  type: 'object',
  properties: {
    unit: { enum: ['7', 'days'] },
    count: { type: 'integer' },
    where: { type: 'object', properties: { x: { type: 'boolean' } }, required: ['x'] },
  },
  required: ['unit', 'count', 'where'],
  additionalProperties: false,
};
const order = {
  model: 'm',
  messages: [{ role: 'user' as const, content: 'When?' }],
  tools: [{ type: 'function' as const, function: { name: 'wait', strict: true, parameters } }],
  tool_choice: 'required' as const,
  parallel_tool_calls: false,
  max_tokens: 400,
};

function expectValid(text: string): void {
  const { unit, count, where, ...more } = JSON.parse(text);
  expect(['7', 'days']).toContain(unit);
  expect(Number.isInteger(count), text).toBe(true);
  expect(typeof where.x).toBe('boolean');
  expect(more).toEqual({});
}

it('a call that must be made has arguments of its schema, whole and as a stream', async () => {
  for (let seed = 1; seed <= 4; seed++) {
    const { choices } = await worker.client.chat.completions.create({ ...order, seed });
    expect(choices[0]!.finish_reason).toBe('tool_calls');
    const [call] = choices[0]!.message.tool_calls!;
    expect(call).toMatchObject({ type: 'function', function: { name: 'wait' } });
    const whole = (call as { function: { arguments: string } }).function.arguments;
    expectValid(whole);
    const pieces: string[] = [];
    for await (const { choices: came } of await worker.client.chat.completions.create({
      ...order,
      seed,
      stream: true,
    }))
      for (const delta of came[0]?.delta.tool_calls ?? []) pieces.push(delta.function?.arguments ?? '');
    expect(pieces.join('')).toBe(whole);
    expect(pieces.length).toBeGreaterThan(2);
  }
});

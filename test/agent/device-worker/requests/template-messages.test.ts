/** What chat templates of several families get of OpenAI's messages. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { BodyReader, type Json } from '../../../../agent/device-worker/requests/body-reader.ts';
import { readRenderedChat } from '../../../../agent/device-worker/requests/chat-prompt.ts';
import { ServedModel } from '../../../../agent/device-worker/served-model.ts';
import { model } from '../../engine/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-template-'));
const path = await model('tiny-qwen3', 'Q8_0');
afterAll(() => rmSync(folder, { recursive: true }));

/** The prompt that a model with this template reads. */
function rendered(template: string, body: Json): string {
  const chat_template_file = join(folder, 'chat.jinja');
  writeFileSync(chat_template_file, template);
  const served = new ServedModel({
    name: 'm',
    aliases: [],
    model_path: path,
    chat_template_file,
    context_tokens: 1024,
    max_sequences: 1,
    prefill_chunk_tokens: 128,
    kv_tokens: 1024,
    kv_type: 'f16',
  });
  served.openText();
  try {
    return readRenderedChat(new BodyReader(body), served).text;
  } finally {
    served.closeText();
  }
}

const instructions = {
  messages: [
    { role: 'developer', content: 'Answer in verse.' },
    { role: 'user', content: 'Hello' },
  ],
};

test('instructions of a developer are those of a system where a template knows four roles alone', () => {
  const qwen = `{%- for m in messages %}{%- if m.role in ['user', 'system', 'assistant'] %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}`;
  expect(rendered(qwen, instructions)).toBe(
    '<|im_start|>system\nAnswer in verse.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n',
  );
});

test('a template that names developers gets them', () => {
  const own =
    "{%- for m in messages %}{{- m.role + (' (developer)' if m.role == 'developer' else '') + ' ' }}{%- endfor %}";
  expect(rendered(own, instructions)).toBe('developer (developer) user ');
});

/** As Mistral-7B-Instruct-v0.3 and its successors have it, for calls and results. */
const mistral = `{%- for m in messages %}
{%- if m.tool_calls is defined %}{%- for call in m.tool_calls %}
{%- if not call.id is defined or call.id|length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- '[TOOL_CALLS]' + call.function.name + ' ' + call.id }}{%- endfor %}
{%- elif m.role == 'tool' %}
{%- if not m.tool_call_id is defined or m.tool_call_id|length != 9 %}{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- '[TOOL_RESULTS]' + m.tool_call_id + ' ' + m.content }}
{%- else %}{{- '[INST]' + m.content + '[/INST]' }}{%- endif %}{%- endfor %}`;

/** A conversation that went through two calls of tools with these ids. */
function called(...ids: [string, string]): Json {
  const call = (id: string) => ({ id, type: 'function', function: { name: 'add', arguments: '{"a": 1}' } });
  return {
    messages: [
      { role: 'user', content: 'Add' },
      { role: 'assistant', content: null, tool_calls: ids.map(call) },
      ...ids.map((id, index) => ({ role: 'tool', tool_call_id: id, content: String(index) })),
    ],
  };
}

test("ids of calls have the nine characters that Mistral's templates ask for, and results keep to their calls", () => {
  const ids = ['call_0123456789abcdef01234567', 'call_0123456789abcdef01234568'] as const;
  const text = rendered(mistral, called(...ids));
  const found = /^\[INST\]Add\[\/INST\]\[TOOL_CALLS\]add (\w{9})\[TOOL_CALLS\]add (\w{9})(.*)$/s.exec(text);
  const [, first, second, results] = found ?? [];
  expect(first).toMatch(/^[a-zA-Z0-9]{9}$/);
  expect(second).not.toBe(first);
  expect(results).toBe(`[TOOL_RESULTS]${first} 0[TOOL_RESULTS]${second} 1`);
  expect(rendered(mistral, called(...ids))).toBe(text);
});

test('ids that a template takes as they are stay', () => {
  expect(rendered(mistral, called('abcDEF123', 'abcDEF124'))).toContain('[TOOL_RESULTS]abcDEF123 0');
  const free = "{%- for m in messages %}{{- m.tool_call_id or '' }}{%- endfor %}";
  expect(rendered(free, called('call_1', 'call_2'))).toBe('call_1call_2');
});

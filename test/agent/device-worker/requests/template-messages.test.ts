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

/** Files with one template for chats and another one for chats with tools, as Mistral's have them. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { BodyReader, type Json } from '../../../../agent/device-worker/requests/body-reader.ts';
import { readRenderedChat } from '../../../../agent/device-worker/requests/chat-prompt.ts';
import { ServedModel } from '../../../../agent/device-worker/served-model.ts';
import { readGguf } from '../../../../native/formats/gguf-reader.ts';
import { text } from '../../../../native/formats/gguf-values.ts';
import { layoutGguf } from '../../../../native/formats/gguf-writer.ts';
import { writeGguf } from '../../../native/formats/support.ts';
import { model } from '../../engine/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'hpcserve-template-'));
afterAll(() => rmSync(folder, { recursive: true }));

const plain = "{%- for m in messages %}{{- 'plain ' + m.content }}{%- endfor %}";
const withTools = `{%- for tool in tools %}{{- '<tool_call> ' + tool.function.name + ' ' }}{%- endfor %}
{%- for m in messages %}{{- m.content }}{%- endfor %}`;

/** A file with these templates; weights are zero. */
async function twoTemplates(name: string, ofTools: string): Promise<string> {
  const path = join(folder, name);
  const file = readGguf(await model('tiny-qwen3', 'Q8_0'));
  file.metadata.set('tokenizer.chat_template', text(plain));
  file.metadata.set('tokenizer.chat_template.tool_use', text(ofTools));
  const layout = layoutGguf(file.metadata, file.tensors);
  await writeGguf(path, layout, (tensor) => new Uint8Array(tensor.size_bytes));
  return path;
}

const two = await twoTemplates('two.gguf', withTools);
const unread = await twoTemplates('unread.gguf', '{{ tools }} [A form that nobody reads]');

function rendered(model_path: string, body: Json, chat_template_file?: string): string {
  const served = new ServedModel({
    name: 'm',
    aliases: [],
    model_path,
    context_tokens: 1024,
    max_sequences: 1,
    prefill_chunk_tokens: 128,
    kv_tokens: 1024,
    kv_type: 'f16',
  });
  if (chat_template_file !== undefined) served.config.chat_template_file = chat_template_file;
  served.openText();
  try {
    return readRenderedChat(new BodyReader(body), served).text;
  } finally {
    served.closeText();
  }
}

const messages = [{ role: 'user', content: 'Hello' }];
const tools = [{ type: 'function', function: { name: 'add' } }];

test('the template for tools is used where tools are given, and only there', () => {
  expect(rendered(two, { messages, tools })).toBe('<tool_call> add Hello');
  expect(rendered(two, { messages })).toBe('plain Hello');
  expect(rendered(two, { messages, tools, tool_choice: 'none' })).toBe('plain Hello');
});

test('calls in a form that nobody reads are refused before they are asked for', () => {
  expect(() => rendered(unread, { messages, tools })).toThrow(/has no tools/);
  expect(rendered(unread, { messages })).toBe('plain Hello');
});

test('a template that was chosen stands for both', () => {
  const chosen = join(folder, 'chosen.jinja');
  writeFileSync(chosen, `chosen {{ tools | length if tools else 0 }} <tool_call>`);
  expect(rendered(two, { messages, tools }, chosen)).toBe('chosen 1 <tool_call>');
  expect(rendered(two, { messages }, chosen)).toBe('chosen 0 <tool_call>');
});

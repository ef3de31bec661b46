import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { unitReasons } from '../../../agent/node/reasons.ts';
import { text } from '../../../native/formats/gguf-values.ts';
import { layoutGguf } from '../../../native/formats/gguf-writer.ts';
import { scratchFolder } from '../../mesh/support.ts';
import { writeGguf } from '../../native/formats/support.ts';
import { unitOf } from '../support.ts';

const thinking = "{{ messages[0].content.split('</think>')[-1] }}";

test('whether a model reasons: as model.yaml says, else as its template does, wherever that stands', async () => {
  await using scratch = await scratchFolder();
  const file = async (name: string, content: string): Promise<string> => {
    await mkdir(join(scratch.path, name, '..'), { recursive: true });
    await writeFile(join(scratch.path, name), content);
    return join(scratch.path, name);
  };
  const gguf = async (name: string, template: string): Promise<string> => {
    const path = join(scratch.path, name);
    const metadata = new Map([
      ['general.architecture', text('llama')],
      ['tokenizer.chat_template', text(template)],
    ]);
    await writeGguf(path, layoutGguf(metadata, []), () => new Uint8Array());
    return path;
  };
  const chat_template = await file('t.jinja', thinking);
  await file('folder/tokenizer_config.json', JSON.stringify({ chat_template: thinking }));
  await file('plain/tokenizer_config.json', '{}');
  await file('newer/chat_template.jinja', thinking);
  const of = (model_path: string, model = {}) => unitReasons(unitOf({ name: 'm', ...model }, { model_path }));

  expect(of(join(scratch.path, 'folder'))).toBe(true);
  expect(of(join(scratch.path, 'newer'))).toBe(true);
  expect(of(join(scratch.path, 'plain'))).toBe(false);
  expect(of(await gguf('a.gguf', thinking))).toBe(true);
  const plain = await gguf('b.gguf', '{{ messages }}');
  expect(of(plain)).toBe(false);
  expect(of(plain, { chat_template })).toBe(true);
  expect(of(plain, { reasoning: true })).toBe(true);
  expect(of(join(scratch.path, 'folder'), { reasoning: false })).toBe(false);
});

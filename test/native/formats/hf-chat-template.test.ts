import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { readChatTemplate } from '../../../native/formats/hf-chat-template.ts';
import { scratchFolder } from '../../mesh/support.ts';

test.each<[string, Record<string, string>, string | undefined]>([
  [
    'in a file of its own',
    { 'chat_template.jinja': 'a', 'tokenizer_config.json': '{"chat_template":"b"}' },
    'a',
  ],
  ['of a processor', { 'chat_template.json': '{"chat_template":"c"}' }, 'c'],
  ['of the tokenizer', { 'tokenizer_config.json': '{"chat_template":"b","other":1}' }, 'b'],
  [
    'one of several',
    {
      'tokenizer_config.json':
        '{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]}',
    },
    'd\nt',
  ],
  ['that is not there', { 'tokenizer_config.json': '{}' }, undefined],
  ['in a file that is broken', { 'tokenizer_config.json': '{' }, undefined],
  ['of a folder without a tokenizer', {}, undefined],
])('a template %s', async (_, files, expected) => {
  await using scratch = await scratchFolder();
  const folder = join(scratch.path, 'm');
  await mkdir(folder);
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
  expect(readChatTemplate(folder)).toBe(expected);
});

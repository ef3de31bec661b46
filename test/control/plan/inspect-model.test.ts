/** What a plan learns of how a model writes its answers, from the files of a folder. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { inspectModel } from '../../../control/plan/inspect-model.ts';
import { modelSchema } from '../../../spec/model-yaml.ts';
import { siteSchema } from '../../../spec/site.ts';
import { hollowLlama } from '../../cli/hollow-model.ts';
import { scratchFolder } from '../../mesh/support.ts';

test('formats go by the template that the model is served with', async () => {
  await using scratch = await scratchFolder();
  const folder = join(scratch.path, 'renamed');
  hollowLlama(folder, { hidden: 64, ff: 128, layers: 1, heads: 2, kv: 1 });
  const site = siteSchema.parse({ name: 's', kind: 'local' });
  const formatsOf = async (model: object = {}) => {
    const spec = modelSchema.parse({ name: 'm', source: folder, ...model });
    const { placement } = await inspectModel(spec, scratch.path, site, join(scratch.path, 's.yaml'), {});
    return [placement.formats?.tools?.format, placement.formats?.reasoning?.format];
  };
  expect(await formatsOf()).toEqual([undefined, undefined]);
  const template = '<|start_header_id|>{% if message.role == "ipython" %}{% endif %}';
  await writeFile(join(folder, 'chat_template.jinja'), template);
  expect(await formatsOf()).toEqual(['Llama 3 JSON', undefined]);
  const other = join(scratch.path, 'other.jinja');
  await writeFile(other, '<tool_call>{% if add_generation_prompt %}<think>{% endif %}');
  expect(await formatsOf({ chat_template: other })).toEqual(['Hermes', 'DeepSeek R1']);
});

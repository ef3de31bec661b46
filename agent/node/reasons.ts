import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { readGguf } from '../../native/formats/gguf-reader.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { templateReasons } from '../text/output/reasoning.ts';

/** Whether a unit's model reasons before it answers: as model.yaml says, else as its chat template does. */
export function unitReasons({ model, model_path }: UnitSpec): boolean {
  if (model.reasoning !== undefined) return model.reasoning;
  if (model.chat_template !== undefined) return templateReasons(readFileSync(model.chat_template, 'utf8'));
  if (!statSync(model_path).isDirectory()) return fileReasons(model_path);
  return ['chat_template.jinja', 'tokenizer_config.json']
    .map((name) => join(model_path, name))
    .some((path) => existsSync(path) && templateReasons(readFileSync(path, 'utf8')));
}

/** What a command serves need not be GGUF. */
function fileReasons(path: string): boolean {
  if (!path.endsWith('.gguf')) return false;
  const template = readGguf(path, { keep_array_items: 0 }).metadata.get('tokenizer.chat_template');
  return template?.type === 'string' && templateReasons(String(template.value));
}

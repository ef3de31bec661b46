/** The chat template of a Hugging Face folder, wherever its version of `transformers` has put it. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { translate } from './file-window.ts';

const named = z.array(z.object({ name: z.string(), template: z.string() }));
const fileSchema = z.looseObject({ chat_template: z.union([z.string(), named]).optional() });

/**
 * Jinja; of several templates, all of them. Undefined where there is none, or the files are not as they should be: who
 * serves the model says so.
 * @throws HpcserveError E_MODEL_… where a file cannot be read
 */
export function readChatTemplate(folder: string): string | undefined {
  const jinja = join(folder, 'chat_template.jinja');
  if (existsSync(jinja)) return translate(jinja, () => readFileSync(jinja, 'utf8'));
  for (const name of ['chat_template.json', 'tokenizer_config.json']) {
    const file = join(folder, name);
    const text = existsSync(file) ? translate(file, () => readFileSync(file, 'utf8')) : undefined;
    const template = text === undefined ? undefined : templateIn(text);
    if (template !== undefined) return template;
  }
  return undefined;
}

function templateIn(text: string): string | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  const template = fileSchema.safeParse(value).data?.chat_template;
  return Array.isArray(template) ? template.map((each) => each.template).join('\n') : template;
}

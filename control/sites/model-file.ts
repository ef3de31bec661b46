/** A model.yaml as a person wrote it, on its way to several sites. */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, isAbsolute, resolve } from 'node:path';
import { parseDocument } from 'yaml';

export type YamlMapping = Record<string, unknown>;

/** What a person wrote, without defaults. */
export function readAsWritten(path: string): YamlMapping {
  return parseDocument(readFileSync(path, 'utf8'), { merge: true }).toJS({
    maxAliasCount: 100,
  }) as YamlMapping;
}

/** For a file that lies elsewhere: what lies beside the one that it was made from is named by its whole path. */
export function sourcesFromHere(path: string, text: string): string {
  const document = parseDocument(text, { merge: true });
  const folder = dirname(path);
  const { models } = document.toJS() as {
    models: { source: string; chat_template?: string; environment_files?: string[] }[];
  };
  for (const [at, { source, chat_template, environment_files = [] }] of models.entries()) {
    // What is not beside it is looked for elsewhere: in models_dir, in a cache, under an alias.
    const beside = !isAbsolute(source) && existsSync(resolve(folder, source));
    if (beside) document.setIn(['models', at, 'source'], resolve(folder, source));
    if (chat_template !== undefined)
      document.setIn(['models', at, 'chat_template'], resolve(folder, chat_template));
    for (const [index, file] of environment_files.entries())
      document.setIn(['models', at, 'environment_files', index], resolve(folder, file));
  }
  return document.toString();
}

import { stringFormats } from './formats.ts';
import { type SchemaPath, shortened } from './schema-error.ts';
import { annotations, keywordsOfType, type SchemaObject, unsupportedKeywords } from './schema-keywords.ts';

/** Said of each part that is left out. */
export const leftOut = 'cannot constrain the answer and is left out';

/**
 * A schema without what no grammar can promise, for requests that do not ask for strictness: the answer is bound to the
 * rest. Its parts are not looked into.
 *
 * @param warnings takes the name of each keyword that is left out
 */
export function relaxSchema(schema: SchemaObject, path: SchemaPath, warnings: string[]): SchemaObject {
  const kept: SchemaObject = {};
  const leave = (keyword: string): void => {
    warnings.push(`${[...path, keyword].map(shortened).join('.')} ${leftOut}`);
  };
  const listsValues = schema.enum !== undefined || schema.const !== undefined;
  for (const [keyword, value] of Object.entries(schema)) {
    const type = Object.hasOwn(keywordsOfType, keyword) ? keywordsOfType[keyword] : undefined;
    const silent = annotations.has(keyword) || keyword.startsWith('x-');
    const asksNothing = value === false && unsupportedKeywords.has(keyword);
    if (silent || asksNothing || keyword === 'nullable') continue;
    if (type === undefined || (type !== 'any' && listsValues) || isUnknownFormat(keyword, value))
      leave(keyword);
    else kept[keyword] = value;
  }
  relaxTexts(kept, leave);
  // Of OpenAPI 3.0.
  return schema.nullable === true ? { anyOf: [kept, { type: 'null' }] } : kept;
}

function isUnknownFormat(keyword: string, value: unknown): boolean {
  return keyword === 'format' && !(typeof value === 'string' && Object.hasOwn(stringFormats, value));
}

/** One of pattern, format and length: the first says most of what a text is to be. */
function relaxTexts(schema: SchemaObject, leave: (keyword: string) => void): void {
  const groups = [['pattern'], ['format'], ['minLength', 'maxLength']];
  const said = groups.filter((group) => group.some((keyword) => schema[keyword] !== undefined));
  for (const keyword of said.slice(1).flat()) {
    if (schema[keyword] === undefined) continue;
    leave(keyword);
    delete schema[keyword];
  }
}

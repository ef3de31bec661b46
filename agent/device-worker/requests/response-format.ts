import type { AddForm } from '../../text/grammar/gbnf.ts';
import { anyObject, validUnder } from '../../text/grammar/json-grammar.ts';
import type { BodyReader } from './body-reader.ts';

/** @returns what a text of the answer must be; undefined where it is plain. */
export function readResponseFormat(body: BodyReader): AddForm | undefined {
  const format = body.object('response_format');
  if (!format) return undefined;
  const type = format.oneOf('type', ['text', 'json_object', 'json_schema']);
  if (type === undefined) return format.refuse('type', 'is required');
  // Servers before OpenAI had schemas took them here.
  const bare = type === 'text' ? undefined : format.raw('schema');
  const described = type === 'json_schema' ? format.object('json_schema') : undefined;
  if (bare !== undefined) {
    if (described) format.refuse('schema', 'cannot be combined with `response_format.json_schema`');
    format.ignore('name', 'description', 'strict');
    format.finish();
    return validUnder(bare, ['response_format', 'schema'], body.warnings);
  }
  if (type !== 'json_schema') {
    format.finish();
    return type === 'text' ? undefined : anyObject;
  }
  if (!described) return format.refuse('json_schema', 'is required where `type` is json_schema');
  described.ignore('name', 'description');
  const strict = described.boolean('strict') ?? false;
  const schema = described.raw('schema');
  described.finish();
  format.finish();
  if (schema === undefined) return described.refuse('schema', 'is required');
  const path = ['response_format', 'json_schema', 'schema'];
  return validUnder(schema, path, strict ? undefined : body.warnings);
}

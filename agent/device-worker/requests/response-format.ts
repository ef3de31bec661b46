import { jsonObjectGrammar, jsonSchemaGrammar } from '../../text/grammar/json-grammar.ts';
import type { BodyReader } from './body-reader.ts';

/** @returns GBNF that the answer must follow; undefined for plain text. */
export function readResponseFormat(body: BodyReader): string | undefined {
  const format = body.object('response_format');
  if (!format) return undefined;
  const type = format.oneOf('type', ['text', 'json_object', 'json_schema']);
  if (type === undefined) return format.refuse('type', 'is required');
  if (type !== 'json_schema') {
    format.finish();
    return type === 'text' ? undefined : jsonObjectGrammar();
  }
  const described = format.object('json_schema');
  if (!described) return format.refuse('json_schema', 'is required where `type` is json_schema');
  described.ignore('name', 'description', 'strict');
  const schema = described.raw('schema');
  described.finish();
  format.finish();
  if (schema === undefined) return described.refuse('schema', 'is required');
  return jsonSchemaGrammar(schema, ['response_format', 'json_schema', 'schema']);
}

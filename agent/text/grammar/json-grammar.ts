import { GrammarBuilder } from './gbnf.ts';
import { addJsonRules } from './json-rules.ts';
import { SchemaCompiler } from './schema-compiler.ts';
import { refuseSchema, type SchemaPath } from './schema-error.ts';
import type { JsonValue } from './schema-keywords.ts';

/** Largest schema that is read. Lower: less work for hostile requests; higher: larger schemas. */
const schema_bytes_max = 256 * 1024;

/** GBNF of any JSON object: `response_format: {type: "json_object"}`. */
export function jsonObjectGrammar(): string {
  const builder = new GrammarBuilder();
  const rules = addJsonRules(builder);
  return builder.toGbnf(`${rules.space} ${rules.object}`);
}

/**
 * GBNF of the values that are valid under a schema.
 * @param path where the schema stands in the request, for messages
 * @throws HpcserveError E_REQUEST_SCHEMA, naming the keyword that cannot be expressed
 */
export function jsonSchemaGrammar(schema: JsonValue, path: SchemaPath): string {
  const bytes = Buffer.byteLength(JSON.stringify(schema));
  if (bytes > schema_bytes_max)
    refuseSchema(path, `a schema of ${bytes} bytes is over the limit of ${schema_bytes_max} bytes`);
  const builder = new GrammarBuilder();
  const rules = addJsonRules(builder);
  const root = new SchemaCompiler(builder, rules, schema, path).compile();
  return builder.toGbnf(`${rules.space} ${root}`);
}

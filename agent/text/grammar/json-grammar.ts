import { either, GrammarBuilder, literal } from './gbnf.ts';
import { addJsonRules } from './json-rules.ts';
import { patternToGrammar, plainCharacters } from './pattern.ts';
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
 * @param warnings takes what cannot be expressed and is left out; absent: that is refused
 * @throws HpcserveError E_REQUEST_SCHEMA, naming the keyword that cannot be expressed
 */
export function jsonSchemaGrammar(schema: JsonValue, path: SchemaPath, warnings?: string[]): string {
  const bytes = Buffer.byteLength(JSON.stringify(schema));
  if (bytes > schema_bytes_max)
    refuseSchema(path, `a schema of ${bytes} bytes is over the limit of ${schema_bytes_max} bytes`);
  const builder = new GrammarBuilder();
  const rules = addJsonRules(builder);
  const root = new SchemaCompiler(builder, rules, schema, path, warnings).compile();
  return builder.toGbnf(`${rules.space} ${root}`);
}

/** GBNF of one of these texts. */
export function choiceGrammar(choices: readonly string[]): string {
  const builder = new GrammarBuilder();
  for (const choice of choices) builder.steps.spendText(choice);
  return builder.toGbnf(either(choices.map(literal)));
}

/** GBNF of the texts that a regular expression matches whole. @throws HpcserveError E_REQUEST_SCHEMA */
export function patternGrammar(pattern: string): string {
  const builder = new GrammarBuilder();
  return builder.toGbnf(patternToGrammar(builder, pattern, plainCharacters));
}

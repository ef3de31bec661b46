import { type AddForm, either, GrammarBuilder, grammarOf, literal } from './gbnf.ts';
import { addJsonRules } from './json-rules.ts';
import { patternToGrammar, plainCharacters } from './pattern.ts';
import { SchemaCompiler } from './schema-compiler.ts';
import { refuseSchema, type SchemaPath } from './schema-error.ts';
import type { JsonValue } from './schema-keywords.ts';

/** Largest schema that is read. Lower: less work for hostile requests; higher: larger schemas. */
const schema_bytes_max = 256 * 1024;

/**
 * Any JSON object: `response_format: {type: "json_object"}`. No white space stands before it, nor below: clients that
 * read a stream as it comes (openai before 6) take that for no JSON.
 */
export const anyObject: AddForm = (builder) => addJsonRules(builder).object;

/**
 * The values that are valid under a schema.
 * @param path where the schema stands in the request, for messages
 * @param warnings takes what cannot be expressed and is left out; absent: that is refused
 * @throws when it is added: HpcserveError E_REQUEST_SCHEMA, naming the keyword that cannot be expressed
 */
export function validUnder(schema: JsonValue, path: SchemaPath, warnings?: string[]): AddForm {
  return (builder) => {
    const bytes = Buffer.byteLength(JSON.stringify(schema));
    if (bytes > schema_bytes_max)
      refuseSchema(path, `a schema of ${bytes} bytes is over the limit of ${schema_bytes_max} bytes`);
    const rules = addJsonRules(builder);
    return new SchemaCompiler(builder, rules, schema, path, warnings).compile();
  };
}

export function jsonObjectGrammar(): string {
  return grammarOf([anyObject]);
}

/** @throws HpcserveError E_REQUEST_SCHEMA, as `validUnder` */
export function jsonSchemaGrammar(schema: JsonValue, path: SchemaPath, warnings?: string[]): string {
  return grammarOf([validUnder(schema, path, warnings)]);
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

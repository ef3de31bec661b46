/** Calls as Qwen3-Coder writes them, with valid arguments; see `FunctionCallReader`. */
import { either, type GrammarBuilder, literal } from '../grammar/gbnf.ts';
import type { JsonRules } from '../grammar/json-rules.ts';
import { SchemaCompiler } from '../grammar/schema-compiler.ts';
import { refuseSchema, type SchemaPath, shortened } from '../grammar/schema-error.ts';
import {
  annotations,
  isSchemaObject,
  type JsonValue,
  type SchemaObject,
} from '../grammar/schema-keywords.ts';
import { leftOut } from '../grammar/schema-relaxation.ts';
import { functionBegin, parameterEnd } from './function-call-reader.ts';
import { isText, parameterSchema, resolveReference, typesOf } from './parameter-types.ts';
import type { ToolFunction } from './tool-function.ts';

/** What is said of the members of an object, and is kept to here. */
const ofMembers: ReadonlySet<string> = new Set(['type', 'properties', 'required', 'additionalProperties']);
/** What is said of a text, and is kept to here. */
const ofTexts: ReadonlySet<string> = new Set(['type', 'enum', 'const']);

/** The rules of one tool's calls. */
export class FunctionCallGrammar {
  readonly #builder: GrammarBuilder;
  readonly #rules: JsonRules;
  readonly #tool: ToolFunction;
  /** Rule of any text that a value may be; see `textsOfValues`. */
  readonly #text: string;
  /** Takes what cannot be promised and is left out; undefined: that is refused. */
  readonly #warnings: string[] | undefined;

  constructor(
    builder: GrammarBuilder,
    rules: JsonRules,
    text: string,
    tool: ToolFunction,
    warnings: string[] | undefined,
  ) {
    this.#builder = builder;
    this.#rules = rules;
    this.#text = text;
    this.#tool = tool;
    this.#warnings = warnings;
  }

  /** @returns the body of a rule @throws HpcserveError E_REQUEST_SCHEMA */
  compile(): string {
    const { name, parameters, path } = this.#tool;
    const said = resolveReference(parameters, parameters);
    if (said !== true && !isSchemaObject(said)) return refuseSchema(path, 'must be the schema of an object');
    const schema: SchemaObject = said === true ? {} : said;
    this.#checkKeywords(schema, ofMembers, path);
    const properties = isSchemaObject(schema.properties) ? schema.properties : {};
    const required = Array.isArray(schema.required) ? schema.required.map(String) : [];
    const keys = [...new Set([...Object.keys(properties), ...required])];
    const members = keys.map((key) => {
      if (!/^[^<>\n]{1,256}$/.test(key))
        return refuseSchema([...path, 'properties', key], 'calls of this model cannot have this name');
      const member = this.#builder.add('parameter', this.#parameter(literal(key), key));
      return required.includes(key) ? member : `${member}?`;
    });
    if (keys.length === 0 && schema.additionalProperties !== false)
      members.push(`${this.#builder.add('parameter', this.#parameter('[a-zA-Z_] [a-zA-Z0-9_]{0,63}', ''))}*`);
    return [literal(`${functionBegin}${name}>\n`), ...members, literal('</function>')].join(' ');
  }

  /** @param key undefined members have none */
  #parameter(name: string, key: string): string {
    const { parameters, path } = this.#tool;
    const value = this.#value(parameterSchema(parameters, key), [...path, 'properties', key]);
    return `"<parameter=" ${name} ">\\n" ${value} ${literal(`\n${parameterEnd}\n`)}`;
  }

  #value(said: JsonValue | undefined, path: SchemaPath): string {
    const { parameters } = this.#tool;
    if (said === undefined || said === true) return this.#text;
    if (isText(typesOf(said, parameters))) return this.#textUnder(resolveReference(said, parameters)!, path);
    const document = isSchemaObject(parameters) && isSchemaObject(said) ? withNamed(said, parameters) : said;
    return new SchemaCompiler(this.#builder, this.#rules, document, path, this.#warnings).compile();
  }

  #textUnder(said: JsonValue, path: SchemaPath): string {
    const schema = said as SchemaObject;
    this.#checkKeywords(schema, ofTexts, path);
    const values = Array.isArray(schema.enum) ? schema.enum : [];
    const texts = schema.const === undefined ? values : [schema.const];
    if (texts.length === 0) return this.#text;
    if (texts.some((text) => String(text).includes(parameterEnd)))
      return refuseSchema(path, `\`${parameterEnd}\` ends the values of this model's calls`);
    return either(texts.map((text) => literal(String(text))));
  }

  #checkKeywords(schema: SchemaObject, known: ReadonlySet<string>, path: SchemaPath): void {
    for (const keyword of Object.keys(schema)) {
      if (known.has(keyword) || annotations.has(keyword) || keyword.startsWith('x-')) continue;
      const what = `the keyword \`${keyword}\` cannot constrain a call of this model`;
      if (!this.#warnings) refuseSchema([...path, keyword], what);
      this.#warnings.push(`${[...path, keyword].map(shortened).join('.')} ${leftOut}`);
    }
  }
}

/**
 * Any text in which the end of a value is not: a rule for each letter of the end that may have come. Its only `<` is
 * the first of them.
 */
export function textsOfValues(builder: GrammarBuilder): string {
  const { length } = parameterEnd;
  const names = Array.from({ length }, (_, at) => builder.reserve(`text-${at}`));
  for (const [at, name] of names.entries()) {
    const next = parameterEnd[at]!;
    const goesOn = [`[^<${at > 0 ? next : ''}] ${names[0]}`, '""'];
    if (at > 0) goesOn.push(`"<" ${names[1]}`);
    if (at + 1 < length) goesOn.push(`${literal(next)} ${names[at + 1]}`);
    builder.define(name, goesOn.join(' | '));
  }
  return names[0]!;
}

/** With what its references may name. */
function withNamed(schema: SchemaObject, { $defs, definitions }: SchemaObject): SchemaObject {
  const named: SchemaObject = { ...schema };
  if ($defs !== undefined) named.$defs = $defs;
  if (definitions !== undefined) named.definitions = definitions;
  return named;
}

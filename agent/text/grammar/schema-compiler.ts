import { HpcserveError } from '../../../spec/errors/error.ts';
import { nearest } from '../../../spec/nearest.ts';
import { stringExcept } from './excluded-strings.ts';
import { stringFormats } from './formats.ts';
import { either, type GrammarBuilder, literal } from './gbnf.ts';
import type { JsonRules } from './json-rules.ts';
import { decimalRange, integerRange } from './number-range.ts';
import { charactersOfJson, patternToGrammar } from './pattern.ts';
import { jsonTypeOf, listedApart, provablyDisjoint } from './schema-disjoint.ts';
import { refuseSchema, type SchemaPath, shortened } from './schema-error.ts';
import {
  annotations,
  isSchemaObject,
  type JsonType,
  type JsonValue,
  jsonTypes,
  keywordsOfType,
  type SchemaObject,
  unsupportedKeywords,
} from './schema-keywords.ts';
import { asList, canonical, canonicalSet, mergeSchemas } from './schema-merge.ts';
import { leftOut, relaxSchema } from './schema-relaxation.ts';

/** Schemas nested deeper than this are refused; recursion by `$ref` is not nesting. */
const depth_max = 100;

/** Of a part of a conjunction, beyond what is in it. */
const steps_per_part = 4;

/**
 * JSON Schema (2020-12 and the common part of draft 7) to grammar. Every text that the grammar accepts is
 * valid under the schema; where valid documents have several forms (order of properties, escapes, white
 * space), the grammar accepts one natural part of them. What cannot be expressed is refused by name.
 */
export class SchemaCompiler {
  readonly #builder: GrammarBuilder;
  readonly #rules: JsonRules;
  readonly #document: JsonValue;
  /** Path of the schema in the request, for messages. */
  readonly #base: SchemaPath;
  /** Rules by what they stand for: a reference, and what is said beside it. */
  readonly #references = new Map<string, string>();
  readonly #warnings: string[] | undefined;

  /** @param warnings takes what cannot be expressed and is left out; absent: that is refused */
  constructor(
    builder: GrammarBuilder,
    rules: JsonRules,
    document: JsonValue,
    base: SchemaPath,
    warnings?: string[],
  ) {
    this.#warnings = warnings;
    this.#builder = builder;
    this.#rules = rules;
    this.#document = document;
    this.#base = base;
  }

  /** @returns GBNF that stands for one value of the whole schema. */
  compile(): string {
    return this.#schema(this.#document, this.#base);
  }

  #schema(said: JsonValue, path: SchemaPath): string {
    this.#checkDepth(path);
    this.#builder.steps.spend(1 + path.length);
    if (said === true) return this.#rules.value;
    if (said === false) return refuseSchema(path, '`false` allows no value at all');
    if (!isSchemaObject(said)) return refuseSchema(path, 'a schema must be an object or a boolean');
    const schema = this.#relaxed(said, path);
    this.#checkKeywords(schema, path);
    const { $ref, allOf, anyOf, oneOf } = schema;
    if ($ref !== undefined) return this.#reference($ref, without(schema, '$ref'), path);
    if (allOf !== undefined) {
      const parts = this.#list(allOf, [...path, 'allOf']);
      const base = without(schema, 'allOf');
      return this.#schema(this.#conjunction([base, ...parts], [...path, 'allOf']), path);
    }
    if (anyOf !== undefined) return this.#alternatives('anyOf', anyOf, without(schema, 'anyOf'), path);
    if (oneOf !== undefined) {
      this.#checkDisjoint(oneOf, path);
      return this.#alternatives('oneOf', oneOf, without(schema, 'oneOf'), path);
    }
    if (schema.const !== undefined || schema.enum !== undefined) return this.#constants(schema, path);
    const types = this.#types(schema, path);
    if (types === undefined) return this.#rules.value;
    return either(types.map((type) => this.#ofType(type, schema, path)));
  }

  #checkDepth(path: SchemaPath): void {
    if (path.length > depth_max + this.#base.length)
      refuseSchema(this.#base, `nested more than ${depth_max} deep`);
  }

  #merge(a: SchemaObject, b: SchemaObject, path: SchemaPath): SchemaObject {
    return mergeSchemas(a, b, path, this.#builder.steps);
  }

  #relaxed(schema: SchemaObject, path: SchemaPath): SchemaObject {
    return this.#warnings ? relaxSchema(schema, path, this.#warnings) : schema;
  }

  #checkKeywords(schema: SchemaObject, path: SchemaPath): void {
    const keywords = Object.keys(schema);
    this.#builder.steps.spend(keywords.length);
    for (const keyword of keywords) {
      if (Object.hasOwn(keywordsOfType, keyword) || annotations.has(keyword) || keyword.startsWith('x-'))
        continue;
      // `uniqueItems: false` and the like ask for nothing.
      if (unsupportedKeywords.has(keyword) && schema[keyword] === false) continue;
      if (unsupportedKeywords.has(keyword))
        refuseSchema([...path, keyword], `the keyword \`${keyword}\` cannot constrain an answer`);
      const near = nearest(keyword, [...Object.keys(keywordsOfType), ...annotations]);
      refuseSchema(
        [...path, keyword],
        `\`${shortened(keyword)}\` is not a keyword of JSON Schema${near ? `; did you mean \`${near}\`?` : ''}`,
      );
    }
  }

  #reference(target: JsonValue, beside: SchemaObject, path: SchemaPath): string {
    if (typeof target !== 'string') return refuseSchema([...path, '$ref'], 'must be a string');
    const constraints = Object.fromEntries(
      Object.entries(beside).filter(([keyword]) => !annotations.has(keyword)),
    );
    const constrains = Object.keys(constraints).length > 0;
    const key = constrains ? `${target} ${canonical(constraints, this.#builder.steps)}` : target;
    const known = this.#references.get(key);
    if (known !== undefined) return known;
    const name = this.#builder.reserve(`ref-${target.split('/').at(-1) ?? ''}`);
    this.#references.set(key, name);
    let schema = this.#pointer(target, path);
    if (constrains)
      schema = this.#merge(this.#relaxed(this.#resolve({ $ref: target }, path), path), constraints, path);
    else this.#refuseLoop(schema, path);
    // Paths start again at the target, so that recursion does not count as depth.
    this.#builder.define(name, this.#schema(schema, [...this.#base, target]));
    return name;
  }

  /** Follows `$ref` that stands alone until a schema that says something itself. */
  #resolve(schema: SchemaObject, path: SchemaPath): SchemaObject {
    let current: JsonValue = schema;
    for (let hops = 0; hops < depth_max; hops++) {
      if (!isSchemaObject(current))
        return current === true ? {} : refuseSchema(path, 'allows no value at all');
      if (typeof current.$ref !== 'string') return current;
      const target = this.#pointer(current.$ref, path);
      const beside = without(current, '$ref');
      if (!isSchemaObject(target)) return refuseSchema(path, `${current.$ref} is not a schema object`);
      current = this.#merge(target, beside, path);
    }
    return refuseSchema(path, '`$ref` leads back to itself without saying anything');
  }

  #refuseLoop(schema: JsonValue, path: SchemaPath): void {
    if (isSchemaObject(schema) && schema.$ref !== undefined) this.#resolve(schema, path);
  }

  #pointer(target: string, path: SchemaPath): JsonValue {
    if (target !== '#' && !target.startsWith('#/'))
      refuseSchema([...path, '$ref'], `${target}: only references inside of the schema, #/…, are followed`);
    this.#builder.steps.spendText(target);
    let current: JsonValue | undefined = this.#document;
    for (const part of target.split('/').slice(1)) {
      const key = decodeURIComponent(part).replace(/~1/g, '/').replace(/~0/g, '~');
      if (Array.isArray(current)) current = current[Number(key)];
      else current = isSchemaObject(current) && Object.hasOwn(current, key) ? current[key] : undefined;
      if (current === undefined)
        return refuseSchema([...path, '$ref'], `${target} does not exist in the schema`);
    }
    return current;
  }

  #conjunction(parts: JsonValue[], path: SchemaPath): SchemaObject {
    this.#checkDepth(path);
    let merged: SchemaObject = {};
    for (const [index, part] of parts.entries()) {
      this.#builder.steps.spend(steps_per_part);
      if (part === true) continue;
      if (!isSchemaObject(part)) refuseSchema([...path, String(index)], 'a schema must be an object');
      let resolved = this.#relaxed(this.#resolve(part as SchemaObject, path), path);
      if (resolved.allOf !== undefined) {
        const inner = this.#list(resolved.allOf, path);
        resolved = this.#conjunction([without(resolved, 'allOf'), ...inner], [...path, String(index)]);
      }
      this.#checkKeywords(resolved, path);
      merged = this.#merge(merged, resolved, path);
    }
    return merged;
  }

  #alternatives(keyword: 'anyOf' | 'oneOf', value: JsonValue, base: SchemaObject, path: SchemaPath): string {
    const constrains = Object.keys(base).some((key) => !annotations.has(key));
    const branches = this.#list(value, [...path, keyword]).map((branch, index) => {
      const at = [...path, keyword, String(index)];
      return constrains ? this.#schema(this.#conjunction([base, branch], at), at) : this.#schema(branch, at);
    });
    return either(branches);
  }

  #checkDisjoint(value: JsonValue, path: SchemaPath): void {
    const branches = this.#list(value, [...path, 'oneOf']);
    const { steps } = this.#builder;
    // Lists of constants may be long, and need no comparison of each with each.
    if (listedApart(branches, steps)) return;
    const resolve = (schema: SchemaObject) => this.#resolve(schema, path);
    for (let i = 0; i < branches.length; i++)
      for (let j = i + 1; j < branches.length; j++)
        if (!provablyDisjoint(branches[i]!, branches[j]!, resolve, steps)) {
          if (this.#warnings) {
            this.#warnings.push(`${[...path, 'oneOf'].map(shortened).join('.')} is taken as \`anyOf\``);
            return;
          }
          refuseSchema(
            [...path, 'oneOf'],
            `the alternatives ${i} and ${j} may both be valid for one value, which \`oneOf\` forbids and a grammar cannot prevent`,
            'use `anyOf`, or give the alternatives a required property with different `const` values',
          );
        }
  }

  #constants(schema: SchemaObject, path: SchemaPath): string {
    const listed = schema.enum === undefined ? undefined : this.#list(schema.enum, [...path, 'enum']);
    let values = schema.const === undefined ? listed! : [schema.const];
    const { steps } = this.#builder;
    if (listed && schema.const !== undefined) {
      const known = canonicalSet(listed, steps);
      values = values.filter((value) => known.has(canonical(value, steps)));
    }
    if (schema.type !== undefined) {
      const types = new Set(asList(schema.type));
      values = values.filter(
        (value) => types.has(jsonTypeOf(value)) || (typeof value === 'number' && types.has('number')),
      );
    }
    const beside = Object.keys(schema).find(
      (key) => !['enum', 'const', 'type'].includes(key) && Object.hasOwn(keywordsOfType, key),
    );
    if (beside !== undefined)
      refuseSchema([...path, beside], '`enum` and `const` leave nothing else to say; remove this keyword');
    if (values.length === 0) refuseSchema(path, 'no value of `enum` or `const` is of the given `type`');
    const texts = values.map((value) => JSON.stringify(value));
    for (const text of texts) steps.spendText(text);
    return this.#builder.add('constant', texts.map(literal).join(' | '));
  }

  /** Undefined: any type. */
  #types(schema: SchemaObject, path: SchemaPath): JsonType[] | undefined {
    if (schema.type === undefined) {
      // Keywords speak of one type each; a value of that type is the sensible reading.
      const spoken = Object.keys(schema)
        .map((keyword) => (Object.hasOwn(keywordsOfType, keyword) ? keywordsOfType[keyword] : undefined))
        .filter((type): type is JsonType => type !== undefined && type !== 'any');
      return spoken.length === 0 ? undefined : [...new Set(spoken)];
    }
    // Each once: a type that is listed again would be compiled again, at every level below, too.
    const types = [...new Set(asList(schema.type))];
    this.#builder.steps.spend(types.length);
    for (const type of types)
      if (!jsonTypes.includes(type as JsonType))
        refuseSchema(
          [...path, 'type'],
          `${shortened(JSON.stringify(type))} is not one of ${jsonTypes.join(', ')}`,
        );
    return types as JsonType[];
  }

  #ofType(type: JsonType, schema: SchemaObject, path: SchemaPath): string {
    switch (type) {
      case 'object':
        return this.#object(schema, path);
      case 'array':
        return this.#array(schema, path);
      case 'string':
        return this.#string(schema, path);
      case 'integer':
        return this.#integer(schema, path);
      case 'number':
        return this.#number(schema, path);
      case 'boolean':
        return this.#builder.add('boolean', '"true" | "false"');
      case 'null':
        return literal('null');
    }
  }

  #string(schema: SchemaObject, path: SchemaPath): string {
    const { pattern, format } = schema;
    const min = this.#count(schema, 'minLength', path) ?? 0;
    const max = this.#count(schema, 'maxLength', path) ?? Number.POSITIVE_INFINITY;
    const bounded = min > 0 || max !== Number.POSITIVE_INFINITY;
    const given = [pattern !== undefined && 'pattern', format !== undefined && 'format'].filter(Boolean);
    if (given.length > 1 || (given.length === 1 && bounded))
      refuseSchema(path, '`pattern`, `format` and a length cannot be combined in one constraint; keep one');
    let content = bounded ? this.#lengths(min, max, path) : `${this.#rules.character}*`;
    if (typeof pattern === 'string') content = this.#pattern(pattern, path) ?? content;
    else if (pattern !== undefined) refuseSchema([...path, 'pattern'], 'must be a string');
    if (format !== undefined) {
      const known =
        typeof format === 'string' && Object.hasOwn(stringFormats, format)
          ? stringFormats[format]
          : undefined;
      if (known === undefined)
        refuseSchema(
          [...path, 'format'],
          `the format ${shortened(JSON.stringify(format))} is not one of ${Object.keys(stringFormats).join(', ')}`,
        );
      content = known!;
    }
    return this.#builder.add('text', `"\\"" ${this.#builder.add('content', content)} "\\""`);
  }

  #pattern(pattern: string, path: SchemaPath): string | undefined {
    try {
      return patternToGrammar(this.#builder, pattern, charactersOfJson(this.#rules.character));
    } catch (error) {
      if (!this.#warnings || !(error instanceof HpcserveError)) throw error;
      this.#warnings.push(`${[...path, 'pattern'].map(shortened).join('.')} ${leftOut}`);
      return undefined;
    }
  }

  #lengths(min: number, max: number, path: SchemaPath): string {
    if (min > max) refuseSchema(path, `minLength ${min} is more than maxLength ${max}`);
    return this.#builder.repeat(this.#rules.character, min, max);
  }

  #integer(schema: SchemaObject, path: SchemaPath): string {
    const low = this.#bounds(schema, 'minimum', 'exclusiveMinimum', path);
    const high = this.#bounds(schema, 'maximum', 'exclusiveMaximum', path);
    if (low.length === 0 && high.length === 0) return this.#rules.integer;
    const mins = low.map(({ value, exclusive }) => (exclusive ? Math.floor(value) + 1 : Math.ceil(value)));
    const maxs = high.map(({ value, exclusive }) => (exclusive ? Math.ceil(value) - 1 : Math.floor(value)));
    const range = integerRange({
      min: mins.length > 0 ? BigInt(Math.max(...mins)) : undefined,
      max: maxs.length > 0 ? BigInt(Math.min(...maxs)) : undefined,
    });
    return this.#range('integer', range ?? refuseSchema(path, 'no integer lies between its bounds'));
  }

  #number(schema: SchemaObject, path: SchemaPath): string {
    const low = this.#bounds(schema, 'minimum', 'exclusiveMinimum', path);
    const high = this.#bounds(schema, 'maximum', 'exclusiveMaximum', path);
    if (low.length === 0 && high.length === 0) return this.#rules.number;
    const min = low.sort((a, b) => b.value - a.value || Number(b.exclusive) - Number(a.exclusive))[0];
    const max = high.sort((a, b) => a.value - b.value || Number(b.exclusive) - Number(a.exclusive))[0];
    const range = decimalRange({ min, max });
    return this.#range('number', range ?? refuseSchema(path, 'no number lies between its bounds'));
  }

  /** A step a character: its digits were put together from the last to the first. */
  #range(name: string, body: string): string {
    this.#builder.steps.spend(body.length);
    return this.#builder.add(name, body);
  }

  #bounds(schema: SchemaObject, inclusive: string, exclusive: string, path: SchemaPath) {
    const found: { value: number; exclusive: boolean }[] = [];
    for (const [keyword, open] of [
      [inclusive, false],
      [exclusive, true],
    ] as const) {
      const value = schema[keyword];
      if (value === undefined) continue;
      if (typeof value !== 'number')
        return refuseSchema([...path, keyword], `must be a number, not ${JSON.stringify(value)}`);
      found.push({ value, exclusive: open });
    }
    return found;
  }

  #array(schema: SchemaObject, path: SchemaPath): string {
    const { space } = this.#rules;
    const min = this.#count(schema, 'minItems', path) ?? 0;
    const max = this.#count(schema, 'maxItems', path) ?? Number.POSITIVE_INFINITY;
    if (min > max) refuseSchema(path, `minItems ${min} is more than maxItems ${max}`);
    const prefix =
      schema.prefixItems === undefined ? [] : this.#list(schema.prefixItems, [...path, 'prefixItems']);
    if (prefix.length > max)
      refuseSchema(path, `maxItems ${max} is less than the ${prefix.length} prefixItems`);
    const first = prefix.map((item, index) =>
      this.#builder.add('item', this.#schema(item, [...path, 'prefixItems', String(index)])),
    );
    const comma = this.#builder.add('comma', `"," ${space}`);
    const closed = schema.items === false || max === prefix.length;
    if (closed && min > prefix.length) refuseSchema(path, `minItems ${min} cannot be reached`);
    const wrap = (body: string) => this.#builder.add('array', `"[" ${space} ${body} "]"`);
    const head = first.join(` ${comma} `);
    if (closed) return wrap(first.length === 0 ? '' : `${head} ${space}`);
    const item = this.#builder.add('item', this.#schema(schema.items ?? true, [...path, 'items']));
    const more = this.#builder.add('more', `${comma} ${item}`);
    if (first.length > 0)
      return wrap(
        `${head} ${this.#builder.repeat(more, Math.max(0, min - first.length), max - first.length)} ${space}`,
      );
    const some = `${item} ${this.#builder.repeat(more, Math.max(0, min - 1), max - 1)} ${space}`;
    return wrap(min === 0 ? `(${some})?` : some);
  }

  #object(schema: SchemaObject, path: SchemaPath): string {
    const { space } = this.#rules;
    const properties = schema.properties ?? {};
    if (!isSchemaObject(properties)) return refuseSchema([...path, 'properties'], 'must be an object');
    const required = schema.required === undefined ? [] : this.#list(schema.required, [...path, 'required']);
    // A closed set of names is the sensible reading where properties are listed and nothing is said of others.
    const rest = schema.additionalProperties ?? Object.keys(properties).length === 0;
    const needed = new Set(required);
    const members: { name: string; schema: JsonValue; required: boolean; at: SchemaPath }[] = [];
    for (const [name, value] of Object.entries(properties)) {
      if (value === false && !needed.has(name)) continue;
      members.push({
        name,
        schema: value,
        required: needed.has(name),
        at: [...path, 'properties', name],
      });
    }
    for (const name of needed) {
      if (typeof name !== 'string') return refuseSchema([...path, 'required'], 'must be a list of strings');
      if (Object.hasOwn(properties, name)) continue;
      if (schema.additionalProperties === false)
        refuseSchema(
          [...path, 'required'],
          `${shortened(name)} is required, but no property may have that name`,
        );
      members.push({
        name,
        schema: schema.additionalProperties ?? true,
        required: true,
        at: [...path, 'required', name],
      });
    }
    this.#builder.steps.spend(members.length);
    const comma = this.#builder.add('comma', `"," ${space}`);
    const pairs = members.map((member) =>
      this.#builder.add(
        'pair',
        `${literal(`${JSON.stringify(member.name)}:`)} ${space} ${this.#schema(member.schema, member.at)}`,
      ),
    );
    const extra =
      rest === false
        ? undefined
        : this.#extraPair(
            members.map(({ name }) => name),
            rest,
            path,
          );
    if (members.length === 0 && extra === undefined) return literal('{}');
    // From the last member to the first: what may follow, with and without a member before it.
    let afterSome = extra === undefined ? '""' : `(${comma} ${extra})*`;
    let afterNone = extra === undefined ? '""' : `(${extra} (${comma} ${extra})*)?`;
    for (let index = members.length - 1; index >= 0; index--) {
      const pair = pairs[index]!;
      const later = this.#builder.add('members', afterSome);
      const optional = !members[index]!.required;
      const skipped = optional ? this.#builder.add('members', afterNone) : '';
      afterNone = optional ? `${pair} ${later} | ${skipped}` : `${pair} ${later}`;
      afterSome = optional ? `(${comma} ${pair})? ${later}` : `${comma} ${pair} ${later}`;
    }
    const body = this.#builder.add('members', afterNone);
    return this.#builder.add('object', `"{" ${space} ${body} ${space} "}"`);
  }

  #extraPair(names: string[], schema: JsonValue, path: SchemaPath): string {
    const key =
      names.length === 0 ? this.#rules.string : stringExcept(this.#builder, names, this.#rules.character);
    return this.#builder.add(
      'pair',
      `${key} ":" ${this.#rules.space} ${this.#schema(schema, [...path, 'additionalProperties'])}`,
    );
  }

  #count(schema: SchemaObject, keyword: string, path: SchemaPath): number | undefined {
    const value = schema[keyword];
    if (value === undefined) return undefined;
    if (typeof value !== 'number' || !Number.isInteger(value) || value < 0)
      return refuseSchema([...path, keyword], `must be an integer from 0, not ${JSON.stringify(value)}`);
    return value;
  }

  #list(value: JsonValue, path: SchemaPath): JsonValue[] {
    if (!Array.isArray(value)) return refuseSchema(path, 'must be a list');
    this.#builder.steps.spend(value.length);
    if (value.length === 0 && path.at(-1) !== 'required') return refuseSchema(path, 'must not be empty');
    return value;
  }
}

function without(schema: SchemaObject, keyword: string): SchemaObject {
  const { [keyword]: _, ...rest } = schema;
  return rest;
}

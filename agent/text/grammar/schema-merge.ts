/** The conjunction of two schemas as one schema: what `allOf` and keywords beside `anyOf` or `$ref` mean. */

import { refuseSchema, type SchemaPath } from './schema-error.ts';
import {
  annotations,
  isSchemaObject,
  type JsonType,
  type JsonValue,
  type SchemaObject,
} from './schema-keywords.ts';

/** Combinations of alternatives that a conjunction may have. Lower: refuses earlier; higher: larger grammars. */
const mostPairs = 1000;

/**
 * @returns a schema whose instances are valid under both; where nothing can be valid under both, or the
 *   conjunction cannot be written as one schema, the request is refused.
 */
export function mergeSchemas(a: SchemaObject, b: SchemaObject, path: SchemaPath): SchemaObject {
  const merged: SchemaObject = { ...a };
  for (const [keyword, value] of Object.entries(b)) {
    const other = merged[keyword];
    if (other === undefined) merged[keyword] = value;
    else if (!annotations.has(keyword)) merged[keyword] = mergeKeyword(keyword, other, value, path);
  }
  // Each side's additionalProperties speaks of the properties that the other side names, too.
  closeProperties(merged, a, b, path);
  return merged;
}

function mergeKeyword(keyword: string, a: JsonValue, b: JsonValue, path: SchemaPath): JsonValue {
  if (JSON.stringify(a) === JSON.stringify(b)) return a;
  switch (keyword) {
    case 'type':
      return mergeTypes(asList(a), asList(b), path);
    case 'enum': {
      const kept = asList(a).filter((value) => contains(asList(b), value));
      return kept.length > 0 ? kept : refuseSchema(path, '`enum` lists that have no value in common');
    }
    case 'required':
      return [...new Set([...asList(a), ...asList(b)])];
    case 'properties':
      return mergeProperties(a, b, path);
    case 'additionalProperties':
      if (a === true || b === true) return a === true ? b : a;
      if (a === false || b === false) return false;
      if (isSchemaObject(a) && isSchemaObject(b)) return { allOf: [a, b] };
      break;
    case 'items':
      if (typeof a === 'boolean' || typeof b === 'boolean') return a === true ? b : b === true ? a : false;
      if (isSchemaObject(a) && isSchemaObject(b)) return { allOf: [a, b] };
      break;
    case 'anyOf':
    case 'oneOf':
      // (a1 or a2) and (b1 or b2): every pair.
      if (asList(a).length * asList(b).length > mostPairs)
        refuseSchema(
          path,
          `\`${keyword}\` at once in several places makes more than ${mostPairs} combinations`,
        );
      return asList(a).flatMap((left) => asList(b).map((right) => ({ allOf: [left, right] })));
    case 'allOf':
      return [...asList(a), ...asList(b)];
    case '$ref':
      break;
    case 'minLength':
    case 'minItems':
    case 'minimum':
    case 'exclusiveMinimum':
      return Math.max(Number(a), Number(b));
    case 'maxLength':
    case 'maxItems':
    case 'maximum':
    case 'exclusiveMaximum':
      return Math.min(Number(a), Number(b));
  }
  return refuseSchema(path, `two different values of \`${keyword}\` apply to the same place`);
}

function mergeTypes(a: JsonValue[], b: JsonValue[], path: SchemaPath): JsonValue {
  const has = (list: JsonValue[], type: JsonValue) =>
    list.includes(type) || (type === 'integer' && list.includes('number'));
  const kept = [...new Set([...a.filter((type) => has(b, type)), ...b.filter((type) => has(a, type))])];
  if (kept.length === 0)
    refuseSchema(path, `\`type\` is both ${a.join(' or ')} and ${b.join(' or ')}: nothing can be valid`);
  return kept as JsonType[];
}

function mergeProperties(a: JsonValue, b: JsonValue, path: SchemaPath): JsonValue {
  if (!isSchemaObject(a) || !isSchemaObject(b)) return refuseSchema(path, '`properties` must be an object');
  const merged: SchemaObject = { ...a };
  for (const [name, schema] of Object.entries(b)) {
    const other = merged[name];
    if (other === undefined || other === true) merged[name] = schema;
    else if (schema !== true) merged[name] = { allOf: [other, schema] };
  }
  return merged;
}

function closeProperties(merged: SchemaObject, a: SchemaObject, b: SchemaObject, path: SchemaPath): void {
  if (!isSchemaObject(merged.properties)) return;
  const properties: SchemaObject = { ...merged.properties };
  for (const [side, other] of [
    [a, b],
    [b, a],
  ] as const) {
    const rest = side.additionalProperties;
    if (rest === undefined || rest === true || !isSchemaObject(other.properties)) continue;
    const own = isSchemaObject(side.properties) ? side.properties : {};
    for (const name of Object.keys(other.properties)) {
      if (name in own) continue;
      if (rest === false) {
        if (asList(merged.required ?? []).includes(name))
          refuseSchema(path, `the property ${name} is required and forbidden by \`additionalProperties\``);
        delete properties[name];
      } else properties[name] = { allOf: [properties[name]!, rest] };
    }
  }
  merged.properties = properties;
}

export function asList(value: JsonValue): JsonValue[] {
  return Array.isArray(value) ? value : [value];
}

export function contains(list: readonly JsonValue[], value: JsonValue): boolean {
  const text = canonical(value);
  return list.some((other) => canonical(other) === text);
}

/** JSON with sorted keys, so that equal values have equal text. */
export function canonical(value: JsonValue): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (isSchemaObject(value))
    return `{${Object.keys(value)
      .sort()
      .map((key) => `${JSON.stringify(key)}:${canonical(value[key]!)}`)
      .join(',')}}`;
  return JSON.stringify(value);
}

import {
  isSchemaObject,
  type JsonType,
  type JsonValue,
  jsonTypes,
  type SchemaObject,
} from './schema-keywords.ts';
import { asList, contains } from './schema-merge.ts';

/**
 * Whether no value can be valid under both schemas, as far as types, constants and required properties
 * show it: then `oneOf` means the same as `anyOf`. False where it is not certain.
 */
export function provablyDisjoint(
  a: JsonValue,
  b: JsonValue,
  resolve: (schema: SchemaObject) => SchemaObject,
  depth = 0,
): boolean {
  if (a === false || b === false) return true;
  if (!isSchemaObject(a) || !isSchemaObject(b) || depth > 8) return false;
  const left = resolve(a);
  const right = resolve(b);
  const leftValues = valuesOf(left);
  const rightValues = valuesOf(right);
  if (leftValues && rightValues) return !leftValues.some((value) => contains(rightValues, value));
  const leftTypes = typesOf(left, leftValues);
  const rightTypes = typesOf(right, rightValues);
  if (leftTypes && rightTypes && !leftTypes.some((type) => rightTypes.some((other) => overlap(type, other))))
    return true;
  const bothObjects = leftTypes?.join() === 'object' && rightTypes?.join() === 'object';
  if (bothObjects && isSchemaObject(left.properties) && isSchemaObject(right.properties)) {
    const required = (schema: SchemaObject) => asList(schema.required ?? []);
    for (const [name, schema] of Object.entries(left.properties)) {
      const other = right.properties[name];
      if (other === undefined || !required(left).includes(name) || !required(right).includes(name)) continue;
      if (provablyDisjoint(schema, other, resolve, depth + 1)) return true;
    }
  }
  return false;
}

function valuesOf(schema: SchemaObject): JsonValue[] | undefined {
  if (schema.const !== undefined) return [schema.const];
  return Array.isArray(schema.enum) ? schema.enum : undefined;
}

function typesOf(schema: SchemaObject, values: JsonValue[] | undefined): JsonType[] | undefined {
  if (schema.type !== undefined)
    return asList(schema.type).filter((type): type is JsonType => jsonTypes.includes(type as JsonType));
  return values && [...new Set(values.map(typeOf))];
}

export function typeOf(value: JsonValue): JsonType {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value as JsonType;
}

function overlap(a: JsonType, b: JsonType): boolean {
  return a === b || (a === 'integer' && b === 'number') || (a === 'number' && b === 'integer');
}

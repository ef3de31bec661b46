import {
  isSchemaObject,
  type JsonType,
  type JsonValue,
  jsonTypes,
  type SchemaObject,
} from './schema-keywords.ts';
import { asList, canonical, canonicalSet } from './schema-merge.ts';
import type { StepBudget } from './step-budget.ts';

/**
 * Whether no value can be valid under both schemas, as far as types, constants and required properties
 * show it: then `oneOf` means the same as `anyOf`. False where it is not certain.
 */
export function provablyDisjoint(
  a: JsonValue,
  b: JsonValue,
  resolve: (schema: SchemaObject) => SchemaObject,
  steps: StepBudget,
  depth = 0,
): boolean {
  steps.spend(1);
  if (a === false || b === false) return true;
  if (!isSchemaObject(a) || !isSchemaObject(b) || depth > 8) return false;
  const left = resolve(a);
  const right = resolve(b);
  const leftValues = valuesOf(left);
  const rightValues = valuesOf(right);
  if (leftValues && rightValues) {
    const others = canonicalSet(rightValues, steps);
    return !leftValues.some((value) => others.has(canonical(value, steps)));
  }
  const leftTypes = typesOf(left, leftValues);
  const rightTypes = typesOf(right, rightValues);
  if (leftTypes && rightTypes && !leftTypes.some((type) => rightTypes.some((other) => overlap(type, other))))
    return true;
  const bothObjects = leftTypes?.join() === 'object' && rightTypes?.join() === 'object';
  if (bothObjects && isSchemaObject(left.properties) && isSchemaObject(right.properties)) {
    const [requiredLeft, requiredRight] = [left, right].map(
      (schema) => new Set(asList(schema.required ?? [])),
    );
    steps.spend(requiredLeft!.size + requiredRight!.size + Object.keys(left.properties).length);
    for (const [name, schema] of Object.entries(left.properties)) {
      const other = Object.hasOwn(right.properties, name) ? right.properties[name] : undefined;
      if (other === undefined || !requiredLeft!.has(name) || !requiredRight!.has(name)) continue;
      if (provablyDisjoint(schema, other, resolve, steps, depth + 1)) return true;
    }
  }
  return false;
}

/**
 * Whether no two of these schemas have a value in common, where each lists its values; undefined where one does not.
 */
export function listedApart(schemas: readonly JsonValue[], steps: StepBudget): boolean | undefined {
  const seen = new Set<string>();
  for (const schema of schemas) {
    const values = isSchemaObject(schema) && schema.$ref === undefined ? valuesOf(schema) : undefined;
    if (values === undefined) return undefined;
    const own = canonicalSet(values, steps);
    for (const value of own) {
      if (seen.has(value)) return false;
      seen.add(value);
    }
  }
  return true;
}

function valuesOf(schema: SchemaObject): JsonValue[] | undefined {
  if (schema.const !== undefined) return [schema.const];
  return Array.isArray(schema.enum) ? schema.enum : undefined;
}

function typesOf(schema: SchemaObject, values: JsonValue[] | undefined): JsonType[] | undefined {
  if (schema.type !== undefined)
    return asList(schema.type).filter((type): type is JsonType => jsonTypes.includes(type as JsonType));
  return values && [...new Set(values.map(jsonTypeOf))];
}

export function jsonTypeOf(value: JsonValue): JsonType {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value as JsonType;
}

function overlap(a: JsonType, b: JsonType): boolean {
  return a === b || (a === 'integer' && b === 'number') || (a === 'number' && b === 'integer');
}

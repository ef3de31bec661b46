/** The conjunction of two schemas as one schema: what `allOf` and keywords beside `anyOf` or `$ref` mean. */

import { refuseSchema, type SchemaPath, shortened } from './schema-error.ts';
import {
  annotations,
  isSchemaObject,
  type JsonType,
  type JsonValue,
  type SchemaObject,
} from './schema-keywords.ts';
import type { StepBudget } from './step-budget.ts';

/** Combinations of alternatives that a conjunction may have. Lower: refuses earlier; higher: larger grammars. */
const pairs_max = 1000;

/**
 * @returns a schema whose instances are valid under both; where nothing can be valid under both, or the
 *   conjunction cannot be written as one schema, the request is refused.
 */
export function mergeSchemas(
  a: SchemaObject,
  b: SchemaObject,
  path: SchemaPath,
  steps: StepBudget,
): SchemaObject {
  steps.spend(1 + sizeOf(a) + sizeOf(b));
  const merged: SchemaObject = { ...a };
  for (const [keyword, value] of Object.entries(b)) {
    const other = Object.hasOwn(merged, keyword) ? merged[keyword] : undefined;
    if (other === undefined) merged[keyword] = value;
    else if (!annotations.has(keyword)) merged[keyword] = mergeKeyword(keyword, other, value, path, steps);
  }
  // Each side's additionalProperties speaks of the properties that the other side names, too.
  closeProperties(merged, a, b, path, steps);
  return merged;
}

function mergeKeyword(
  keyword: string,
  a: JsonValue,
  b: JsonValue,
  path: SchemaPath,
  steps: StepBudget,
): JsonValue {
  if (written(a, steps) === written(b, steps)) return a;
  steps.spend(sizeOf(a) + sizeOf(b));
  switch (keyword) {
    case 'type':
      return mergeTypes(asList(a), asList(b), path);
    case 'enum': {
      const others = canonicalSet(asList(b), steps);
      const kept = asList(a).filter((value) => others.has(canonical(value, steps)));
      return kept.length > 0 ? kept : refuseSchema(path, '`enum` lists that have no value in common');
    }
    case 'required':
      return [...new Set([...asList(a), ...asList(b)])];
    case 'properties':
      return mergeProperties(a, b, path, steps);
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
      if (asList(a).length * asList(b).length > pairs_max)
        refuseSchema(
          path,
          `\`${keyword}\` at once in several places makes more than ${pairs_max} combinations`,
        );
      steps.spend(asList(a).length * asList(b).length);
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
  const has = (types: ReadonlySet<JsonValue>, type: JsonValue) =>
    types.has(type) || (type === 'integer' && types.has('number'));
  const [left, right] = [new Set(a), new Set(b)];
  const kept = [
    ...new Set([...a.filter((type) => has(right, type)), ...b.filter((type) => has(left, type))]),
  ];
  if (kept.length === 0)
    refuseSchema(path, `\`type\` is both ${a.join(' or ')} and ${b.join(' or ')}: nothing can be valid`);
  return kept as JsonType[];
}

function mergeProperties(a: JsonValue, b: JsonValue, path: SchemaPath, steps: StepBudget): JsonValue {
  if (!isSchemaObject(a) || !isSchemaObject(b)) return refuseSchema(path, '`properties` must be an object');
  const merged: SchemaObject = { ...a };
  for (const [name, schema] of Object.entries(b)) {
    const other = Object.hasOwn(merged, name) ? merged[name] : undefined;
    if (other === undefined || other === true) merged[name] = schema;
    else if (schema !== true) merged[name] = both(other, schema, steps);
  }
  return merged;
}

/** Many that are joined one by one stay one list, and do not become as many levels. */
function both(a: JsonValue, b: JsonValue, steps: StepBudget): SchemaObject {
  const listed =
    isSchemaObject(a) && Array.isArray(a.allOf) && Object.keys(a).length === 1 ? a.allOf : undefined;
  steps.spend(1 + (listed?.length ?? 0));
  return { allOf: [...(listed ?? [a]), b] };
}

function closeProperties(
  merged: SchemaObject,
  a: SchemaObject,
  b: SchemaObject,
  path: SchemaPath,
  steps: StepBudget,
): void {
  if (!isSchemaObject(merged.properties)) return;
  const properties: SchemaObject = { ...merged.properties };
  const required = new Set(asList(merged.required ?? []));
  steps.spend(Object.keys(properties).length + required.size);
  for (const [side, other] of [
    [a, b],
    [b, a],
  ] as const) {
    const rest = side.additionalProperties;
    if (rest === undefined || rest === true || !isSchemaObject(other.properties)) continue;
    const own = isSchemaObject(side.properties) ? side.properties : {};
    for (const name of Object.keys(other.properties)) {
      if (Object.hasOwn(own, name)) continue;
      if (rest === false) {
        if (required.has(name))
          refuseSchema(
            path,
            `the property ${shortened(name)} is required and forbidden by \`additionalProperties\``,
          );
        delete properties[name];
      } else properties[name] = { allOf: [properties[name]!, rest] };
    }
  }
  merged.properties = properties;
}

export function asList(value: JsonValue): JsonValue[] {
  return Array.isArray(value) ? value : [value];
}

/** Texts of values, by which equal ones are found. */
export function canonicalSet(values: readonly JsonValue[], steps: StepBudget): Set<string> {
  return new Set(values.map((value) => canonical(value, steps)));
}

/** JSON with sorted keys, so that equal values have equal text. */
export function canonical(value: JsonValue, steps: StepBudget): string {
  steps.spend(1);
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, steps)).join(',')}]`;
  if (isSchemaObject(value))
    return `{${Object.keys(value)
      .sort()
      .map((key) => `${JSON.stringify(key)}:${canonical(value[key]!, steps)}`)
      .join(',')}}`;
  return written(value, steps);
}

function written(value: JsonValue, steps: StepBudget): string {
  const text = JSON.stringify(value);
  steps.spendText(text);
  return text;
}

/** Members that copying or comparing it goes through. */
function sizeOf(value: JsonValue): number {
  if (Array.isArray(value)) return value.length;
  return isSchemaObject(value) ? Object.keys(value).length : 1;
}

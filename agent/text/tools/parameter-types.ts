/** What the parameters of a tool may be, where calls write their values without quotes. */
import { jsonTypeOf } from '../grammar/schema-disjoint.ts';
import { isSchemaObject, type JsonType, type JsonValue, jsonTypes } from '../grammar/schema-keywords.ts';

/** References that lead to one another are followed so far. Lower: less work; higher: longer chains are known. */
const hops_max = 8;

/** Undefined: nothing is said of it. @param parameters of the tool */
export function parameterSchema(parameters: JsonValue | undefined, key: string): JsonValue | undefined {
  const schema = resolveReference(parameters, parameters);
  if (!isSchemaObject(schema)) return undefined;
  const { properties, additionalProperties } = schema;
  const own = isSchemaObject(properties) && Object.hasOwn(properties, key) ? properties[key] : undefined;
  return own ?? (isSchemaObject(additionalProperties) ? additionalProperties : undefined);
}

/** Types that a schema names; undefined where it names none. @param document that its references are of */
export function typesOf(
  said: JsonValue | undefined,
  document: JsonValue | undefined,
  hops = hops_max,
): ReadonlySet<JsonType> | undefined {
  const schema = resolveReference(said, document);
  if (!isSchemaObject(schema) || hops === 0) return undefined;
  const { type, enum: values, const: value, anyOf, oneOf, allOf } = schema;
  if (type !== undefined) return new Set(jsonTypes.filter((each) => [type].flat().includes(each)));
  if (value !== undefined) return new Set([jsonTypeOf(value)]);
  if (Array.isArray(values)) return new Set(values.map(jsonTypeOf));
  const each = (list: JsonValue[]) => list.map((one) => typesOf(one, document, hops - 1));
  // What all of them allow: the first that says something bounds it.
  if (Array.isArray(allOf)) return each(allOf).find((types) => types !== undefined);
  const alternatives = [anyOf, oneOf].find((list) => Array.isArray(list));
  if (!alternatives) return undefined;
  const types = each(alternatives);
  if (types.some((one) => one === undefined)) return undefined;
  return new Set(types.flatMap((one) => [...one!]));
}

/** Values of such a parameter are written as they are. */
export function isText(types: ReadonlySet<JsonType> | undefined): boolean {
  return types?.size === 1 && types.has('string');
}

/** JSON text of what a call says of a parameter that is not text alone: what is no JSON of its types is a string. */
export function jsonOf(text: string, types: ReadonlySet<JsonType> | undefined): string {
  const trimmed = text.trim();
  // As Python has them, in which the templates of models write values of earlier calls.
  if (types?.has('boolean') && /^(True|False)$/.test(trimmed)) return trimmed.toLowerCase();
  if (types?.has('null') && trimmed === 'None') return 'null';
  try {
    const value: unknown = JSON.parse(trimmed);
    const type = jsonTypeOf(value as JsonValue);
    const isAllowed = types?.has(type) || (type === 'integer' && types?.has('number'));
    return types?.has('string') && !isAllowed ? JSON.stringify(text) : trimmed;
  } catch {
    return JSON.stringify(text);
  }
}

/** Follows references within a document, as far as they lead somewhere. */
export function resolveReference(
  said: JsonValue | undefined,
  document: JsonValue | undefined,
): JsonValue | undefined {
  let schema = said;
  for (let hops = 0; hops < hops_max && isSchemaObject(schema); hops++) {
    const { $ref } = schema;
    if (typeof $ref !== 'string' || !$ref.startsWith('#')) return schema;
    schema = pointedAt($ref, document);
  }
  return schema;
}

function pointedAt(reference: string, document: JsonValue | undefined): JsonValue | undefined {
  let current = document;
  for (const part of reference.split('/').slice(1)) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
    if (!isSchemaObject(current) || !Object.hasOwn(current, key)) return undefined;
    current = current[key];
  }
  return current;
}

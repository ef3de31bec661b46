/** JSON Schema as it arrives: nothing about it is certain yet. */
export type JsonValue = null | boolean | number | string | JsonValue[] | { [key: string]: JsonValue };
export type SchemaObject = { [key: string]: JsonValue };

export const jsonTypes = ['object', 'array', 'string', 'integer', 'number', 'boolean', 'null'] as const;
export type JsonType = (typeof jsonTypes)[number];

/** Keywords that constrain, by the type they speak of. */
export const keywordsOfType: Readonly<Record<string, JsonType | 'any'>> = {
  type: 'any',
  enum: 'any',
  const: 'any',
  anyOf: 'any',
  oneOf: 'any',
  allOf: 'any',
  $ref: 'any',
  properties: 'object',
  required: 'object',
  additionalProperties: 'object',
  items: 'array',
  prefixItems: 'array',
  minItems: 'array',
  maxItems: 'array',
  minLength: 'string',
  maxLength: 'string',
  pattern: 'string',
  format: 'string',
  minimum: 'number',
  maximum: 'number',
  exclusiveMinimum: 'number',
  exclusiveMaximum: 'number',
};

/** Keywords that say nothing about which values are valid. */
export const annotations: ReadonlySet<string> = new Set([
  '$schema',
  '$id',
  '$comment',
  '$defs',
  'definitions',
  'title',
  'description',
  'default',
  'example',
  'examples',
  'deprecated',
  'readOnly',
  'writeOnly',
  // OpenAPI's hint which alternative of a oneOf applies; the alternatives themselves say the same.
  'discriminator',
  'contentEncoding',
  'contentMediaType',
]);

/** Known to JSON Schema and not expressible here: named in the refusal. */
export const unsupportedKeywords: ReadonlySet<string> = new Set([
  'not',
  'if',
  'then',
  'else',
  'dependentRequired',
  'dependentSchemas',
  'dependencies',
  'patternProperties',
  'propertyNames',
  'minProperties',
  'maxProperties',
  'unevaluatedProperties',
  'unevaluatedItems',
  'additionalItems',
  'contains',
  'minContains',
  'maxContains',
  'uniqueItems',
  'multipleOf',
  '$anchor',
  '$dynamicRef',
  '$dynamicAnchor',
  '$recursiveRef',
  '$vocabulary',
  'contentSchema',
]);

export function isSchemaObject(value: JsonValue | undefined): value is SchemaObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Renders a schema as a page: one row a key, from the descriptions in the schema itself. */
import { z } from 'zod';

interface JsonSchema {
  type?: string | string[];
  description?: string;
  default?: unknown;
  enum?: unknown[];
  const?: unknown;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  prefixItems?: JsonSchema[];
  additionalProperties?: JsonSchema | boolean;
  anyOf?: JsonSchema[];
  minimum?: number;
  maximum?: number;
}

/** Markdown rows `| key | value | default | meaning |` of every key below the schema, depth first. */
export function schemaRows(schema: z.ZodType): string[] {
  return rows(z.toJSONSchema(schema, { io: 'input' }) as JsonSchema, '');
}

function rows(schema: JsonSchema, prefix: string): string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, value]) => {
    const path = `${prefix}${key}`;
    const needed = schema.required?.includes(key) ?? false;
    const inner = nested(value);
    const own = `| \`${path}\` | ${cell(kind(value))} | ${needed ? '**needed**' : cell(defaultOf(value))} | ${cell(value.description ?? '')} |`;
    return [own, ...(inner ? rows(inner.schema, `${path}${inner.suffix}.`) : [])];
  });
}

function nested(schema: JsonSchema): { schema: JsonSchema; suffix: string } | undefined {
  if (schema.properties) return { schema, suffix: '' };
  if (schema.items?.properties) return { schema: schema.items, suffix: '[]' };
  return undefined;
}

function kind(schema: JsonSchema): string {
  if (schema.enum) return schema.enum.map((value) => `\`${String(value)}\``).join(', ');
  if (schema.const !== undefined) return `\`${String(schema.const)}\``;
  if (schema.anyOf) return [...new Set(schema.anyOf.map(kind))].join(' or ');
  if (schema.prefixItems) return `list of ${schema.prefixItems.length}`;
  if (schema.type === 'array')
    return `list of ${schema.items?.properties ? 'mappings' : schema.items ? kind(schema.items) : 'anything'}`;
  if (schema.type === 'object') return 'mapping';
  if (schema.type === 'string') return 'text';
  if (schema.type === 'integer') return 'whole number';
  return String(schema.type);
}

function defaultOf(schema: JsonSchema): string {
  if (schema.default === undefined || nested(schema)?.suffix === '') return '';
  return `\`${JSON.stringify(schema.default)}\``;
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ');
}

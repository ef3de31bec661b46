/** A site draft as a YAML file for people: every key with what it means, and what was found out about it. */
import { Document, isMap, isScalar, isSeq, type YAMLMap } from 'yaml';
import { z } from 'zod';
import { siteSchema } from '../spec/site.ts';
import type { SiteDraft } from './discover.ts';
import { stubLines } from './site-draft-stubs.ts';

interface JsonSchema {
  description?: string;
  properties?: Record<string, JsonSchema>;
  items?: JsonSchema;
}

/** The text of the config file; it fits the site schema. */
export function renderSiteDraft(draft: SiteDraft): string {
  const document = new Document(draft.site);
  const schema = z.toJSONSchema(siteSchema, { io: 'input', unrepresentable: 'any' }) as JsonSchema;
  document.commentBefore = [
    ' Site config written by "hpcserve init" from what the cluster says. Read it, correct it, keep it.',
    ' Paths may begin with ~ and hold $NAME. "hpcserve doctor" checks it.',
    ...draft.warnings.map((warning) => ` CHECK: ${warning}`),
  ].join('\n');
  if (isMap(document.contents)) comment(document.contents, schema, '', draft.notes, new Set());
  return `${document.toString({ lineWidth: 110 })}${stubLines(draft.site).join('\n')}\n`;
}

function comment(
  map: YAMLMap,
  schema: JsonSchema | undefined,
  path: string,
  notes: ReadonlyMap<string, readonly string[]>,
  explained: Set<string>,
): void {
  for (const [index, pair] of map.items.entries()) {
    if (!isScalar(pair.key)) continue;
    const name = String(pair.key.value);
    const keyPath = path === '' ? name : `${path}.${name}`;
    const property = schema?.properties?.[name];
    // A key of a list's entries is explained in the first entry only.
    const generic = keyPath.replace(/\.\d+(?=\.|$)/g, '[]');
    const lines = [...(notes.get(keyPath) ?? [])];
    if (property?.description !== undefined && !explained.has(generic)) lines.unshift(property.description);
    explained.add(generic);
    if (lines.length > 0) pair.key.commentBefore = lines.map((line) => ` ${line}`).join('\n');
    if (index > 0 && path === '') pair.key.spaceBefore = true;
    if (isMap(pair.value)) comment(pair.value, property, keyPath, notes, explained);
    if (isSeq(pair.value))
      for (const [position, item] of pair.value.items.entries()) {
        if (!isMap(item)) continue;
        const found = notes.get(`${keyPath}.${position}`);
        if (found !== undefined) item.commentBefore = found.map((line) => ` ${line}`).join('\n');
        comment(item, property?.items, `${keyPath}.${position}`, notes, explained);
      }
  }
}

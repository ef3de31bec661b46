/**
 * What does not keep to a rule of style yet: `.ci/style-exceptions.json`, as rule → file → number of findings. A file
 * may have no more than its number, and no fewer either, so that the list shrinks with every file that is mended.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { packageRoot } from '../../host/package-root.ts';
import type { Finding } from './rule.ts';

export const exceptionsPath = '.ci/style-exceptions.json';

const exceptionsSchema = z.record(z.string(), z.record(z.string(), z.number().int().positive()));

/** rule → file → number of findings. */
export type Exceptions = z.infer<typeof exceptionsSchema>;

export function readExceptions(): Exceptions {
  const text = readFileSync(join(packageRoot, exceptionsPath), 'utf8');
  return exceptionsSchema.parse(JSON.parse(text));
}

/** How many findings each file has, in the order of paths. */
export function countByFile(findings: readonly Finding[]): Record<string, number> {
  const counts: Record<string, number> = {};
  const paths = findings.map(({ path }) => path).sort();
  for (const path of paths) counts[path] = (counts[path] ?? 0) + 1;
  return counts;
}

export interface Difference {
  path: string;
  listed: number;
  found: number;
}

/** The files whose number is another than the one that is listed. */
export function differences(
  listed: Readonly<Record<string, number>>,
  found: Readonly<Record<string, number>>,
): Difference[] {
  return [...new Set([...Object.keys(listed), ...Object.keys(found)])]
    .sort()
    .map((path) => ({ path, listed: listed[path] ?? 0, found: found[path] ?? 0 }))
    .filter((each) => each.listed !== each.found);
}

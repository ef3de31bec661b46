/** Reading what engines say of their own limits: numbers in JSON of any shape, and labels of Prometheus samples. */
import type { EngineLimits } from '../../spec/agent-state.ts';

/** As `EngineLimits`, without what is not known or is no limit. */
export function limitsOf(fields: { [K in keyof EngineLimits]: EngineLimits[K] | undefined }): EngineLimits {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== 0));
}

/**
 * The first whole number above 0 that stands under one of these names, at any depth; names in order of preference.
 * Undefined where the text is no JSON, or has none.
 */
export function numberIn(text: string, ...names: string[]): number | undefined {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  for (const name of names) {
    const found = search(json, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

function search(json: unknown, name: string): number | undefined {
  if (typeof json !== 'object' || json === null) return undefined;
  const own = (json as Record<string, unknown>)[name];
  if (typeof own === 'number' && Number.isSafeInteger(own) && own > 0) return own;
  for (const value of Object.values(json)) {
    const found = search(value, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Labels of the first sample of a metric; undefined where there is none. */
export function labelsOf(text: string, metric: string): ReadonlyMap<string, string> | undefined {
  const line = text.split('\n').find((each) => each.startsWith(`${metric}{`));
  if (line === undefined) return undefined;
  return new Map(
    [...line.matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name!, value!]),
  );
}

/** A whole number as engines write it for people: `34,952`. */
export function wholeNumber(text: string | undefined): number | undefined {
  const value = Number(text?.replaceAll(',', ''));
  return Number.isSafeInteger(value) && value > 0 ? value : undefined;
}

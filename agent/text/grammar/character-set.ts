import { type CharacterRange, characterClass, either, literal } from './gbnf.ts';

/** A set of code points as sorted, disjoint ranges. */
export type CharacterSet = readonly CharacterRange[];

/** All that a JSON string can hold: Unicode scalar values. */
const universe: CharacterSet = [
  [0, 0xd7ff],
  [0xe000, 0x10ffff],
];

export const digits: CharacterSet = [[0x30, 0x39]];
export const wordCharacters: CharacterSet = normalise([
  [0x30, 0x39],
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]);
/** ECMA-262 WhiteSpace and LineTerminator. */
export const spaces: CharacterSet = normalise([
  [0x09, 0x0d],
  [0x20, 0x20],
  [0xa0, 0xa0],
  [0x1680, 0x1680],
  [0x2000, 0x200a],
  [0x2028, 0x2029],
  [0x202f, 0x202f],
  [0x205f, 0x205f],
  [0x3000, 0x3000],
  [0xfeff, 0xfeff],
]);
export const lineBreaks: CharacterSet = normalise([
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
]);

export function normalise(ranges: readonly CharacterRange[]): CharacterSet {
  const sorted = [...ranges].sort((a, b) => a[0] - b[0]);
  const merged: [number, number][] = [];
  for (const [low, high] of sorted) {
    const last = merged.at(-1);
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else merged.push([low, high]);
  }
  return merged;
}

export function complement(set: CharacterSet): CharacterSet {
  return subtract(universe, set);
}

function subtract(from: CharacterSet, set: CharacterSet): CharacterSet {
  let rest = from.map(([low, high]) => [low, high] as [number, number]);
  for (const [low, high] of set) {
    rest = rest.flatMap(([a, b]) => {
      const parts: [number, number][] = [];
      if (a < low) parts.push([a, Math.min(b, low - 1)]);
      if (b > high) parts.push([Math.max(a, high + 1), b]);
      return parts;
    });
  }
  return rest;
}

/** Characters that JSON writes with an escape, and how; other control characters are not generated. */
const escapes: ReadonlyMap<number, string> = new Map([
  [0x22, '\\"'],
  [0x5c, '\\\\'],
  [0x08, '\\b'],
  [0x09, '\\t'],
  [0x0a, '\\n'],
  [0x0c, '\\f'],
  [0x0d, '\\r'],
]);
const mustEscape: CharacterSet = normalise([
  [0x00, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
]);

/** @returns GBNF for one character of a set inside of a JSON string; undefined where none can be written. */
export function characterInString(set: CharacterSet): string | undefined {
  const alternatives: string[] = [];
  const plain = subtract(set, mustEscape);
  if (plain.length > 0) alternatives.push(characterClass(plain));
  for (const [code, text] of escapes)
    if (set.some(([low, high]) => low <= code && code <= high)) alternatives.push(literal(text));
  return alternatives.length === 0 ? undefined : either(alternatives);
}

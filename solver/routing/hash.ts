/** A 32-bit hash of two integers (the finalizer of MurmurHash3). */
export function mix(seed: number, salt: number): number {
  let h = (seed ^ Math.imul(salt, 0x9e3779b1)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/** Goes on with a 32-bit hash over UTF-16 units [start, end) of a text (FNV-1a, by units instead of bytes). */
export function extendHash(hash: number, text: string, start: number, end: number): number {
  let h = hash;
  for (let index = start; index < end; index++) h = Math.imul(h ^ text.charCodeAt(index), 0x01000193);
  return h >>> 0;
}

/** Offset basis of FNV-1a. */
export const emptyHash = 0x811c9dc5;

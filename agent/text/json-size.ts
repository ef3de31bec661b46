/** What makes a JSON text slow to read: not its length, but how many values it becomes. */
export interface JsonSize {
  /** Objects and lists. */
  containers: number;
  /** Names of members included. */
  strings: number;
  /** Members of objects and elements of lists. */
  members: number;
  /** Objects and lists in each other. */
  depth: number;
}

const quote = 0x22;
const backslash = 0x5c;
const comma = 0x2c;
const opened: ReadonlySet<number> = new Set([0x5b, 0x7b]);
const closed: ReadonlySet<number> = new Set([0x5d, 0x7d]);

/** Goes over the bytes once, without making anything of them; of what is no JSON it counts something. */
export function jsonSize(bytes: Uint8Array): JsonSize {
  let containers = 0;
  let strings = 0;
  let commas = 0;
  let depth = 0;
  let deepest = 0;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at]!;
    if (byte === quote) {
      strings++;
      for (at++; at < bytes.length && bytes[at] !== quote; at++) if (bytes[at] === backslash) at++;
    } else if (byte === comma) commas++;
    // All four brackets, and few other characters, have these bits.
    else if ((byte & 0x59) === 0x59) {
      if (opened.has(byte)) {
        containers++;
        if (++depth > deepest) deepest = depth;
      } else if (closed.has(byte)) depth--;
    }
  }
  return { containers, strings, members: containers + commas, depth: deepest };
}

/**
 * Philox4x32-10, a counter-based random generator: a pure function of (key, counter), so the draw of a
 * position does not depend on what was drawn before it, and an answer continued elsewhere draws the same.
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC '11, §3.3; held
 * against the known answers of its Random123 distribution by test/agent/text/sampling/philox.test.ts.
 */

const multiplier0 = 0xd2511f53;
const multiplier1 = 0xcd9e8d57;
/** Weyl constants by which the key advances from round to round: the golden ratio and √3 − 1. */
const weyl0 = 0x9e3779b9;
const weyl1 = 0xbb67ae85;
const rounds = 10;

/**
 * @param counter four unsigned 32-bit words
 * @param key two unsigned 32-bit words
 * @returns four unsigned 32-bit words
 */
export function philox4x32(
  counter: readonly [number, number, number, number],
  key: readonly [number, number],
): [number, number, number, number] {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < rounds; round++) {
    const high0 = multiplyHigh(multiplier0, c0);
    const low0 = Math.imul(multiplier0, c0);
    const high1 = multiplyHigh(multiplier1, c2);
    const low1 = Math.imul(multiplier1, c2);
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1 >>> 0;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0 >>> 0;
    k0 = (k0 + weyl0) >>> 0;
    k1 = (k1 + weyl1) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** Upper 32 bits of the 64-bit product of two unsigned 32-bit numbers, by 16-bit halves. */
function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const cross = aLow * bHigh + (middle & 0xffff);
  return (aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(cross / 0x10000)) >>> 0;
}

/** Names one draw: which answer of a request (`n`), which position, and which attempt at that position. */
export interface Draw {
  /** Any integer of 64 bits; negative ones count as their two's complement. */
  seed: number;
  /** Index of the token in its sequence, prompt included. */
  position: number;
  /** Index of the answer where a request asked for `n`. */
  choice: number;
  /** 0 for the first draw of a position, 1 for the one after a grammar refused it. */
  attempt: number;
}

/** @returns a number in [0, 1) with 53 random bits. */
export function uniform(draw: Draw): number {
  const seedLow = draw.seed >>> 0;
  const seedHigh = Math.floor(draw.seed / 0x1_0000_0000) >>> 0;
  const [a, b] = philox4x32([draw.position >>> 0, draw.attempt, draw.choice, 0], [seedLow, seedHigh]);
  return ((a >>> 5) * 0x400_0000 + (b >>> 6)) / 0x20_0000_0000_0000;
}

/** Conversions to 16-bit floating point, rounding to nearest even. */

const floats = new Float32Array(1);
const bits = new Uint32Array(floats.buffer);

/** IEEE 754 binary16 bits of a value. */
export function toHalf(value: number): number {
  floats[0] = value;
  const word = bits[0]!;
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fffffff;
  if (magnitude >= 0x47800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 aligns the last bit of the result with the last bit of the sum, which rounds.
    floats[0] = Math.abs(floats[0]!) + 0.5;
    return sign | (bits[0]! - 0x3f000000);
  }
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - 0x38000000) >>> 13);
}

/** The value of IEEE 754 binary16 bits. */
export function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** bfloat16 bits of a value that is not NaN. */
export function toBfloat16(value: number): number {
  floats[0] = value;
  const word = bits[0]!;
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

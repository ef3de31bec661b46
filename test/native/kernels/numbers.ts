/** Numbers of 16 bits, and numbers as the products round them. */

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** To the nearest BF16, ties to even. */
export function bf16Of(value: number): number {
  float[0] = value;
  return ((bits[0]! + 0x7fff + ((bits[0]! >>> 16) & 1)) >>> 16) & 0xffff;
}

export function fromBf16(half: number): number {
  bits[0] = half << 16;
  return float[0]!;
}

export function fromF16(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** scale × integer − minimum as the tile unit takes it: see HK_CUT_OFF in native/kernels/cut-off.h. */
export function cutOff(scale: number, integer: number, minimum = 0): number {
  const larger = Math.fround(1.00271);
  float[0] = Math.fround(scale * larger) * integer - Math.fround(minimum * larger);
  bits[0]! &= 0xffff0000;
  return float[0]!;
}

/**
 * Activations as bytes with a scale for each 32, as the products as bytes take them.
 *
 * @param x rows of k elements, which is a multiple of 32
 */
export function asBytes(x: Float32Array): Float64Array {
  const rounded = new Float64Array(x.length);
  for (let begin = 0; begin < x.length; begin += 32) {
    const block = x.subarray(begin, begin + 32);
    const found = block.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const largest = found < 1e-30 ? 0 : found;
    const inverse = largest > 0 ? Math.fround(127 / largest) : 0;
    const scale = Math.fround(largest / 127);
    for (const [at, value] of block.entries())
      rounded[begin + at] = scale * nearest(Math.fround(value * inverse));
  }
  return rounded;
}

/** To the nearest whole number, ties to even. */
function nearest(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

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

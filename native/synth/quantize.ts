/**
 * Encodes rows of float32 into ggml's storage types. F16, BF16, Q8_0 and Q4_0 give the bytes of ggml's
 * reference quantizers (a test holds them against the library). Q4_K and Q6_K have ggml's layout but fit each
 * sub-block by its range instead of ggml's error search: a little less precise, twenty times faster, and the
 * bytes depend neither on the version of ggml nor on the processor. Block layouts: ggml-common.h.
 */
import { fromHalf, toBfloat16, toHalf } from './half.ts';

const synthTensorTypes = ['F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q6_K'] as const;
export type SynthTensorType = (typeof synthTensorTypes)[number];

/** Encodes `row` (a multiple of the block size) into `out` at byte `at`. */
export type RowEncoder = (row: Float32Array, out: Uint8Array, at: number) => void;

export const rowEncoders: Readonly<Record<SynthTensorType, RowEncoder>> = {
  F32: (row, out, at) => {
    out.set(new Uint8Array(row.buffer, row.byteOffset, row.byteLength), at);
  },
  F16: (row, out, at) => encodeWords(row, out, at, toHalf),
  BF16: (row, out, at) => encodeWords(row, out, at, toBfloat16),
  Q8_0: encodeQ8_0,
  Q4_0: encodeQ4_0,
  Q4_K: encodeQ4_K,
  Q6_K: encodeQ6_K,
};

const { fround, abs, min, max } = Math;

function encodeWords(
  row: Float32Array,
  out: Uint8Array,
  at: number,
  convert: (value: number) => number,
): void {
  for (let index = 0; index < row.length; index++) putWord(out, at + 2 * index, convert(row[index]!));
}

function putWord(out: Uint8Array, at: number, word: number): void {
  out[at] = word & 0xff;
  out[at + 1] = word >>> 8;
}

/** Half away from zero, as C's roundf. */
function roundAway(value: number): number {
  return value < 0 ? -Math.floor(0.5 - value) : Math.floor(value + 0.5);
}

/** 34 bytes: f16 scale, 32 signed bytes. */
function encodeQ8_0(row: Float32Array, out: Uint8Array, at: number): void {
  for (let start = 0; start < row.length; start += 32, at += 34) {
    let largest = 0;
    for (let index = start; index < start + 32; index++) largest = max(largest, abs(row[index]!));
    const scale = fround(largest / 127);
    const inverse = scale === 0 ? 0 : fround(1 / scale);
    putWord(out, at, toHalf(scale));
    for (let index = 0; index < 32; index++) {
      out[at + 2 + index] = roundAway(fround(row[start + index]! * inverse));
    }
  }
}

/** 18 bytes: f16 scale, 32 nibbles with offset 8; byte i holds elements i (low) and i + 16 (high). */
function encodeQ4_0(row: Float32Array, out: Uint8Array, at: number): void {
  for (let start = 0; start < row.length; start += 32, at += 18) {
    let largest = 0;
    let signed = 0;
    for (let index = start; index < start + 32; index++) {
      const value = row[index]!;
      if (abs(value) > largest) {
        largest = abs(value);
        signed = value;
      }
    }
    const scale = fround(signed / -8);
    const inverse = scale === 0 ? 0 : fround(1 / scale);
    putWord(out, at, toHalf(scale));
    for (let index = 0; index < 16; index++) {
      const low = min(15, fround(fround(row[start + index]! * inverse) + 8.5) | 0);
      const high = min(15, fround(fround(row[start + index + 16]! * inverse) + 8.5) | 0);
      out[at + 2 + index] = low | (high << 4);
    }
  }
}

const subScales = new Float64Array(16);
const subMinima = new Float64Array(16);
const levels = new Uint8Array(256);

/** 144 bytes: f16 scale of scales, f16 scale of minima, 8 × (6 + 6) bits, 256 nibbles. */
function encodeQ4_K(row: Float32Array, out: Uint8Array, at: number): void {
  for (let start = 0; start < row.length; start += 256, at += 144) {
    let largestScale = 0;
    let largestMinimum = 0;
    for (let sub = 0; sub < 8; sub++) {
      let low = 0;
      let high = 0;
      for (let index = start + 32 * sub; index < start + 32 * sub + 32; index++) {
        low = min(low, row[index]!);
        high = max(high, row[index]!);
      }
      subScales[sub] = (high - low) / 15;
      subMinima[sub] = -low;
      largestScale = max(largestScale, subScales[sub]!);
      largestMinimum = max(largestMinimum, -low);
    }
    const scaleHalf = toHalf(largestScale / 63);
    const minimumHalf = toHalf(largestMinimum / 63);
    // The stored, rounded scales: levels fit what a reader will compute with.
    const scaleUnit = fromHalf(scaleHalf);
    const minimumUnit = fromHalf(minimumHalf);
    putWord(out, at, scaleHalf);
    putWord(out, at + 2, minimumHalf);
    out.fill(0, at + 4, at + 16);
    for (let sub = 0; sub < 8; sub++) {
      const scale = scaleUnit === 0 ? 0 : min(63, Math.round(subScales[sub]! / scaleUnit));
      const minimum = minimumUnit === 0 ? 0 : min(63, Math.round(subMinima[sub]! / minimumUnit));
      packScale(out, at + 4, sub, scale, minimum);
      const inverse = scale === 0 ? 0 : 1 / (scaleUnit * scale);
      const shift = minimumUnit * minimum;
      for (let index = 32 * sub; index < 32 * sub + 32; index++) {
        levels[index] = max(0, min(15, Math.round((row[start + index]! + shift) * inverse)));
      }
    }
    for (let pair = 0; pair < 4; pair++) {
      for (let index = 0; index < 32; index++) {
        out[at + 16 + 32 * pair + index] =
          levels[64 * pair + index]! | (levels[64 * pair + 32 + index]! << 4);
      }
    }
  }
}

/** Six bits of scale and six of minimum a sub-block: the first four whole bytes, the last four split up. */
function packScale(out: Uint8Array, at: number, sub: number, scale: number, minimum: number): void {
  if (sub < 4) {
    out[at + sub]! |= scale;
    out[at + sub + 4]! |= minimum;
  } else {
    out[at + sub + 4] = (scale & 15) | ((minimum & 15) << 4);
    out[at + sub - 4]! |= (scale >> 4) << 6;
    out[at + sub]! |= (minimum >> 4) << 6;
  }
}

/** 210 bytes: 256 × low 4 bits, 256 × high 2 bits, 16 signed sub-scales, f16 scale; values have offset 32. */
function encodeQ6_K(row: Float32Array, out: Uint8Array, at: number): void {
  for (let start = 0; start < row.length; start += 256, at += 210) {
    let extreme = 0;
    for (let sub = 0; sub < 16; sub++) {
      let signed = 0;
      for (let index = start + 16 * sub; index < start + 16 * sub + 16; index++) {
        if (abs(row[index]!) > abs(signed)) signed = row[index]!;
      }
      subScales[sub] = signed / -32;
      if (abs(subScales[sub]!) > abs(extreme)) extreme = subScales[sub]!;
    }
    const unitHalf = toHalf(extreme / -128);
    const unit = fromHalf(unitHalf);
    for (let sub = 0; sub < 16; sub++) {
      const scale = unit === 0 ? 0 : max(-128, min(127, Math.round(subScales[sub]! / unit)));
      out[at + 192 + sub] = scale;
      const inverse = scale === 0 ? 0 : 1 / (unit * scale);
      for (let index = 16 * sub; index < 16 * sub + 16; index++) {
        levels[index] = max(0, min(63, Math.round(row[start + index]! * inverse) + 32));
      }
    }
    for (let half = 0; half < 2; half++) {
      for (let index = 0; index < 32; index++) {
        const first = levels[128 * half + index]!;
        const second = levels[128 * half + index + 32]!;
        const third = levels[128 * half + index + 64]!;
        const fourth = levels[128 * half + index + 96]!;
        out[at + 64 * half + index] = (first & 15) | ((third & 15) << 4);
        out[at + 64 * half + index + 32] = (second & 15) | ((fourth & 15) << 4);
        out[at + 128 + 32 * half + index] =
          (first >> 4) | ((second >> 4) << 2) | ((third >> 4) << 4) | ((fourth >> 4) << 6);
      }
    }
    putWord(out, at + 208, unitHalf);
  }
}

/** Our attention over block tables against double precision, on every instruction set here, and its fixed order. */
import { describe, expect, it } from 'vitest';
import { GgmlType, loadGgml } from '../../../native/ggml.ts';
import { PagedAttention } from '../../../native/paged-attention.ts';
import { attended, type Case, type KvName, madeCase, reference, segmentOf } from './attention-support.ts';
import { builtKernels, randomNumbers } from './support.ts';

const kernels = builtKernels();
const ggml = loadGgml();
/** With the tile unit attention is that of AVX-512. */
const sets = kernels.sets.filter(({ name }) => name !== 'AMX-BF16');
/** Of values up to 2, sums of up to 3,000 terms in F32; a token that is missing makes a hundred times as much. */
const error_max = 4e-6;

function worstError(made: Case, found: Float32Array): number {
  let worst = 0;
  for (const [at, value] of reference(made).entries()) {
    const error = Math.abs(found[at]! - value);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

/** Heads, KV heads, elements: one, groups of every remainder, odd sizes, the largest. */
const headShapes: [number, number, number][] = [
  [1, 1, 4],
  [3, 1, 20],
  [4, 4, 64],
  [7, 1, 48],
  [10, 2, 96],
  [8, 2, 64],
  [2, 1, 256],
];
const mixtures: [rows: number, position: number][][] = [
  [[1, 0]],
  [
    [2, 0],
    [1, 15],
    [1, 16],
  ],
  [
    [1, 63],
    [1, 64],
    [1, 254],
    [1, 255],
    [1, 256],
  ],
  [
    [17, 0],
    [1, 700],
    [3, 250],
    [40, 31],
  ],
  [
    [1, 2999],
    [1, 1],
  ],
];

describe.each(sets)('$name', (set) => {
  it.each(['F16', 'Q8_0', 'F32'] as KvName[])('%s keys and values of every shape', (kind) => {
    for (const [index, [n_head, n_head_kv, odd]] of headShapes.entries()) {
      const head_dim = kind === 'Q8_0' ? Math.ceil(odd / 32) * 32 : odd;
      const sequences = mixtures[index % mixtures.length]!;
      const made = madeCase(kind, { n_head, n_head_kv, head_dim }, sequences, randomNumbers(index + 1));
      const found = attended(ggml, kernels, set, made, { padding: index % 3 });
      const what = `${n_head} heads, ${n_head_kv} KV heads of ${head_dim}`;
      expect(worstError(made, found), what).toBeLessThan(error_max);
      for (const value of found.subarray(made.queries.length)) expect(value).toBe(0);
    }
  });

  it('gives a row the same bits alone, in every batch and chunk, on any number of threads, run after run', () => {
    const sequences: [number, number][] = [
      [1, 1100],
      [70, 480],
      [1, 300],
      [600, 0],
      [1, 20],
    ];
    const heads = { n_head: 6, n_head_kv: 2, head_dim: 64 };
    const made = madeCase('F16', heads, sequences, randomNumbers(77));
    const width = heads.n_head * heads.head_dim;
    const together = attended(ggml, kernels, set, made);
    expect(worstError(made, together)).toBeLessThan(error_max);
    for (const [threads, runs] of [
      [1, 2],
      [2, 2],
      [5, 1],
    ] as const)
      expect(attended(ggml, kernels, set, made, { threads, runs }), `${threads} threads`).toEqual(together);
    let before = 0;
    for (const [index, [rows]] of sequences.entries()) {
      for (const chunk of rows === 1 ? [1] : [1, 7, 64]) {
        for (let from = 0; from < rows; from += chunk) {
          // One row at a time is slow to ask for: some of them tell.
          if (chunk === 1 && rows > 1 && from % 97 !== 0 && from !== rows - 1) continue;
          const count = Math.min(chunk, rows - from);
          const alone = attended(ggml, kernels, set, segmentOf(made, index, from, count));
          const begin = (before + from) * width;
          expect(alone, `rows from ${from} of sequence ${index} in chunks of ${chunk}`).toEqual(
            together.subarray(begin, begin + count * width),
          );
        }
      }
      before += rows;
    }
  });

  it('has the same bits wherever blocks lie', () => {
    const heads = { n_head: 4, n_head_kv: 2, head_dim: 32 };
    const made = madeCase(
      'F16',
      heads,
      [
        [1, 600],
        [33, 100],
      ],
      randomNumbers(5),
    );
    const moved: Case = { ...made, block_rows: made.block_rows.slice() };
    const row_bytes = 2 * heads.n_head_kv * heads.head_dim;
    const move = ({ bytes, values }: Case['keys']) => {
      const block_bytes = 16 * row_bytes;
      const turned = new Uint8Array(bytes.length);
      for (let at = 0; at < bytes.length; at += block_bytes)
        turned.set(bytes.subarray(at, at + block_bytes), bytes.length - block_bytes - at);
      return { bytes: turned, values };
    };
    moved.keys = move(made.keys);
    moved.values = move(made.values);
    moved.block_rows = made.block_rows.map((row) => made.n_rows - 16 - row);
    expect(attended(ggml, kernels, set, moved)).toEqual(attended(ggml, kernels, set, made));
  });

  it('keeps to scores that are far apart, and hands on what is no number', () => {
    const heads = { n_head: 2, n_head_kv: 1, head_dim: 8 };
    const made = madeCase(
      'F32',
      heads,
      [
        [1, 400],
        [20, 300],
      ],
      randomNumbers(8),
    );
    for (const [at, value] of made.queries.entries()) made.queries[at] = value * 300;
    expect(worstError(made, attended(ggml, kernels, set, made))).toBeLessThan(20 * error_max);
    const floats = new Float32Array(made.keys.bytes.buffer);
    const row = made.block_rows[made.segments[0]!.blocks[3]!]!;
    floats[row * 8 + 2] = Number.NaN;
    const found = attended(ggml, kernels, set, made);
    expect(found.subarray(0, 16).every(Number.isNaN)).toBe(true);
    expect(found.subarray(16).some(Number.isNaN)).toBe(false);
  });

  it('tells when a token of another sequence is read', () => {
    const made = madeCase(
      'F16',
      { n_head: 2, n_head_kv: 1, head_dim: 64 },
      [
        [1, 200],
        [1, 90],
      ],
      randomNumbers(3),
    );
    const found = attended(ggml, kernels, set, made);
    const [first, second] = made.segments as [Case['segments'][0], Case['segments'][0]];
    const wrong = {
      ...made,
      segments: [{ ...first, blocks: [second.blocks[0]!, ...Array.from(first.blocks).slice(1)] }, second],
    };
    expect(worstError(wrong, found)).toBeGreaterThan(100 * error_max);
  });
});

it('leaves to others what it cannot attend', () => {
  const open = (more: object) =>
    PagedAttention.open(ggml, kernels, {
      kv_type: GgmlType.F16,
      n_head: 8,
      n_head_kv: 2,
      head_dim: 64,
      ...more,
    });
  expect(open({})).toBeDefined();
  expect(open({ kv_type: GgmlType.Q8_0 })).toBeDefined();
  expect(open({ kv_type: GgmlType.Q8_0, head_dim: 80 })).toBeUndefined();
  expect(open({ kv_type: GgmlType.Q4_0 })).toBeUndefined();
  expect(open({ head_dim: 512 })).toBeUndefined();
  expect(open({ n_head: 9 })).toBeUndefined();
  expect(open({ n_head: 512, n_head_kv: 1 })).toBeUndefined();
});

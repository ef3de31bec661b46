/** Made-up queries and KV caches, attention in double precision, and our attention in a graph of ggml. */
import { CpuCompute } from '../../../agent/backend/cpu/cpu-compute.ts';
import type { CpuKernels, KernelSet } from '../../../native/cpu-kernels.ts';
import { type Ggml, GgmlType, memoryAt } from '../../../native/ggml.ts';
import {
  type AttentionHeads,
  type AttentionSegment,
  PagedAttention,
} from '../../../native/paged-attention.ts';
import { fromF16 } from './numbers.ts';

const block_tokens = 16;

export interface Cache {
  /** As ggml stores them: [row][KV head × head_dim]. */
  bytes: Uint8Array;
  /** The same numbers. */
  values: Float64Array;
}

export interface Case extends AttentionHeads {
  n_rows: number;
  block_rows: Int32Array;
  segments: AttentionSegment[];
  /** [rows, n_head, head_dim]. */
  queries: Float32Array;
  keys: Cache;
  values: Cache;
}

const kvTypes = { F32: GgmlType.F32, F16: GgmlType.F16, Q8_0: GgmlType.Q8_0 } as const;
export type KvName = keyof typeof kvTypes;

/** A cache of random numbers; rows that belong to nobody are NaN, so that who reads them shows. */
function madeCache(kind: KvName, rows: number, width: number, used: Set<number>, next: () => number): Cache {
  const values = new Float64Array(rows * width);
  const element = { F32: 4, F16: 2, Q8_0: 34 / 32 }[kind];
  const bytes = new Uint8Array(rows * width * element);
  const halves = new Uint16Array(bytes.buffer, 0, kind === 'F16' ? rows * width : 0);
  const floats = new Float32Array(bytes.buffer, 0, kind === 'F32' ? rows * width : 0);
  for (let at = 0; at < rows * width; at++) {
    const isUsed = used.has(Math.floor(at / width));
    if (kind === 'F32') {
      floats[at] = isUsed ? next() * 2 : Number.NaN;
      values[at] = floats[at]!;
    } else if (kind === 'F16') {
      // Of either sign, from 2^-6 to 2; now and then the smallest there is.
      const random = next();
      const size = at % 97 === 0 ? 1 : 0x2400 + Math.floor(Math.abs(random) * 0x1c00);
      halves[at] = isUsed ? (random < 0 ? 0x8000 : 0) | size : 0x7e00;
      values[at] = fromF16(halves[at]!);
    } else {
      const block = 34 * Math.floor(at / 32);
      if (at % 32 === 0) {
        const half = isUsed ? 0x1c00 + Math.floor(Math.abs(next()) * 0x800) : 0x7e00;
        bytes[block] = half & 255;
        bytes[block + 1] = half >> 8;
      }
      const integer = Math.floor(next() * 127);
      bytes[block + 2 + (at % 32)] = integer;
      values[at] = fromF16(bytes[block]! | (bytes[block + 1]! << 8)) * integer;
    }
  }
  return { bytes, values };
}

/** @param sequences rows, and tokens before them; their blocks lie anywhere, in any order */
export function madeCase(
  kind: KvName,
  heads: { n_head: number; n_head_kv: number; head_dim: number },
  sequences: readonly (readonly [rows: number, position: number])[],
  next: () => number,
): Case {
  const { n_head, n_head_kv, head_dim } = heads;
  const counts = sequences.map(([rows, position]) => Math.ceil((rows + position) / block_tokens));
  // A block between any two belongs to nobody.
  const blocks = 2 * counts.reduce((sum, count) => sum + count, 0) + 1;
  const n_rows = blocks * block_tokens;
  const places = Array.from({ length: blocks }, (_, index) => index);
  for (let index = blocks - 1; index > 0; index--) {
    const other = Math.floor(((next() + 1) / 2) * (index + 1)) % (index + 1);
    [places[index], places[other]] = [places[other]!, places[index]!];
  }
  const block_rows = Int32Array.from(places, (place) => place * block_tokens);
  let block = 0;
  const used = new Set<number>();
  const segments = sequences.map(([rows, position], index): AttentionSegment => {
    const own = Array.from({ length: counts[index]! }, () => block++);
    for (let token = 0; token < rows + position; token++)
      used.add(block_rows[own[Math.floor(token / block_tokens)]!]! + (token % block_tokens));
    return { rows, position, blocks: own };
  });
  const rows = sequences.reduce((sum, [count]) => sum + count, 0);
  const width = n_head_kv * head_dim;
  return {
    kv_type: kvTypes[kind],
    ...heads,
    n_rows,
    block_rows,
    segments,
    queries: Float32Array.from({ length: rows * n_head * head_dim }, () => next() * 3),
    keys: madeCache(kind, n_rows, width, used, next),
    values: madeCache(kind, n_rows, width, used, next),
  };
}

/** Attention in double precision: [rows, n_head × head_dim]. */
export function reference(made: Case): Float64Array {
  const { n_head, n_head_kv, head_dim, block_rows, segments, queries, keys, values } = made;
  const result = new Float64Array(queries.length);
  const width = n_head_kv * head_dim;
  let row = 0;
  for (const { rows, position, blocks } of segments)
    for (let offset = 0; offset < rows; offset++, row++)
      for (let head = 0; head < n_head; head++) {
        const q = (row * n_head + head) * head_dim;
        const kvHead = Math.floor((head * n_head_kv) / n_head) * head_dim;
        const places = Array.from({ length: position + offset + 1 }, (_, token) => {
          const kvRow = block_rows[blocks[Math.floor(token / block_tokens)]!]! + (token % block_tokens);
          return kvRow * width + kvHead;
        });
        const scores = places.map((place) => {
          let sum = 0;
          for (let at = 0; at < head_dim; at++) sum += queries[q + at]! * keys.values[place + at]!;
          return sum / Math.sqrt(head_dim);
        });
        const highest = scores.reduce((a, b) => Math.max(a, b));
        const shares = scores.map((score) => Math.exp(score - highest));
        const total = shares.reduce((sum, share) => sum + share, 0);
        for (const [token, place] of places.entries())
          for (let at = 0; at < head_dim; at++)
            result[q + at]! += (shares[token]! / total) * values.values[place + at]!;
      }
  return result;
}

/** The part of a case that is one of its segments, cut to some of its rows. */
export function segmentOf(made: Case, index: number, from: number, rows: number): Case {
  const { segments, queries, n_head, head_dim } = made;
  const before = segments.slice(0, index).reduce((sum, segment) => sum + segment.rows, 0) + from;
  const width = n_head * head_dim;
  const { position, blocks } = segments[index]!;
  return {
    ...made,
    segments: [{ rows, position: position + from, blocks }],
    queries: queries.slice(before * width, (before + rows) * width),
  };
}

/**
 * @param padding rows behind those of the segments
 * @param runs of the same graph
 * @returns [rows + padding, n_head × head_dim] of the last run
 */
export function attended(
  ggml: Ggml,
  kernels: CpuKernels,
  set: KernelSet,
  made: Case,
  { threads = 1, padding = 0, runs = 1 } = {},
): Float32Array {
  const { n_head, n_head_kv, head_dim, n_rows, kv_type } = made;
  const attention = PagedAttention.open(ggml, kernels, made, set);
  if (!attention) throw new Error(`${set.name} does not attend`);
  const width = n_head * head_dim;
  const rows = made.queries.length / width + padding;
  const { words, partials } = attention.needs(made.segments);
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  const context = ggml.ggml_init({ mem_size: 2 ** 16, mem_buffer: null, no_alloc: true })!;
  const input = (type: number, ...shape: [number, number?, number?]) => {
    const tensor = ggml.ggml_new_tensor_3d(context, type, shape[0], shape[1] ?? 1, shape[2] ?? 1)!;
    ggml.ggml_set_input(tensor);
    return tensor;
  };
  const queries = input(GgmlType.F32, head_dim, n_head, rows);
  const keys = input(kv_type, n_head_kv * head_dim, n_rows);
  const values = input(kv_type, n_head_kv * head_dim, n_rows);
  const plan = input(GgmlType.I32, words);
  const result = attention.attend(context, { queries, keys, values, plan }, rows, partials);
  ggml.ggml_set_output(result);
  const graph = ggml.ggml_new_graph_custom(context, 16, false)!;
  ggml.ggml_build_forward_expand(graph, result);
  const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
  try {
    if (!ggml.ggml_gallocr_alloc_graph(allocator, graph)) throw new Error('no memory');
    const fill = (tensor: bigint, from: Uint8Array): void =>
      void memoryAt(ggml.ggml_get_data(tensor)!, from.length).set(from);
    fill(queries, new Uint8Array(made.queries.buffer, made.queries.byteOffset, made.queries.byteLength));
    fill(keys, made.keys.bytes);
    fill(values, made.values.bytes);
    const port = compute.open(graph);
    const planned = new Int32Array(port.input(plan, 4 * words));
    attention.writePlan(planned, made.segments, made.block_rows);
    const found = memoryAt(ggml.ggml_get_data(result)!, 4 * rows * width);
    for (let run = 0; run < runs; run++) {
      found.fill(0xff);
      port.run();
    }
    return new Float32Array(found.slice().buffer);
  } finally {
    ggml.ggml_gallocr_free(allocator);
    ggml.ggml_free(context);
    compute.free();
  }
}

import { type Ggml, GgmlType, memoryAt } from '../../native/ggml.ts';
import { type AttentionHeads, type AttentionSegment, PagedAttention } from '../../native/paged-attention.ts';
import type { Pointer } from '../../native/signature.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Compute } from '../backend/compute.ts';
import { flashAttention } from './flash-attention.ts';
import { GraphMemory } from './graph-memory.ts';
import { kv_block_tokens, rowsInOrder } from './kv-storage.ts';

/** Of a block of Q8_0: an F16 and 32 bytes. */
const q8_0_bytes = 34;
/** Half of −∞ in a causal mask. */
const half_negative_infinity = 0xfc00;
/** Rows of one sequence, and tokens before them. */
export interface TimedSegment {
  rows: number;
  position: number;
}

/** `ours`; ggml's over keys that lie in one extent; and ggml's over keys that are gathered first. */
export type AttentionWay = PagedAttention | 'in place' | 'gathered';

/** Attention of one layer over a batch, as an engine's graph has it. */
export class TimedAttention {
  readonly #ggml: Ggml;
  readonly #compute: Compute;
  readonly #heads: AttentionHeads;
  readonly #memory: GraphMemory;
  readonly #allocator: Pointer;
  readonly #graph: Pointer;
  readonly #results: { tensor: Pointer; floats: number }[] = [];
  /** What is written into each before the first run. */
  readonly #inputs: { tensor: Pointer; fill: (memory: Uint8Array) => void; bytes: number }[] = [];

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(
    ggml: Ggml,
    compute: Compute,
    way: AttentionWay,
    heads: AttentionHeads,
    segments: readonly TimedSegment[],
  ) {
    this.#ggml = ggml;
    this.#compute = compute;
    this.#heads = heads;
    const tensors = 16 + 12 * segments.length;
    this.#memory = new GraphMemory(ggml, tensors);
    this.#graph = ggml.ggml_new_graph_custom(this.#memory.context, tensors, false)!;
    const blocks = segments.map(({ rows, position }) => Math.ceil((rows + position) / kv_block_tokens));
    const n_rows = kv_block_tokens * blocks.reduce((sum, count) => sum + count, 0);
    const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
    const width = heads.n_head_kv * heads.head_dim;
    const queries = this.#input(GgmlType.F32, [heads.head_dim, heads.n_head, rows]);
    const keys = this.#input(heads.kv_type, [width, n_rows]);
    const values = this.#input(heads.kv_type, [width, n_rows]);
    if (way instanceof PagedAttention) this.#attendTogether(way, { queries, keys, values }, segments, blocks);
    else this.#attendEach(way, { queries, keys, values }, segments, blocks);
    this.#allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
    if (!ggml.ggml_gallocr_alloc_graph(this.#allocator, this.#graph)) {
      this.free();
      throw new HpcserveError('E_NATIVE_MEMORY', { what: 'no memory to time attention in' });
    }
    for (const { tensor, bytes, fill } of this.#inputs) fill(memoryAt(ggml.ggml_get_data(tensor)!, bytes));
  }

  run_ms(): number {
    const port = this.#compute.open(this.#graph);
    const started = performance.now();
    port.run();
    return performance.now() - started;
  }

  /** Of the last run, [rows, n_head × head_dim]; a copy. */
  result(): Float32Array {
    const result = new Float32Array(this.#results.reduce((sum, { floats }) => sum + floats, 0));
    let at = 0;
    for (const { tensor, floats } of this.#results) {
      result.set(
        new Float32Array(memoryAt(this.#ggml.ggml_get_data(tensor)!, 4 * floats).slice().buffer),
        at,
      );
      at += floats;
    }
    return result;
  }

  free(): void {
    this.#ggml.ggml_gallocr_free(this.#allocator);
    this.#memory.free();
  }

  #input(
    type: number,
    [ne0, ne1 = 1, ne2 = 1]: readonly number[],
    fill = (memory: Uint8Array): void => fillNoise(type, memory),
  ): Pointer {
    const tensor = this.#ggml.ggml_new_tensor_3d(this.#memory.context, type, ne0!, ne1, ne2)!;
    this.#ggml.ggml_set_input(tensor);
    // Else other tensors take its place once it was read: it is written once, and read in every run.
    this.#ggml.ggml_set_output(tensor);
    const bytes = Number(this.#ggml.ggml_nbytes(tensor));
    this.#inputs.push({ tensor, bytes, fill });
    return tensor;
  }

  #expand(result: Pointer, rows: number): void {
    this.#ggml.ggml_set_output(result);
    this.#results.push({ tensor: result, floats: rows * this.#heads.n_head * this.#heads.head_dim });
    this.#ggml.ggml_build_forward_expand(this.#graph, result);
  }

  #attendTogether(
    attention: PagedAttention,
    tensors: Tensors,
    segments: readonly TimedSegment[],
    counts: readonly number[],
  ): void {
    let block = 0;
    const listed = segments.map((segment, index): AttentionSegment => {
      const blocks = Array.from({ length: counts[index]! }, () => block++);
      return { ...segment, blocks };
    });
    const { words, partials } = attention.needs(listed);
    const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
    const plan = this.#input(GgmlType.I32, [words], ({ buffer, byteOffset }) =>
      attention.writePlan(
        new Int32Array(buffer, byteOffset, words),
        listed,
        rowsInOrder(block * kv_block_tokens),
      ),
    );
    this.#expand(attention.attend(this.#memory.context, { ...tensors, plan }, rows, partials), rows);
  }

  #attendEach(
    way: 'in place' | 'gathered',
    { queries, keys, values }: Tensors,
    segments: readonly TimedSegment[],
    counts: readonly number[],
  ): void {
    const ggml = this.#ggml;
    const { context } = this.#memory;
    const { n_head, head_dim } = this.#heads;
    const row_bytes = n_head * head_dim * 4;
    let row = 0;
    let first = 0;
    for (const [index, segment] of segments.entries()) {
      const view = ggml.ggml_view_3d(
        context,
        queries,
        head_dim,
        n_head,
        segment.rows,
        head_dim * 4,
        row_bytes,
        row * row_bytes,
      );
      const q = ggml.ggml_permute(context, view, 0, 2, 1, 3)!;
      const [k, v] = [keys, values].map((matrix) => this.#extent(way, matrix, first, segment)) as [
        Pointer,
        Pointer,
      ];
      const scale = 1 / Math.sqrt(head_dim);
      const mask = this.#mask(segment);
      this.#expand(flashAttention(ggml, context, { q, k, v, mask, scale }), segment.rows);
      row += segment.rows;
      first += counts[index]! * kv_block_tokens;
    }
  }

  #mask({ rows, position }: TimedSegment): Pointer | null {
    if (rows === 1) return null;
    const keys = position + rows;
    return this.#input(GgmlType.F16, [keys, rows], ({ buffer, byteOffset }) => {
      const mask = new Uint16Array(buffer, byteOffset, keys * rows);
      for (let row = 0; row < rows; row++) {
        mask.fill(0, row * keys, row * keys + position + row + 1);
        mask.fill(half_negative_infinity, row * keys + position + row + 1, (row + 1) * keys);
      }
    });
  }

  /** Keys or values of one sequence as ggml attends them: ne [head_dim, keys, n_head_kv]. */
  #extent(way: 'in place' | 'gathered', matrix: Pointer, first: number, segment: TimedSegment): Pointer {
    const ggml = this.#ggml;
    const { context } = this.#memory;
    const { kv_type, n_head_kv, head_dim } = this.#heads;
    const keys = segment.position + segment.rows;
    const row_bytes = Number(ggml.ggml_row_size(kv_type, n_head_kv * head_dim));
    const head_bytes = Number(ggml.ggml_row_size(kv_type, head_dim));
    if (way === 'in place')
      return ggml.ggml_view_3d(
        context,
        matrix,
        head_dim,
        keys,
        n_head_kv,
        row_bytes,
        head_bytes,
        first * row_bytes,
      )!;
    const words = ggml.ggml_view_2d(context, matrix, head_dim, 1, row_bytes, 0)!;
    const n_rows = this.#memory.extent(matrix, 1);
    this.#memory.retype(words, GgmlType.I32, [row_bytes / 4, n_rows], [4, row_bytes]);
    const rows = this.#input(GgmlType.I32, [keys], ({ buffer, byteOffset }) => {
      new Int32Array(buffer, byteOffset, keys).forEach((_, index, all) => {
        all[index] = first + index;
      });
    });
    const picked = ggml.ggml_get_rows(context, words, rows)!;
    const view = ggml.ggml_view_3d(context, picked, 1, 1, n_head_kv, row_bytes, head_bytes, 0)!;
    const element = Number(ggml.ggml_type_size(kv_type));
    this.#memory.retype(view, kv_type, [head_dim, keys, n_head_kv], [element, row_bytes, head_bytes]);
    return view;
  }
}

interface Tensors {
  queries: Pointer;
  keys: Pointer;
  values: Pointer;
}

/** The same numbers whenever it is called: of either sign, from 2^-3 to 1. */
function fillNoise(type: number, memory: Uint8Array): void {
  const { buffer, byteOffset, length } = memory;
  let state = 1;
  const next = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state >>> 8;
  };
  const half = (): number => {
    const bits = next();
    return ((bits & 1) << 15) | (0x3000 + ((bits >> 1) % 0xc00));
  };
  if (type === GgmlType.F16) {
    const halves = new Uint16Array(buffer, byteOffset, length / 2);
    for (let at = 0; at < halves.length; at++) halves[at] = half();
  } else if (type === GgmlType.Q8_0)
    for (let at = 0; at < length; at++) {
      // A block's scale is 2^-7.
      const within = at % q8_0_bytes;
      memory[at] = within === 0 ? 0 : within === 1 ? 0x20 : next() & 255;
    }
  else {
    const floats = new Float32Array(buffer, byteOffset, length / 4);
    for (let at = 0; at < floats.length; at++)
      floats[at] = (next() % 2 === 0 ? 1 : -1) * (0.125 + (next() % 896) / 1024);
  }
}

/** Our products as operators of ggml's graphs, from weights in our layout, beside double precision and in parts. */
import { expect, it } from 'vitest';
import { CpuCompute } from '../../../agent/backend/cpu/cpu-compute.ts';
import type { KernelSet } from '../../../native/cpu-kernels.ts';
import { GgmlType, loadGgml, memoryAt } from '../../../native/ggml.ts';
import { PackedProducts } from '../../../native/packed-products.ts';
import type { Pointer } from '../../../native/signature.ts';
import {
  builtKernels,
  errorOf,
  isHalf,
  madeMatrix,
  margin,
  type PackedType,
  packedTypes,
  randomNumbers,
  widthFor,
} from './support.ts';

const kernels = builtKernels();
const ggml = loadGgml();
const error_max = 4e-7;

/** @param threads of ggml's pool @returns [m, n + margin], as `errorOf` takes it */
function graphProduct(
  packed: PackedProducts,
  matrix: ReturnType<typeof madeMatrix>,
  x: Float32Array,
  m: number,
  threads: number,
): Float32Array {
  const { n, k, type, bytes } = matrix;
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  const context = ggml.ggml_init({ mem_size: 2 ** 16, mem_buffer: null, no_alloc: true })!;
  const weights = ggml.ggml_new_tensor_2d(context, packedTypes[type], k, n)!;
  const size = Number(ggml.ggml_backend_buft_get_alloc_size(packed.bufferType, weights));
  const buffer = ggml.ggml_backend_buft_alloc_buffer(packed.bufferType, size)!;
  ggml.ggml_backend_tensor_alloc(buffer, weights, ggml.ggml_backend_buffer_get_base(buffer)!);
  ggml.ggml_set_name(weights, 'w');
  ggml.ggml_backend_tensor_set(weights, bytes, 0, bytes.length);
  expect(packed.holds(weights)).toBe(true);
  const input = ggml.ggml_new_tensor_2d(context, GgmlType.F32, k, m)!;
  ggml.ggml_set_input(input);
  const result = packed.multiply(context, weights, input, true);
  ggml.ggml_set_output(result);
  const graph = ggml.ggml_new_graph_custom(context, 16, false)!;
  ggml.ggml_build_forward_expand(graph, result);
  const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
  try {
    expect(ggml.ggml_gallocr_alloc_graph(allocator, graph)).toBe(true);
    memoryAt(ggml.ggml_get_data(input)!, x.byteLength).set(
      new Uint8Array(x.buffer, x.byteOffset, x.byteLength),
    );
    compute.open(graph).run();
    const y = new Float32Array(m * (n + margin));
    const found = new Float32Array(memoryAt(ggml.ggml_get_data(result)!, 4 * m * n).slice().buffer);
    for (let row = 0; row < m; row++) y.set(found.subarray(row * n, (row + 1) * n), row * (n + margin));
    return y;
  } finally {
    ggml.ggml_gallocr_free(allocator);
    ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
    compute.free();
  }
}

it.each(kernels.sets)('$name multiplies in a graph, with the same bits on any number of threads', (set) => {
  const packed = PackedProducts.open(ggml, kernels, set)!;
  for (const type of Object.keys(packedTypes) as PackedType[])
    for (const m of [1, 20]) {
      const next = randomNumbers(m);
      const k = widthFor(type, 320);
      const matrix = madeMatrix(type, 208, k, next);
      const x = Float32Array.from({ length: m * k }, next);
      const alone = graphProduct(packed, matrix, x, m, 1);
      expect(errorOf(set, matrix, x, m, alone)).toBeLessThan(error_max);
      expect(graphProduct(packed, matrix, x, m, 3)).toEqual(alone);
    }
});

it.each(kernels.sets)('$name gives rows as ggml gives those of plain memory', (set) => {
  const packed = PackedProducts.open(ggml, kernels, set)!;
  const plain = ggml.ggml_backend_cpu_buffer_type()!;
  const ids = Int32Array.of(0, 15, 16, 39, 38, 7, 7);
  for (const type of Object.keys(packedTypes) as PackedType[]) {
    const matrix = madeMatrix(type, 40, isHalf(type) ? 70 : widthFor(type, 96), randomNumbers(4));
    const rows = [plain, packed.bufferType].map((bufferType) => graphRows(bufferType, matrix, ids));
    expect(rows[1], type).toEqual(rows[0]);
    expect(new Set(rows[0]).size).toBeGreaterThan(100);
  }
});

function graphRows(
  bufferType: Pointer,
  { type, n, k, bytes }: ReturnType<typeof madeMatrix>,
  ids: Int32Array,
): Float32Array {
  const compute = new CpuCompute(ggml, { threads: 2, fixed_paths: false });
  const context = ggml.ggml_init({ mem_size: 2 ** 16, mem_buffer: null, no_alloc: true })!;
  const weights = ggml.ggml_new_tensor_2d(context, packedTypes[type], k, n)!;
  const size = Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, weights));
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, size)!;
  ggml.ggml_backend_tensor_alloc(buffer, weights, ggml.ggml_backend_buffer_get_base(buffer)!);
  ggml.ggml_backend_tensor_set(weights, bytes, 0, bytes.length);
  const input = ggml.ggml_new_tensor_1d(context, GgmlType.I32, ids.length)!;
  ggml.ggml_set_input(input);
  const own = PackedProducts.open(
    ggml,
    kernels,
    kernels.sets.find((set) => layoutOf(set) === bufferType),
  );
  const result = own?.holds(weights)
    ? own.takeRows(context, weights, input)
    : ggml.ggml_get_rows(context, weights, input)!;
  ggml.ggml_set_output(result);
  const graph = ggml.ggml_new_graph_custom(context, 16, false)!;
  ggml.ggml_build_forward_expand(graph, result);
  const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
  try {
    expect(ggml.ggml_gallocr_alloc_graph(allocator, graph)).toBe(true);
    memoryAt(ggml.ggml_get_data(input)!, ids.byteLength).set(new Uint8Array(ids.buffer));
    compute.open(graph).run();
    return new Float32Array(memoryAt(ggml.ggml_get_data(result)!, 4 * k * ids.length).slice().buffer);
  } finally {
    ggml.ggml_gallocr_free(allocator);
    ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
    compute.free();
  }
}

function layoutOf(set: KernelSet): Pointer {
  return PackedProducts.open(ggml, kernels, set)!.bufferType;
}

it('says which types and rows it can multiply', () => {
  const packed = PackedProducts.open(ggml, kernels)!;
  expect(packed.canMultiply(GgmlType.Q4_0, 2048)).toBe(true);
  expect(packed.canMultiply(GgmlType.Q2_K, 2048)).toBe(false);
});

it('opens nothing for an instruction set that this CPU lacks', () => {
  expect(PackedProducts.open(ggml, kernels, { name: 'AVX2', bit: 64 } as never)).toBeUndefined();
});

it('tells the name of a tensor that was written with a weight that is no number, once', () => {
  const packed = PackedProducts.open(ggml, kernels)!;
  for (const [half, name] of [
    [0x2000, null],
    [0x7e00, 'w'],
  ] as const) {
    const matrix = madeMatrix('Q6_K', 16, 256, randomNumbers(1), () => half);
    graphProduct(packed, matrix, new Float32Array(256), 1, 1);
    expect(kernels.hk_take_refused()).toBe(name);
    expect(kernels.hk_take_refused()).toBeNull();
  }
});

/**
 * Memory bandwidth as the compute library can draw it: the best of several products of a large F32 matrix
 * with one vector, which reads every byte once and does almost nothing with it.
 */
import { cpuBackend } from '../../agent/backend/cpu/cpu-backend.ts';
import { GgmlType, loadGgml, memoryAt } from '../../native/ggml.ts';

const columns = 4096;
const rows = 65_536;
const attempts = 8;

/** Bytes per second. */
export function memoryBandwidth(threads: number): number {
  const ggml = loadGgml();
  const compute = cpuBackend(ggml).compute({ threads, fixed_paths: false });
  const matrix_bytes = columns * rows * 4;
  const context = ggml.ggml_init({
    mem_size: matrix_bytes + columns * 4 + rows * 4 + 2 ** 20,
    mem_buffer: null,
    no_alloc: false,
  });
  if (!context) throw new Error(`no memory for a matrix of ${matrix_bytes} bytes`);
  const matrix = ggml.ggml_new_tensor_2d(context, GgmlType.F32, columns, rows)!;
  const vector = ggml.ggml_new_tensor_1d(context, GgmlType.F32, columns)!;
  // Pages that were never written are all the same page: write them, so that memory is what is read.
  memoryAt(ggml.ggml_get_data(matrix)!, matrix_bytes).fill(0x3c);
  memoryAt(ggml.ggml_get_data(vector)!, columns * 4).fill(0x3c);
  const graph = ggml.ggml_new_graph_custom(context, 8, false)!;
  ggml.ggml_build_forward_expand(graph, ggml.ggml_mul_mat(context, matrix, vector)!);
  const port = compute.open(graph);
  let best = 0;
  for (let attempt = 0; attempt < attempts; attempt++) {
    const started = performance.now();
    port.run();
    best = Math.max(best, (matrix_bytes * 1000) / (performance.now() - started));
  }
  compute.free();
  ggml.ggml_free(context);
  return best;
}

/** Small graphs of ggml around our operators. */
import { CpuCompute } from '../../../agent/backend/cpu/cpu-compute.ts';
import { type Ggml, memoryAt } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';

/** What a test builds its graph with. */
export interface GraphMaker {
  context: Pointer;
  /** A tensor that lies in a buffer of its own, with these bytes. */
  weights(bufferType: Pointer, tensor: Pointer, bytes: Uint8Array): Pointer;
  /** A tensor whose values are there before the graph is computed. */
  input(tensor: Pointer, values: Float32Array | Int32Array): Pointer;
}

/**
 * Computes one tensor.
 * @param elements of the result, F32
 */
export function computed(
  ggml: Ggml,
  threads: number,
  elements: number,
  build: (make: GraphMaker) => Pointer,
): Float32Array {
  const compute = new CpuCompute(ggml, { threads, fixed_paths: false });
  const context = ggml.ggml_init({ mem_size: 2 ** 16, mem_buffer: null, no_alloc: true })!;
  const buffers: Pointer[] = [];
  const inputs: [Pointer, Float32Array | Int32Array][] = [];
  const weights: GraphMaker['weights'] = (bufferType, tensor, bytes) => {
    const size = Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
    const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, size)!;
    buffers.push(buffer);
    ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer)!);
    ggml.ggml_backend_tensor_set(tensor, bytes, 0, bytes.length);
    return tensor;
  };
  const input: GraphMaker['input'] = (tensor, values) => {
    ggml.ggml_set_input(tensor);
    inputs.push([tensor, values]);
    return tensor;
  };
  const allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_cpu_buffer_type())!;
  try {
    const result = build({ context, weights, input });
    ggml.ggml_set_output(result);
    const graph = ggml.ggml_new_graph_custom(context, 32, false)!;
    ggml.ggml_build_forward_expand(graph, result);
    if (!ggml.ggml_gallocr_alloc_graph(allocator, graph)) throw new Error('no memory for a graph');
    for (const [tensor, values] of inputs)
      memoryAt(ggml.ggml_get_data(tensor)!, values.byteLength).set(
        new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
      );
    compute.open(graph).run();
    return new Float32Array(memoryAt(ggml.ggml_get_data(result)!, 4 * elements).slice().buffer);
  } finally {
    ggml.ggml_gallocr_free(allocator);
    for (const buffer of buffers) ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
    compute.free();
  }
}

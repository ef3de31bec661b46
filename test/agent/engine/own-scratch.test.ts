/** Where results of an engine's graphs lie that have memory of their own. */
import { expect, it } from 'vitest';
import { OwnScratch } from '../../../agent/engine/scratch.ts';
import { GgmlType, loadGgml } from '../../../native/ggml.ts';

const cache_line_bytes = 64;

it('begins each result with a cache line, whatever lies before it', () => {
  const ggml = loadGgml();
  const scratch = new OwnScratch({ ggml, plain: ggml.ggml_backend_cpu_buffer_type()! });
  const context = ggml.ggml_init({ mem_size: 2 ** 16, mem_buffer: null, no_alloc: true })!;
  const allocator = ggml.ggml_gallocr_new(scratch.bufferType)!;
  try {
    const graph = ggml.ggml_new_graph_custom(context, 16, false)!;
    const inputs = [1, 9, 17, 20].map((floats) => ggml.ggml_new_tensor_2d(context, GgmlType.F32, floats, 1)!);
    for (const tensor of inputs) {
      ggml.ggml_set_input(tensor);
      ggml.ggml_build_forward_expand(graph, tensor);
    }
    expect(ggml.ggml_gallocr_alloc_graph(allocator, graph)).toBe(true);
    const places = inputs.map((tensor) => Number(ggml.ggml_get_data(tensor)!));
    expect(new Set(places).size).toBe(inputs.length);
    expect(places.map((place) => place % cache_line_bytes)).toEqual([0, 0, 0, 0]);
  } finally {
    ggml.ggml_gallocr_free(allocator);
    ggml.ggml_free(context);
    scratch.free();
  }
});

import { type Ggml, ggmlStatusSuccess } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Compute, GraphPort } from '../compute.ts';

/** Graphs on a device with memory of its own: inputs are carried there before each run, and results back after it. */
export class DeviceCompute implements Compute {
  readonly #ggml: Ggml;
  readonly #device: Pointer;
  readonly #backend: Pointer;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(ggml: Ggml, device: Pointer) {
    this.#ggml = ggml;
    this.#device = device;
    const backend = ggml.ggml_backend_dev_init(device, null);
    if (!backend)
      throw new HpcserveError('E_NATIVE_MEMORY', {
        what: `the backend of ${ggml.ggml_backend_dev_name(device)} did not start`,
      });
    this.#backend = backend;
  }

  open(graph: Pointer): GraphPort {
    this.#requireSupport(graph);
    return new DevicePort(this.#ggml, this.#backend, graph);
  }

  free(): void {
    this.#ggml.ggml_backend_free(this.#backend);
  }

  /** @throws HpcserveError E_ENGINE_MODEL: the device has no kernel for an operation of the graph */
  #requireSupport(graph: Pointer): void {
    const ggml = this.#ggml;
    const lacking = new Set<string>();
    for (let index = 0; index < ggml.ggml_graph_n_nodes(graph); index++) {
      const node = ggml.ggml_graph_node(graph, index)!;
      if (!ggml.ggml_backend_dev_supports_op(this.#device, node)) lacking.add(ggml.ggml_op_desc(node) ?? '?');
    }
    if (lacking.size === 0) return;
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${ggml.ggml_backend_dev_description(this.#device)} cannot compute this model`,
      because: `ggml has no kernel there for ${[...lacking].join(', ')} with these types and sizes`,
      try: 'another quantization of the model, another device, or a wrapped engine',
    });
  }
}

/** Arrays of the host beside a graph's inputs and results. */
class DevicePort implements GraphPort {
  readonly #ggml: Ggml;
  readonly #backend: Pointer;
  readonly #graph: Pointer;
  readonly #inputs: { tensor: Pointer; array: Uint8Array }[] = [];
  readonly #outputs: { tensor: Pointer; array: Uint8Array }[] = [];

  constructor(ggml: Ggml, backend: Pointer, graph: Pointer) {
    this.#ggml = ggml;
    this.#backend = backend;
    this.#graph = graph;
  }

  input(tensor: Pointer, bytes: number): ArrayBuffer {
    return this.#array(this.#inputs, tensor, bytes);
  }

  output(tensor: Pointer, bytes: number): ArrayBuffer {
    return this.#array(this.#outputs, tensor, bytes);
  }

  clear(tensor: Pointer, bytes: number): void {
    if (this.#ggml.ggml_get_data(tensor))
      this.#ggml.ggml_backend_tensor_set(tensor, new Uint8Array(bytes), 0, bytes);
  }

  run(): void {
    const ggml = this.#ggml;
    // A mask or a list of rows may be shorter at this run than there is room for.
    for (const { tensor, array } of this.#inputs)
      ggml.ggml_backend_tensor_set(tensor, array, 0, ggml.ggml_nbytes(tensor));
    const status = ggml.ggml_backend_graph_compute(this.#backend, this.#graph);
    if (status !== ggmlStatusSuccess)
      throw new HpcserveError('E_ENGINE_COMPUTE', { what: `ggml ended a graph with status ${status}` });
    for (const { tensor, array } of this.#outputs)
      ggml.ggml_backend_tensor_get(tensor, array, 0, array.length);
  }

  #array(list: { tensor: Pointer; array: Uint8Array }[], tensor: Pointer, bytes: number): ArrayBuffer {
    if (!this.#ggml.ggml_get_data(tensor)) return new ArrayBuffer(0);
    const array = new Uint8Array(bytes);
    list.push({ tensor, array });
    return array.buffer;
  }
}

import { type Ggml, ggmlStatusFailed, ggmlStatusSuccess } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Compute, GraphOperations, GraphPort } from '../compute.ts';
import { canRunOnHost, HostOperator } from './host-operator.ts';
import type { OperatorProofs } from './operator-proof.ts';

interface GraphPart {
  run(): void;
  free?(): void;
}

/** Told of each operator that is computed on the CPU, and what is wrong with the device's; absent: it has none. */
type OnHost = (operator: string, wrong: string | undefined) => void;

/**
 * Graphs on a device with memory of its own: inputs are carried there before each run, and results back after it. An
 * operator that the device has no kernel for, or one that is wrong, is computed on the CPU, between the parts before
 * and after it:
 *
 *   device  [ … ] ──┐            ┌──▶ [ … ]
 *   CPU             └─▶ operator ┘
 *
 * Operations of ours run in the same way, between parts; the device has computed what is before them.
 */
export class DeviceCompute implements Compute {
  readonly #ggml: Ggml;
  readonly #device: Pointer;
  readonly #backend: Pointer;
  readonly #proofs: OperatorProofs;
  readonly #onHost: OnHost;
  readonly #operations: GraphOperations | undefined;
  #cpu: Pointer | undefined;

  /** @throws HpcserveError E_NATIVE_MEMORY */
  constructor(
    ggml: Ggml,
    device: Pointer,
    proofs: OperatorProofs,
    onHost: OnHost,
    operations?: GraphOperations,
  ) {
    this.#operations = operations;
    this.#ggml = ggml;
    this.#device = device;
    this.#proofs = proofs;
    this.#onHost = onHost;
    this.#backend = started(ggml, device);
  }

  open(graph: Pointer): GraphPort {
    return new DevicePort(this.#ggml, this.#parts(graph));
  }

  free(): void {
    if (this.#cpu) this.#ggml.ggml_backend_free(this.#cpu);
    this.#ggml.ggml_backend_free(this.#backend);
  }

  /**
   * What a run does, in order.
   * @throws HpcserveError E_ENGINE_MODEL: neither device nor CPU computes an operator
   */
  #parts(graph: Pointer): GraphPart[] {
    const ggml = this.#ggml;
    const nodes = Array.from(
      { length: ggml.ggml_graph_n_nodes(graph) },
      (_, index) => ggml.ggml_graph_node(graph, index)!,
    );
    const lacking = this.#lacking(nodes);
    const own = this.#ownParts(nodes, lacking);
    if (lacking.size === 0 && own.size === 0) return [{ run: () => compute(ggml, this.#backend, graph) }];
    this.#requireHost(lacking);
    const parts: GraphPart[] = [];
    let pending: Pointer[] = [];
    const flush = (): void => {
      if (pending.length > 0) parts.push(this.#partOnDevice(pending));
      pending = [];
    };
    for (const node of nodes) {
      const apart = own.get(node) ?? (lacking.has(node) && this.#partOnHost(node, lacking.get(node)));
      if (!apart) pending.push(node);
      else {
        flush();
        parts.push(apart);
      }
    }
    flush();
    return parts;
  }

  /** Operators that operations of ours compute, too. */
  #ownParts(
    nodes: readonly Pointer[],
    lacking: ReadonlyMap<Pointer, string | undefined>,
  ): Map<Pointer, GraphPart> {
    const own = new Map<Pointer, GraphPart>();
    if (!this.#operations) return own;
    for (const node of nodes) {
      let ordinary: GraphPart | undefined;
      const run = this.#operations.take(node, () => {
        ordinary ??= lacking.has(node)
          ? this.#partOnHost(node, lacking.get(node))
          : this.#partOnDevice([node]);
        ordinary.run();
      });
      if (run) own.set(node, { run, free: () => ordinary?.free?.() });
    }
    return own;
  }

  /** Operators that the device does not compute, with what is wrong where it says that it does. */
  #lacking(nodes: readonly Pointer[]): Map<Pointer, string | undefined> {
    const lacking = new Map<Pointer, string | undefined>();
    for (const node of nodes) {
      if (!this.#ggml.ggml_backend_dev_supports_op(this.#device, node)) lacking.set(node, undefined);
      else {
        const wrong = this.#proofs.whatIsWrongWith(this.#backend, node);
        if (wrong !== undefined) lacking.set(node, wrong);
      }
    }
    this.#proofs.keep();
    return lacking;
  }

  #requireHost(lacking: ReadonlyMap<Pointer, string | undefined>): void {
    const stuck = [...lacking].filter(([node]) => !canRunOnHost(node));
    if (stuck.length === 0) return;
    const because = stuck.map(([node, wrong]) => {
      const name = this.#ggml.ggml_op_desc(node);
      return wrong === undefined
        ? `ggml has no kernel there for ${name} with these types and sizes`
        : `its kernel for ${name} is wrong: ${wrong}`;
    });
    throw new HpcserveError('E_ENGINE_MODEL', {
      what: `${this.#ggml.ggml_backend_dev_description(this.#device)} cannot compute this model`,
      because: [
        ...new Set(because),
        'what it writes to lies on the device, so that the CPU cannot compute it instead',
      ],
      try: 'another quantization of the model or kv_type, another device, or a wrapped engine',
    });
  }

  #partOnDevice(nodes: readonly Pointer[]): GraphPart {
    const ggml = this.#ggml;
    const mem_size = Number(ggml.ggml_graph_overhead_custom(nodes.length, false));
    const context = ggml.ggml_init({ mem_size, mem_buffer: null, no_alloc: true })!;
    const graph = ggml.ggml_new_graph_custom(context, nodes.length, false)!;
    for (const node of nodes) ggml.ggml_graph_add_node(graph, node);
    return { run: () => compute(ggml, this.#backend, graph), free: () => ggml.ggml_free(context) };
  }

  #partOnHost(node: Pointer, wrong: string | undefined): GraphPart {
    this.#cpu ??= started(this.#ggml, this.#ggml.cpuDevice);
    const cpu = this.#cpu;
    const operator = new HostOperator(this.#ggml, node);
    this.#onHost(operator.description, wrong);
    return { run: () => operator.run(cpu), free: () => operator.free() };
  }
}

function started(ggml: Ggml, device: Pointer): Pointer {
  const backend = ggml.ggml_backend_dev_init(device, null);
  if (backend) return backend;
  throw new HpcserveError('E_NATIVE_MEMORY', {
    what: `the backend of ${ggml.ggml_backend_dev_name(device)} did not start`,
  });
}

/** @throws HpcserveError E_DEVICE_FAILED, E_ENGINE_COMPUTE */
function compute(ggml: Ggml, backend: Pointer, graph: Pointer): void {
  const status = ggml.ggml_backend_graph_compute(backend, graph);
  if (status === ggmlStatusSuccess) return;
  const what = `ggml ended a graph on the device with status ${status}`;
  throw new HpcserveError(status === ggmlStatusFailed ? 'E_DEVICE_FAILED' : 'E_ENGINE_COMPUTE', { what });
}

/** Arrays of the host beside a graph's inputs and results. */
class DevicePort implements GraphPort {
  readonly #ggml: Ggml;
  readonly #parts: readonly GraphPart[];
  readonly #inputs: { tensor: Pointer; array: Uint8Array }[] = [];
  readonly #outputs: { tensor: Pointer; array: Uint8Array }[] = [];

  constructor(ggml: Ggml, parts: readonly GraphPart[]) {
    this.#ggml = ggml;
    this.#parts = parts;
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
    for (const part of this.#parts) part.run();
    for (const { tensor, array } of this.#outputs)
      ggml.ggml_backend_tensor_get(tensor, array, 0, array.length);
  }

  free(): void {
    for (const part of this.#parts) part.free?.();
  }

  #array(list: { tensor: Pointer; array: Uint8Array }[], tensor: Pointer, bytes: number): ArrayBuffer {
    if (!this.#ggml.ggml_get_data(tensor)) return new ArrayBuffer(0);
    const array = new Uint8Array(bytes);
    list.push({ tensor, array });
    return array.buffer;
  }
}

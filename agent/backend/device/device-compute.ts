import { type Ggml, ggmlStatusFailed, ggmlStatusSuccess } from '../../../native/ggml.ts';
import type { Pointer } from '../../../native/signature.ts';
import { HpcserveError } from '../../../spec/errors/error.ts';
import type { Compute, GraphOperations, GraphPort } from '../compute.ts';
import { cutBehind, graphNodes, PartGraph, timed_s } from '../graph-parts.ts';
import { canRunOnHost, HostOperator } from './host-operator.ts';
import type { OperatorProofs } from './operator-proof.ts';

interface GraphPart {
  run(): void;
  free?(): void;
}

/** What a run does between one of these ends and the next, with graphs made for it. */
type CutParts = (ends: readonly Pointer[]) => GraphPart[][];

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

  /** @throws HpcserveError E_ENGINE_MODEL: neither device nor CPU computes an operator */
  open(graph: Pointer): GraphPort {
    const ggml = this.#ggml;
    const nodes = graphNodes(ggml, graph);
    const lacking = this.#lacking(nodes);
    const own = this.#ownParts(nodes, lacking);
    const isWhole = lacking.size === 0 && own.size === 0;
    if (!isWhole) this.#requireHost(lacking);
    const apart = new Map(own);
    for (const [node, wrong] of lacking) if (!own.has(node)) apart.set(node, this.#partOnHost(node, wrong));
    return new DevicePort(
      ggml,
      isWhole ? [{ run: () => compute(ggml, this.#backend, graph) }] : this.#inOrder(nodes, apart),
      // What an operation of ours does is meant once a run.
      own.size > 0 ? undefined : (ends) => cutBehind(nodes, ends).map((part) => this.#inOrder(part, apart)),
    );
  }

  free(): void {
    if (this.#cpu) this.#ggml.ggml_backend_free(this.#cpu);
    this.#ggml.ggml_backend_free(this.#backend);
  }

  /** What a run does; parts of `apart` are in it as they are. */
  #inOrder(nodes: readonly Pointer[], apart: ReadonlyMap<Pointer, GraphPart>): GraphPart[] {
    const parts: GraphPart[] = [];
    let pending: Pointer[] = [];
    const flush = (): void => {
      if (pending.length > 0) parts.push(this.#partOnDevice(pending));
      pending = [];
    };
    for (const node of nodes) {
      const other = apart.get(node);
      if (!other) pending.push(node);
      else {
        flush();
        parts.push(other);
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
    const part = new PartGraph(this.#ggml, nodes);
    return { run: () => compute(this.#ggml, this.#backend, part.graph), free: () => part.free() };
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

function runAll(parts: readonly GraphPart[]): void {
  for (const part of parts) part.run();
}

/** Arrays of the host beside a graph's inputs and results. */
class DevicePort implements GraphPort {
  readonly #ggml: Ggml;
  readonly #parts: readonly GraphPart[];
  readonly #cut: CutParts | undefined;
  readonly #inputs: { tensor: Pointer; array: Uint8Array }[] = [];
  readonly #outputs: { tensor: Pointer; array: Uint8Array }[] = [];

  /** @param cut absent: it is only run as a whole */
  constructor(ggml: Ggml, parts: readonly GraphPart[], cut: CutParts | undefined) {
    this.#ggml = ggml;
    this.#parts = parts;
    this.#cut = cut;
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
    this.#setInputs();
    runAll(this.#parts);
    for (const { tensor, array } of this.#outputs)
      this.#ggml.ggml_backend_tensor_get(tensor, array, 0, array.length);
  }

  /** Beside a run as ever, whose results count: devices compute some neighbours as one there, and differently here. */
  runMeasured(ends: readonly Pointer[]): number[] | undefined {
    if (!this.#cut) return undefined;
    const cut = this.#cut(ends);
    try {
      this.#setInputs();
      const parts_s = timed_s(cut.map((parts) => () => runAll(parts)));
      this.run();
      return parts_s;
    } finally {
      const kept = new Set(this.#parts);
      for (const part of cut.flat()) if (!kept.has(part)) part.free?.();
    }
  }

  free(): void {
    for (const part of this.#parts) part.free?.();
  }

  #setInputs(): void {
    const ggml = this.#ggml;
    // A mask or a list of rows may be shorter at this run than there is room for.
    for (const { tensor, array } of this.#inputs)
      ggml.ggml_backend_tensor_set(tensor, array, 0, ggml.ggml_nbytes(tensor));
  }

  #array(list: { tensor: Pointer; array: Uint8Array }[], tensor: Pointer, bytes: number): ArrayBuffer {
    if (!this.#ggml.ggml_get_data(tensor)) return new ArrayBuffer(0);
    const array = new Uint8Array(bytes);
    list.push({ tensor, array });
    return array.buffer;
  }
}

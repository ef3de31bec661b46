import koffi from 'koffi';
import { type Ggml, ggmlStatusSuccess, tensorLayout } from '../../../native/ggml.ts';
import type { ProofCache } from '../../../native/proof-cache.ts';
import type { Pointer } from '../../../native/signature.ts';
import { asNumbers, contentsOf } from './made-up-numbers.ts';
import {
  copiesOf,
  keyOf,
  type Operand,
  type OperatorCopy,
  operator_bytes,
  operator_offset,
  sources_max,
} from './operator-copy.ts';

/**
 * Largest error of a row, and of all rows, as a share of the results' own size. Devices round to 16 bits within
 * operators, and activations to 8 beside quantized weights: 0.01; a row in the wrong place makes 1.4.
 */
const row_error_max = 0.1;
const error_max = 0.03;

/**
 * An operator of a device is proved before it serves: a copy of it, small and with made-up numbers, is computed there
 * and on the CPU by the reference path of the same library, and the results are compared. Drivers compile kernels on
 * the node, by versions that nobody tried; one that is wrong would give every request wrong tokens.
 *
 *   node of a graph ─▶ copy ─▶ same key as one before? ─▶ verdict of then
 *                                 └▶ device, CPU ─▶ compared ─▶ verdict; what is right is kept for other processes
 */
export class OperatorProofs {
  readonly #ggml: Ggml;
  readonly #device: Pointer;
  readonly #cache: ProofCache;
  /** By key: what is wrong; undefined where nothing is. */
  readonly #tried = new Map<string, string | undefined>();

  /** @param cache of this library, device and driver */
  constructor(ggml: Ggml, device: Pointer, cache: ProofCache) {
    this.#ggml = ggml;
    this.#device = device;
    this.#cache = cache;
  }

  /**
   * Takes milliseconds the first time.
   * @param backend the device's
   * @param node of a graph that was placed, which the device says that it computes
   * @returns what is wrong; undefined: nothing, or it cannot be tried
   */
  whatIsWrongWith(backend: Pointer, node: Pointer): string | undefined {
    for (const copy of copiesOf(this.#ggml, node)) {
      const key = keyOf(copy);
      if (!this.#tried.has(key) && !this.#cache.has(key)) {
        const verdict = this.#try(backend, copy);
        this.#tried.set(key, verdict === 'right' ? undefined : verdict?.wrong);
        if (verdict === 'right') this.#cache.add(key);
      }
      const wrong = this.#tried.get(key);
      if (wrong !== undefined) return wrong;
    }
    return undefined;
  }

  /** What was right is kept for other processes. */
  keep(): void {
    this.#cache.write();
  }

  /** @returns undefined where it cannot be tried: no numbers of a type, no memory, no such operator on the CPU */
  #try(backend: Pointer, copy: OperatorCopy): 'right' | { wrong: string } | undefined {
    const ggml = this.#ggml;
    const contents = copy.sources.map((source, index) => source && contentsOf(ggml, copy, index));
    if (copy.sources.some((source, index) => source && !contents[index])) return undefined;
    const onDevice = new Trial(ggml, ggml.ggml_backend_dev_buffer_type(this.#device)!, copy);
    const cpu = ggml.ggml_backend_dev_init(ggml.cpuDevice, null)!;
    const onCpu = new Trial(ggml, ggml.ggml_backend_cpu_buffer_type()!, copy);
    try {
      const isThere = [onDevice, onCpu].every((trial) => trial.place(contents));
      const supported =
        ggml.ggml_backend_dev_supports_op(this.#device, onDevice.node) &&
        ggml.ggml_backend_dev_supports_op(ggml.cpuDevice, onCpu.node);
      if (!isThere || !supported) return undefined;
      ggml.cpu.ggml_backend_set_n_threads(cpu, 1);
      ggml.cpu.ggml_backend_cpu_set_use_ref(cpu, true);
      const [found, expected] = [onDevice.run(backend), onCpu.run(cpu)];
      if (!expected) return undefined;
      const wrong = found ? differenceOf(copy, found, expected) : 'the device ended it with an error';
      return wrong === undefined ? 'right' : { wrong };
    } finally {
      onDevice.free();
      onCpu.free();
      ggml.ggml_backend_free(cpu);
    }
  }
}

/** A copy of one operator in memory of one device. */
class Trial {
  readonly node: Pointer;
  readonly #ggml: Ggml;
  readonly #bufferType: Pointer;
  readonly #context: Pointer;
  readonly #graph: Pointer;
  readonly #sources: (Pointer | undefined)[];
  readonly #writesInto: number | undefined;
  readonly #buffers: Pointer[] = [];

  constructor(ggml: Ggml, bufferType: Pointer, copy: OperatorCopy) {
    this.#ggml = ggml;
    this.#bufferType = bufferType;
    this.#writesInto = copy.writes_into;
    this.#context = ggml.ggml_init({
      mem_size:
        (sources_max + 2) * Number(ggml.ggml_tensor_overhead()) +
        Number(ggml.ggml_graph_overhead_custom(sources_max + 2, false)),
      mem_buffer: null,
      no_alloc: true,
    })!;
    this.#sources = copy.sources.map((source) => source && this.#tensor(source));
    this.node = this.#tensor(copy.result);
    const words = koffi.array('uint8_t', operator_bytes);
    koffi.encode(this.node, operator_offset, words, copy.words);
    this.#sources.forEach((source, index) => {
      if (source) koffi.encode(this.node, tensorLayout.src + 8 * index, 'void *', source);
    });
    this.#graph = ggml.ggml_new_graph_custom(this.#context, sources_max + 2, false)!;
  }

  /** @returns whether there was memory for it */
  place(contents: readonly (Uint8Array | undefined)[]): boolean {
    const ggml = this.#ggml;
    for (const [index, source] of this.#sources.entries()) {
      if (!source) continue;
      if (!this.#allocate(source)) return false;
      ggml.ggml_backend_tensor_set(source, contents[index]!, 0, contents[index]!.length);
    }
    const into = this.#writesInto === undefined ? undefined : this.#sources[this.#writesInto];
    if (!into) {
      if (!this.#allocate(this.node)) return false;
    } else {
      koffi.encode(this.node, tensorLayout.view_src, 'void *', into);
      for (const field of [tensorLayout.buffer, tensorLayout.data])
        koffi.encode(this.node, field, 'void *', koffi.decode(into, field, 'void *'));
    }
    ggml.ggml_build_forward_expand(this.#graph, this.node);
    return true;
  }

  /** @returns bytes of the result; undefined where the device fails */
  run(backend: Pointer): Uint8Array | undefined {
    const ggml = this.#ggml;
    if (ggml.ggml_backend_graph_compute(backend, this.#graph) !== ggmlStatusSuccess) return undefined;
    const bytes = new Uint8Array(Number(ggml.ggml_nbytes(this.node)));
    ggml.ggml_backend_tensor_get(this.node, bytes, 0, bytes.length);
    return bytes;
  }

  free(): void {
    for (const buffer of this.#buffers) this.#ggml.ggml_backend_buffer_free(buffer);
    this.#ggml.ggml_free(this.#context);
  }

  #tensor({ type, extents, strides }: Operand): Pointer {
    const [ne0, ne1, ne2, ne3] = extents as [number, number, number, number];
    const tensor = this.#ggml.ggml_new_tensor_4d(this.#context, type, ne0, ne1, ne2, ne3)!;
    for (const [index, stride] of strides.entries())
      koffi.encode(tensor, tensorLayout.nb + 8 * index, 'size_t', stride);
    return tensor;
  }

  #allocate(tensor: Pointer): boolean {
    const ggml = this.#ggml;
    const bytes = Number(ggml.ggml_backend_buft_get_alloc_size(this.#bufferType, tensor));
    const buffer = ggml.ggml_backend_buft_alloc_buffer(this.#bufferType, bytes);
    if (!buffer) return false;
    this.#buffers.push(buffer);
    ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer)!);
    return true;
  }
}

function differenceOf(
  { result: { type, extents } }: OperatorCopy,
  found: Uint8Array,
  expected: Uint8Array,
): string | undefined {
  const [numbers, wanted] = [asNumbers(type, found), asNumbers(type, expected)];
  if (!numbers || !wanted) return undefined;
  const width = extents[0]!;
  const count = wanted.length;
  let square = 0;
  for (let at = 0; at < count; at++) square += wanted[at]! ** 2;
  const size = Math.sqrt(square / count) || 1;
  let whole = 0;
  for (let begin = 0; begin < count; begin += width) {
    let own = 0;
    for (let at = begin; at < Math.min(count, begin + width); at++) own += (numbers[at]! - wanted[at]!) ** 2;
    const error = Math.sqrt(own / width) / size;
    // What is no number fails as well.
    if (!(error <= row_error_max)) return `row ${begin / width} is off by ${error.toFixed(3)} of its size`;
    whole += own;
  }
  const error = Math.sqrt(whole / count) / size;
  return error <= error_max ? undefined : `rows are off by ${error.toFixed(3)} of their size`;
}

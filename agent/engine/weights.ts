import { closeSync, openSync, readSync } from 'node:fs';
import koffi from 'koffi';
import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import { BufferUsage, type Ggml, memoryAt } from '../../native/ggml.ts';
import { adviseHugePages } from '../../native/huge-pages.ts';
import { packedProducts } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import type { LoadProgress } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import type { Backend } from '../backend/backend.ts';
import { refusedWeightsError, writeWeights } from './checked-weights.ts';
import { MatrixRows } from './matrix-rows.ts';
import type { PlannedWeight, WeightPlan } from './weight-plan.ts';

/** Bytes per read: large enough that a parallel filesystem streams, small enough for smooth progress. */
const read_bytes_max = 16 * 1024 * 1024;

/** Weights in memory, and where each of them lies. */
export interface LoadedWeights {
  /** Its weights are keys of `tensor`. */
  readonly plan: WeightPlan;
  readonly bytes: number;
  /** The tensor of a planned weight. */
  tensor(weight: PlannedWeight): Pointer;
  /** Rows [begin, end) of a planned matrix; undefined where its layout does not let them be taken alone. */
  rows(weight: PlannedWeight, begin: number, end: number): Pointer | undefined;
  free(): void;
}

/** Weights that are on their way. */
export interface WeightLoading {
  /**
   * Looks how far it is, and does a small share of the work itself where it is to help.
   * @returns the weights, once all of them are in their places
   * @throws HpcserveError E_NATIVE_MEMORY, E_POOL_*, E_MODEL_WEIGHTS, E_ENGINE_MODEL (the file shrank while it was
   * read); then it is over
   */
  advance(help: boolean): LoadedWeights | undefined;
  /** Gives it up; what was in memory before stays there. */
  abort(): void;
  /**
   * As `abort`, and waits for nobody who still writes.
   * @returns whether it is over; else it is asked again, which it is for a second at most
   */
  letGo(): boolean;
}

/**
 * Who is there beside a load. `nobody`: the caller helps, all threads are for the load. `idle`: other models are loaded
 * and may be asked at any time, so the caller does not help. `busy`: others compute, and few threads are taken.
 */
export type LoadBeside = 'nobody' | 'idle' | 'busy';

/** Where the weights of a stage come from and lie: a pool that several models share. */
export interface WeightSource {
  /**
   * Places all weights of the plan and begins to read what is missing.
   * @throws HpcserveError E_NATIVE_MEMORY, E_POOL_*
   */
  begin(
    file: GgufFile,
    plan: WeightPlan,
    beside: LoadBeside,
    onProgress?: (progress: LoadProgress) => void,
  ): WeightLoading;
}

/**
 * Loads the weights of a stage into memory. Each weight goes where its fastest kernel reads it: ggml's
 * special buffers (CPU_REPACK, AMX) as libllama would choose them, ours, else plain memory. A tied embedding is held
 * twice where the head has a special layout of ggml, since no rows can be picked from it.
 */
export class Weights implements LoadedWeights {
  readonly plan: WeightPlan;
  readonly bytes: number;
  readonly #ggml: Ggml;
  readonly #context: Pointer;
  readonly #buffers: Pointer[];
  readonly #tensors: Map<PlannedWeight, Pointer>;
  readonly #rows: MatrixRows;

  private constructor(
    ggml: Ggml,
    plan: WeightPlan,
    context: Pointer,
    buffers: Pointer[],
    tensors: Map<PlannedWeight, Pointer>,
    bytes: number,
  ) {
    this.plan = plan;
    this.#ggml = ggml;
    this.#context = context;
    this.#buffers = buffers;
    this.#tensors = tensors;
    this.#rows = new MatrixRows(ggml);
    this.bytes = bytes;
  }

  /**
   * Places and reads all weights of the plan.
   * @throws HpcserveError E_NATIVE_MEMORY, E_ENGINE_MODEL (the file shrank while it was read), E_MODEL_WEIGHTS
   */
  static load(
    backend: Backend,
    file: GgufFile,
    plan: WeightPlan,
    onProgress?: (progress: LoadProgress) => void,
  ): Weights {
    const { ggml } = backend;
    const context = weightContext(ggml, plan);
    const buffers: Pointer[] = [];
    try {
      const places = placeWeights(backend, context, plan);
      const tensors = new Map<PlannedWeight, Pointer>();
      let bytes = 0;
      for (const [bufferType, members] of places) {
        const placed = allocate(backend, bufferType, members);
        buffers.push(placed.buffer);
        bytes += placed.bytes;
      }
      for (const member of [...places.values()].flat()) tensors.set(member.weight, member.tensor);
      shareTiedEmbedding(plan, tensors);
      const unique = [...places.values()].flat();
      readAll(backend, file, unique, onProgress);
      return new Weights(ggml, plan, context, buffers, tensors, bytes);
    } catch (error) {
      for (const buffer of buffers) ggml.ggml_backend_buffer_free(buffer);
      ggml.ggml_free(context);
      throw error;
    }
  }

  /** The tensor of a planned weight. */
  tensor(weight: PlannedWeight): Pointer {
    const tensor = this.#tensors.get(weight);
    if (!tensor) throw new Error(`weight ${weight.name} was not loaded`);
    return tensor;
  }

  rows(weight: PlannedWeight, begin: number, end: number): Pointer | undefined {
    return this.#rows.take(this.tensor(weight), weight, begin, end);
  }

  free(): void {
    this.#rows.free();
    for (const buffer of this.#buffers) this.#ggml.ggml_backend_buffer_free(buffer);
    this.#ggml.ggml_free(this.#context);
  }
}

export interface PlacedWeight {
  weight: PlannedWeight;
  tensor: Pointer;
  bufferType: Pointer;
}

/** All weights of a plan. */
export function plannedWeights(plan: WeightPlan): PlannedWeight[] {
  const found: PlannedWeight[] = [];
  const visit = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    if ('parts' in value) found.push(value as PlannedWeight);
    else for (const item of Object.values(value)) visit(item);
  };
  const { layers, ...rest } = plan;
  visit(rest);
  for (const layer of layers.values()) visit(layer);
  return found;
}

/** Room for the tensor structs of a plan; the caller frees it. */
export function weightContext(ggml: Ggml, plan: WeightPlan): Pointer {
  return ggml.ggml_init({
    mem_size: (plannedWeights(plan).length + 1) * Number(ggml.ggml_tensor_overhead()),
    mem_buffer: null,
    no_alloc: true,
  })!;
}

/**
 * Makes a tensor per weight and chooses its buffer type. A head that is the embedding, too, is one tensor with it where
 * rows can be taken out of the head's layout: plain memory, and ours. Then one of them is left out here, and
 * `shareTiedEmbedding` gives it the other's tensor.
 * @throws HpcserveError E_NATIVE_KERNEL
 */
export function placeWeights(
  backend: Backend,
  context: Pointer,
  plan: WeightPlan,
): Map<Pointer, PlacedWeight[]> {
  const { ggml } = backend;
  const left_out = tiedTwin(backend, plan);
  const places = new Map<Pointer, PlacedWeight[]>();
  for (const weight of plannedWeights(plan)) {
    if (weight === left_out) continue;
    const [ne0, ne1 = 1, ne2 = 1] = weight.shape;
    const tensor = ggml.ggml_new_tensor_3d(context, ggmlTypeByName(weight.type).id, ne0!, ne1, ne2)!;
    ggml.ggml_set_name(tensor, weight.name);
    const bufferType = backend.bufferTypeFor(weight, plan.kernels);
    const members = places.get(bufferType) ?? [];
    members.push({ weight, tensor, bufferType });
    places.set(bufferType, members);
  }
  backend.keepProofs();
  return places;
}

/** Of a head and an embedding that are the same matrix, the one that needs no tensor of its own. */
function tiedTwin(backend: Backend, { head, embedding, kernels }: WeightPlan): PlannedWeight | undefined {
  if (!head || !embedding || !isTiedHead(head, embedding)) return undefined;
  const bufferType = backend.bufferTypeFor(head, kernels);
  if (bufferType === backend.plain) return head;
  return bufferType === packedProducts(backend.ggml)?.bufferType ? embedding : undefined;
}

function isTiedHead(weight: PlannedWeight, embedding: PlannedWeight): boolean {
  return weight !== embedding && weight.parts.length === 1 && weight.parts[0] === embedding.parts[0];
}

/** A head and an embedding that are the same matrix have one tensor, where either could be left out. */
export function shareTiedEmbedding(plan: WeightPlan, tensors: Map<PlannedWeight, Pointer>): void {
  const { head, embedding } = plan;
  if (!head || !embedding) return;
  if (!tensors.has(head)) tensors.set(head, tensors.get(embedding)!);
  if (!tensors.has(embedding)) tensors.set(embedding, tensors.get(head)!);
}

function allocate(
  { ggml, addressable }: Backend,
  bufferType: Pointer,
  members: readonly PlacedWeight[],
): { buffer: Pointer; bytes: number } {
  const alignment = Number(ggml.ggml_backend_buft_get_alignment(bufferType));
  const offsets: number[] = [];
  let bytes = 0;
  for (const { tensor } of members) {
    offsets.push(bytes);
    const size = Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
    bytes += Math.ceil(size / alignment) * alignment;
  }
  const buffer = ggml.ggml_backend_buft_alloc_buffer(bufferType, bytes);
  if (!buffer)
    throw new HpcserveError('E_NATIVE_MEMORY', {
      what: `no ${(bytes / 2 ** 30).toFixed(2)} GiB of memory for weights`,
      because: `the buffer type ${ggml.ggml_backend_buft_name(bufferType)} refused the allocation`,
    });
  ggml.ggml_backend_buffer_set_usage(buffer, BufferUsage.weights);
  const base = ggml.ggml_backend_buffer_get_base(buffer)!;
  if (addressable) adviseHugePages(base, bytes);
  members.forEach(({ tensor }, index) => {
    ggml.ggml_backend_tensor_alloc(buffer, tensor, base + BigInt(offsets[index]!));
  });
  return { buffer, bytes };
}

function readAll(
  { ggml, plain, addressable }: Backend,
  file: GgufFile,
  weights: readonly PlacedWeight[],
  onProgress: ((progress: LoadProgress) => void) | undefined,
): void {
  const size = (weight: PlannedWeight) => weight.parts.reduce((sum, part) => sum + part.size_bytes, 0);
  const bytes_total = weights.reduce((sum, { weight }) => sum + size(weight), 0);
  const started = performance.now();
  const descriptor = openSync(file.path, 'r');
  const isDirect = (bufferType: Pointer): boolean => addressable && bufferType === plain;
  // What the host cannot write itself is given as a whole tensor, so the largest of them is staged.
  const staged = weights.filter(({ bufferType }) => !isDirect(bufferType)).map(({ weight }) => size(weight));
  const staging = staged.length > 0 ? new Staging(Math.max(...staged)) : undefined;
  let bytes_loaded = 0;
  try {
    for (const { weight, tensor, bufferType } of weights) {
      const bytes = size(weight);
      const target = isDirect(bufferType)
        ? memoryAt(ggml.ggml_get_data(tensor)!, bytes)
        : staging!.memory.subarray(0, bytes);
      let offset = 0;
      for (const part of weight.parts) {
        readFully(file.path, descriptor, target, offset, part.offset_bytes, part.size_bytes, (count) => {
          bytes_loaded += count;
          onProgress?.({ bytes_loaded, bytes_total, elapsed_ms: performance.now() - started });
        });
        offset += part.size_bytes;
      }
      if (isDirect(bufferType)) continue;
      const [row_elements, ...others] = weight.shape as [number, ...number[]];
      const rows = others.reduce((product, extent) => product * extent, 1);
      const type = ggmlTypeByName(weight.type).id;
      if (!writeWeights(ggml, tensor, staging!.address, { type, rows, row_elements, bytes }))
        throw refusedWeightsError(file.path, weight.name);
    }
  } finally {
    staging?.free();
    closeSync(descriptor);
  }
}

function readFully(
  path: string,
  descriptor: number,
  target: Uint8Array,
  targetOffset: number,
  fileOffset: number,
  bytes: number,
  onRead: (count: number) => void,
): void {
  for (let done = 0; done < bytes; ) {
    const want = Math.min(read_bytes_max, bytes - done);
    const count = readSync(descriptor, target, targetOffset + done, want, fileOffset + done);
    if (count === 0)
      throw new HpcserveError('E_ENGINE_MODEL', {
        what: `${path} ended while its weights were read`,
        because: `byte ${fileOffset + done} was asked for and is not there`,
        try: 'download or copy the file again',
      });
    done += count;
    onRead(count);
  }
}

/** Memory outside the JavaScript heap, given back at once when the load is over. */
class Staging {
  readonly address: Pointer;
  readonly memory: Uint8Array;

  constructor(bytes: number) {
    this.address = koffi.alloc('uint8_t', bytes) as Pointer;
    this.memory = memoryAt(this.address, bytes);
  }

  free(): void {
    koffi.free(this.address);
  }
}

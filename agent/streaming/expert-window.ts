import { ggmlTypeByName } from '../../native/formats/ggml-types.ts';
import type { Pointer } from '../../native/signature.ts';
import type { HeldExpert } from '../../solver/streaming/expert-slots.ts';
import { row_group } from '../engine/row-groups.ts';
import type { ExpertMatrices, KernelPolicy, PlannedWeight } from '../engine/weight-plan.ts';
import { describeLoad } from '../memory/load/describe-load.ts';
import type { TensorLoad } from '../memory/load/pieces.ts';
import type { StreamingArena } from './streaming-arena.ts';

/** In the order in which they lie in a window. */
const matrix_names = ['gate', 'up', 'down'] as const;
type MatrixName = (typeof matrix_names)[number];

/** One matrix of an expert, as it lies in a window. */
interface Plane {
  bufferType: Pointer;
  type: number;
  row_elements: number;
  rows: number;
  /** In a window. */
  bytes: number;
}

/** The matrices of an expert: experts of layers with the same `key` may lie in the slots of one window. */
export interface ExpertPlanes {
  key: string;
  planes: Record<MatrixName, Plane>;
  slot_bytes: number;
}

/**
 * How experts of a layer lie in slots.
 * @returns undefined where a layout can only be made of all experts together
 * @throws HpcserveError E_NATIVE_KERNEL
 */
export function expertPlanes(
  arena: StreamingArena,
  matrices: ExpertMatrices,
  kernels: KernelPolicy,
): ExpertPlanes | undefined {
  const planes: Partial<Record<MatrixName, Plane>> = {};
  for (const name of matrix_names) {
    const plane = planeOf(arena, matrices[name], kernels);
    if (!plane) return undefined;
    planes[name] = plane;
  }
  const all = planes as Record<MatrixName, Plane>;
  return {
    key: JSON.stringify(
      matrix_names.map((name) => ({ ...all[name], bufferType: `${all[name].bufferType}` })),
    ),
    planes: all,
    slot_bytes: matrix_names.reduce((sum, name) => sum + all[name].bytes, 0),
  };
}

function planeOf(
  { backend, memory }: StreamingArena,
  weight: PlannedWeight,
  kernels: KernelPolicy,
): Plane | undefined {
  const { ggml } = backend;
  const [row_elements, rows, experts] = weight.shape as [number, number, number];
  const bufferType = backend.bufferTypeFor(weight, kernels);
  const type = ggmlTypeByName(weight.type).id;
  const isPlain = memory.layoutOf(bufferType) === memory.plain;
  const { pool_row_bytes } = describeLoad(backend, memory, { weight: expertOf(weight, 0), bufferType });
  if (!isPlain && (pool_row_bytes === undefined || rows % row_group !== 0)) return undefined;
  const bytes = isPlain ? expert_bytes(weight) : pool_row_bytes! * rows;
  // Kernels step from one matrix to the next as the whole tensor has them: that must be so much.
  const context = ggml.ggml_init({
    mem_size: 4 * Number(ggml.ggml_tensor_overhead()),
    mem_buffer: null,
    no_alloc: true,
  })!;
  const size = (count: number): number => {
    const tensor = ggml.ggml_new_tensor_3d(context, type, row_elements, rows, count)!;
    return Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
  };
  const isEven = size(experts) - size(1) === (experts - 1) * bytes;
  ggml.ggml_free(context);
  return isEven ? { bufferType, type, row_elements, rows, bytes } : undefined;
}

/** Of a matrix of one expert, in the file. */
export function expert_bytes({ parts, shape }: PlannedWeight): number {
  return parts[0]!.size_bytes / shape[2]!;
}

/** One expert's matrix as a weight of its own. */
function expertOf(weight: PlannedWeight, expert: number): PlannedWeight {
  const size_bytes = expert_bytes(weight);
  const part = weight.parts[0]!;
  return {
    ...weight,
    shape: weight.shape.slice(0, 2),
    parts: [{ ...part, offset_bytes: part.offset_bytes + expert * size_bytes, size_bytes }],
  };
}

/** Slots for experts of some layers, in one range of an arena; see `planExpertWindows`. */
export class ExpertWindow {
  readonly slots: number;
  /** It is this model's for good, not a part of the ring. */
  readonly stays: boolean;
  readonly bytes: number;
  readonly slot_bytes: number;
  readonly #holders: (HeldExpert | undefined)[];
  readonly #slots = new Map<string, number>();
  readonly #arena: StreamingArena;
  readonly #context: Pointer;
  readonly #planes: ExpertPlanes['planes'];
  readonly #tensors: Record<MatrixName, Pointer>;
  /** Of the pool. */
  readonly #offsets: Record<MatrixName, number>;

  /** @param offset of the pool, where `window_bytes` of them are this model's */
  constructor(
    arena: StreamingArena,
    { planes, slot_bytes }: ExpertPlanes,
    slots: number,
    stays: boolean,
    offset: number,
  ) {
    const { ggml } = arena.backend;
    this.#arena = arena;
    this.#planes = planes;
    this.slots = slots;
    this.slot_bytes = slot_bytes;
    this.stays = stays;
    this.#holders = Array.from({ length: slots }, () => undefined);
    this.#context = windowContext(arena);
    const tensors: Partial<Record<MatrixName, Pointer>> = {};
    const offsets: Partial<Record<MatrixName, number>> = {};
    let end = offset;
    for (const name of matrix_names) {
      const { bufferType } = planes[name];
      const tensor = windowTensor(arena, this.#context, planes[name], slots);
      ggml.ggml_set_name(tensor, `${name} of experts`);
      arena.place(tensor, bufferType, end);
      tensors[name] = tensor;
      offsets[name] = end;
      end += placed_bytes(arena, bufferType, tensor);
    }
    this.bytes = end - offset;
    this.#tensors = tensors as Record<MatrixName, Pointer>;
    this.#offsets = offsets as Record<MatrixName, number>;
    if (stays) this.wipe();
  }

  /**
   * Before anything is brought to it. Where rows are no multiple of 512, kernels of CUDA read beyond the last row of a
   * matrix, into the next slot; they multiply that by zero, so it must be numbers. What others left there need not be,
   * while zeros are, and any expert of this model is.
   */
  wipe(): void {
    const { backend, memory } = this.#arena;
    for (const name of matrix_names) {
      const { bufferType, bytes } = this.#planes[name];
      const tensor = this.#tensors[name];
      if (bufferType !== backend.plain || alloc_bytes(this.#arena, bufferType, tensor) === this.slots * bytes)
        continue;
      memory.zero(this.#offsets[name], placed_bytes(this.#arena, bufferType, tensor));
    }
  }

  /** The tensors of a layer's experts: each of them one matrix a slot. */
  tensorsOf(matrices: ExpertMatrices): Map<PlannedWeight, Pointer> {
    return new Map(matrix_names.map((name) => [matrices[name], this.#tensors[name]]));
  }

  /** By slot: whose matrices lie there or are on their way. */
  get holders(): readonly (HeldExpert | undefined)[] {
    return this.#holders;
  }

  slotOf(held: HeldExpert): number | undefined {
    return this.#slots.get(keyOf(held));
  }

  /** @param held whose matrices are about to come; undefined: nothing of use lies there */
  hold(slot: number, held: HeldExpert | undefined): void {
    const before = this.#holders[slot];
    if (before) this.#slots.delete(keyOf(before));
    this.#holders[slot] = held;
    if (held) this.#slots.set(keyOf(held), slot);
  }

  /** What brings an expert's matrices to a slot. */
  loads(matrices: ExpertMatrices, expert: number, slot: number): TensorLoad[] {
    const { backend, memory } = this.#arena;
    return matrix_names.map((name) => {
      const { bufferType, bytes } = this.#planes[name];
      const load = describeLoad(backend, memory, { weight: expertOf(matrices[name], expert), bufferType });
      return { ...load, pool_offset: this.#offsets[name] + slot * bytes };
    });
  }

  clear(): void {
    this.#holders.fill(undefined);
    this.#slots.clear();
  }

  free(): void {
    this.#arena.backend.ggml.ggml_free(this.#context);
  }
}

function keyOf({ layer, expert }: HeldExpert): string {
  return `${layer}:${expert}`;
}

/** What a window of so many slots takes. */
export function window_bytes(arena: StreamingArena, { planes }: ExpertPlanes, slots: number): number {
  const context = windowContext(arena);
  const bytes = matrix_names.reduce((sum, name) => {
    const tensor = windowTensor(arena, context, planes[name], slots);
    return sum + placed_bytes(arena, planes[name].bufferType, tensor);
  }, 0);
  arena.backend.ggml.ggml_free(context);
  return bytes;
}

/** Beside its slots, what a window may take more. */
export function windowMargin_bytes(arena: StreamingArena, kind: ExpertPlanes): number {
  return window_bytes(arena, kind, 1) - kind.slot_bytes + matrix_names.length * arena.memory.alignment_bytes;
}

function windowContext({ backend: { ggml } }: StreamingArena): Pointer {
  const mem_size = (matrix_names.length + 1) * Number(ggml.ggml_tensor_overhead());
  return ggml.ggml_init({ mem_size, mem_buffer: null, no_alloc: true })!;
}

function windowTensor(
  { backend: { ggml } }: StreamingArena,
  context: Pointer,
  { type, row_elements, rows }: Plane,
  slots: number,
): Pointer {
  return ggml.ggml_new_tensor_3d(context, type, row_elements, rows, slots)!;
}

function placed_bytes(arena: StreamingArena, bufferType: Pointer, tensor: Pointer): number {
  const { alignment_bytes } = arena.memory;
  return Math.ceil(alloc_bytes(arena, bufferType, tensor) / alignment_bytes) * alignment_bytes;
}

/** With what kernels read behind it. */
function alloc_bytes({ backend }: StreamingArena, bufferType: Pointer, tensor: Pointer): number {
  return Number(backend.ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
}

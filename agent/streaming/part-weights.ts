import type { GgufFile } from '../../native/formats/gguf-reader.ts';
import type { Pointer } from '../../native/signature.ts';
import { MatrixRows } from '../engine/matrix-rows.ts';
import type { PlannedWeight, WeightPlan } from '../engine/weight-plan.ts';
import { type LoadedWeights, placeWeights, weightContext } from '../engine/weights.ts';
import { type FileVersion, headerVersion } from '../memory/file-version.ts';
import { describeLoad } from '../memory/load/describe-load.ts';
import type { TensorLoad } from '../memory/load/pieces.ts';
import type { StreamingArena } from './streaming-arena.ts';

interface PartTensor {
  weight: PlannedWeight;
  tensor: Pointer;
  bufferType: Pointer;
  /** In the part. */
  offset: number;
  load: Omit<TensorLoad, 'pool_offset'>;
}

/**
 * The weights of a part of a model: tensors that lie side by side at one place of an arena, in the layouts that they
 * have where they are resident. Whether their bytes are there is not known here.
 */
export class PartWeights implements LoadedWeights {
  readonly plan: WeightPlan;
  readonly bytes: number;
  /** Of the file as its header was read. */
  readonly version: FileVersion;
  readonly #arena: StreamingArena;
  readonly #context: Pointer;
  readonly #tensors: readonly PartTensor[];
  readonly #byWeight: ReadonlyMap<PlannedWeight, PartTensor>;
  readonly #rows: MatrixRows;
  /** Of these nobody takes some rows alone. */
  readonly #whole = new Set<PlannedWeight>();
  #offset: number | undefined;

  /** @throws HpcserveError E_NATIVE_KERNEL, E_POOL_LOAD */
  constructor(arena: StreamingArena, file: GgufFile, plan: WeightPlan) {
    const { backend, memory } = arena;
    const { ggml } = backend;
    this.plan = plan;
    this.version = headerVersion(file);
    this.#arena = arena;
    this.#rows = new MatrixRows(ggml);
    this.#context = weightContext(ggml, plan);
    try {
      let offset = 0;
      const placed = [...placeWeights(backend, this.#context, plan).values()].flat();
      // In the order of the file, so that neighbours are copied together.
      placed.sort((a, b) => a.weight.parts[0]!.offset_bytes - b.weight.parts[0]!.offset_bytes);
      this.#tensors = placed.map((place): PartTensor => {
        const own = { ...place, offset, load: describeLoad(backend, memory, place) };
        const bytes = Number(ggml.ggml_backend_buft_get_alloc_size(place.bufferType, place.tensor));
        const { load } = own;
        if (load.layout === 0)
          load.zeros_behind = bytes - load.parts.reduce((sum, { size_bytes }) => sum + size_bytes, 0);
        offset += Math.ceil(bytes / memory.alignment_bytes) * memory.alignment_bytes;
        return own;
      });
      this.bytes = offset;
    } catch (error) {
      ggml.ggml_free(this.#context);
      throw error;
    }
    this.#byWeight = new Map(this.#tensors.map((own) => [own.weight, own]));
  }

  /** Where the part lies, once and for all: graphs know the addresses of its tensors. */
  placeAt(offset: number): void {
    this.#offset = offset;
    for (const { tensor, bufferType, offset: within } of this.#tensors)
      this.#arena.place(tensor, bufferType, offset + within);
  }

  /** Its matrices. */
  get matrices(): { weight: PlannedWeight; tensor: Pointer }[] {
    return this.#tensors.filter(({ weight }) => weight.use === 'matrix');
  }

  /** Of these matrices, products with some of their rows are products with all of them. */
  keepWhole(weights: readonly PlannedWeight[]): void {
    for (const weight of weights) this.#whole.add(weight);
  }

  /** What brings its bytes to their place, but for some of them. */
  loads(spared: ReadonlySet<PlannedWeight> = new Set()): TensorLoad[] {
    return this.#tensors.flatMap(({ weight, load, offset }) =>
      spared.has(weight) ? [] : [{ ...load, pool_offset: this.#offset! + offset }],
    );
  }

  tensor(weight: PlannedWeight): Pointer {
    const own = this.#byWeight.get(weight);
    if (!own) throw new Error(`weight ${weight.name} is in no part`);
    return own.tensor;
  }

  rows(weight: PlannedWeight, begin: number, end: number): Pointer | undefined {
    if (this.#whole.has(weight) && !(begin === 0 && end === weight.shape[1])) return undefined;
    return this.#rows.take(this.tensor(weight), weight, begin, end);
  }

  free(): void {
    this.#rows.free();
    this.#arena.backend.ggml.ggml_free(this.#context);
  }
}

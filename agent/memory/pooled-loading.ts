import type { Ggml } from '../../native/ggml.ts';
import type { Pointer } from '../../native/signature.ts';
import type { LoadLeg } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type PoolLayout, placeIn } from '../backend/pool-memory.ts';
import { MatrixRows } from '../engine/matrix-rows.ts';
import type { PlannedWeight, WeightPlan } from '../engine/weight-plan.ts';
import { type LoadedWeights, shareTiedEmbedding, type WeightLoading } from '../engine/weights.ts';
import type { TensorLoad } from './load/pieces.ts';
import type { PeerPart, TensorLoading } from './load/tensor-loading.ts';
import type { LoadOutcome, PendingLoad, WantedTensor } from './pending-load.ts';

/** What a finished load did, and how long it took. */
export interface WeightLoad extends LoadOutcome {
  model: string;
  /** Of reading and converting what was missing. */
  read_ms: number;
  /** From the request to the last byte. */
  total_ms: number;
  /** What of it came from the memory of other nodes. */
  peers: readonly PeerPart[];
  /** What its threads did, by part of the way. */
  legs: readonly LoadLeg[];
  /** See `TensorLoading.past_cache`. */
  past_cache: string | undefined;
}

export interface ModelUse {
  /** Name under which requests are counted; absent: the path of the file. */
  model?: string;
  /** α of Equation 2; default 1. */
  latency_sensitivity?: number;
  /** Hears of the load when it is over. */
  on_loaded?: (load: WeightLoad) => void;
}

export interface PooledTensor {
  weight: PlannedWeight;
  tensor: Pointer;
  layout: PoolLayout;
  wanted: WantedTensor;
  /** How it is loaded to an offset of the pool. */
  at(pool_offset: number): TensorLoad;
}

interface Parts {
  ggml: Ggml;
  /** Of the tensor structs; freed with the weights. */
  context: Pointer;
  plan: WeightPlan;
  model: string;
  tensors: readonly PooledTensor[];
  pending: PendingLoad;
  /** Absent where nothing is missing. */
  reading: TensorLoading | undefined;
  /** It is over, and a thread of it hangs: its memory is given back once that has let go. */
  onHang(reading: TensorLoading, giveBack: () => void): void;
  /** By performance.now(). */
  started: number;
  use: ModelUse;
}

/** Weights of one engine on their way into a pool: looked up, planned, and read where they were missing. */
export class PooledLoading implements WeightLoading {
  readonly #parts: Parts;
  readonly #reading_started = performance.now();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  advance(help: boolean): LoadedWeights | undefined {
    const { reading } = this.#parts;
    try {
      if (reading && !reading.advance(help)) return undefined;
    } catch (error) {
      this.#giveUp(error instanceof HpcserveError && error.details?.still_writing === true);
      throw error;
    }
    return this.#finish();
  }

  abort(): void {
    this.#giveUp(this.#parts.reading?.cancel() === false);
  }

  letGo(): boolean {
    const state = this.#parts.reading?.letGo() ?? 'gone';
    if (state === 'leaving') return false;
    this.#giveUp(state === 'hanging');
    return true;
  }

  #giveUp(hangs: boolean): void {
    const { pending, reading, onHang, ggml, context } = this.#parts;
    if (hangs) onHang(reading!, pending.abandon());
    else pending.abort();
    ggml.ggml_free(context);
  }

  #finish(): LoadedWeights {
    const { ggml, context, plan, model, tensors, pending, reading, started, use } = this.#parts;
    const ended = performance.now();
    const read_ms = ended - this.#reading_started;
    // Every tensor is there, and no thread that hangs has the place of one in its hands: only the file.
    if (reading?.isClosed === false) this.#parts.onHang(reading, () => undefined);
    const lease = pending.commit(read_ms);
    use.on_loaded?.({
      model,
      ...pending.outcome,
      read_ms,
      total_ms: ended - started,
      peers: reading?.peers ?? [],
      legs: reading?.legs ?? [],
      past_cache: reading?.past_cache,
    });
    const places = new Map<PlannedWeight, Pointer>();
    tensors.forEach(({ weight, tensor, layout }, index) => {
      const { buffer, address } = placeIn(layout.spans, lease.offsets[index]!);
      ggml.ggml_backend_tensor_alloc(buffer, tensor, address);
      places.set(weight, tensor);
    });
    shareTiedEmbedding(plan, places);
    const tensorOf = (weight: PlannedWeight): Pointer => {
      const tensor = places.get(weight);
      if (!tensor) throw new Error(`weight ${weight.name} was not loaded`);
      return tensor;
    };
    const rows = new MatrixRows(ggml);
    return {
      plan,
      bytes: tensors.reduce((sum, { wanted }) => sum + wanted.bytes, 0),
      tensor: tensorOf,
      rows: (weight, begin, end) => rows.take(tensorOf(weight), weight, begin, end),
      free: () => {
        rows.free();
        lease.release();
        ggml.ggml_free(context);
      },
    };
  }
}

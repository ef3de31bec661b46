import type { EngineOptions } from '../../spec/engine-contract.ts';
import type { GraphOperations } from '../backend/compute.ts';
import { checkOptions } from '../engine/engine-options.ts';
import { KvMemory } from '../engine/kv-memory.ts';
import type { KvSource } from '../engine/kv-storage.ts';
import { type ModelFile, openModelFile } from '../engine/model-file.ts';
import { NativeEngine } from '../engine/native-engine.ts';
import type { ParkingDisk } from '../engine/parking-disk.ts';
import { Stage } from '../engine/stage.ts';
import { stageOptions } from '../engine/stage-options.ts';
import { HostEmbedding } from './host-embedding.ts';
import type { OpenedProducts } from './hybrid-opening.ts';
import type { HybridProducts } from './hybrid-products.ts';
import { cutIntoLayers } from './layer-cut.ts';
import { layerKv } from './layer-kv.ts';
import { LayerPass } from './layer-pass.ts';
import { cutAtRouters } from './mixture-cut.ts';
import { MixturePass } from './mixture-pass.ts';
import { PartStream } from './part-stream.ts';
import { StreamMeter } from './stream-meter.ts';
import { type CutStage, type StreamedCut, TakenRoom } from './streamed-cut.ts';
import type { StreamingArena } from './streaming-arena.ts';
import { StreamingExecutor } from './streaming-executor.ts';

export interface StreamingEngineOptions {
  /** Of the arena's bytes for parts that stay, what this model may have. Default: 0. */
  resident_bytes?: number;
  /** Of what was to stay, what the arena was not given. Default: 0. */
  lacking_bytes?: number;
  /** What its link is planned to give it, while others read theirs; absent: no plan has a figure for it. */
  planned_link_bytes_per_s?: number | undefined;
  /** Why its weights go to the device through memory that is not page-locked; absent: they do not. */
  uploads_because?: string | undefined;
  /** Absent: memory of its own. */
  kv?: KvSource;
  /** See `EngineResources`. */
  disk?: ParkingDisk | undefined;
  /**
   * Makes what multiplies by weights where they are, on this device; undefined: nothing does. It is not asked where
   * results may not depend on the batch: how a product goes about it does.
   */
  products?: (meter: StreamMeter) => OpenedProducts | undefined;
  /** A part is there and was computed. */
  on_part?: () => void;
  /** It is closed. */
  on_closed?: () => void;
}

/**
 * An engine whose weights stay in host memory and go through an arena of the device; see `StreamingArena`.
 * @throws HpcserveError as `NativeEngine`; E_NATIVE_MEMORY: a layer is larger than the ring
 */
export function openStreamingEngine(
  options: EngineOptions,
  arena: StreamingArena,
  more: StreamingEngineOptions = {},
): { engine: NativeEngine; executor: StreamingExecutor } {
  checkOptions(options);
  const file = openModelFile(options.model_path);
  const room = new TakenRoom(arena);
  const meter = new StreamMeter(arena.copy_threads, more.planned_link_bytes_per_s);
  const freed: (() => void)[] = [];
  try {
    const cut = cutModel(options, arena, file, more, room, meter);
    if (cut.experts) freed.push(() => cut.experts!.free());
    // Those that no stage has taken yet.
    const left = cut.stages.map(({ weights }) => weights);
    freed.push(() => {
      for (const weights of left) weights.free();
    });
    const { products, copied_because } = productsFor(options, meter, more);
    if (products) freed.push(() => products.free());
    for (const { weights, ring } of cut.parts) if (ring) products?.register(weights);
    const layers = [...Array(file.model.n_layer).keys()];
    const kv = new KvMemory(arena.backend, file.model, layers, options, more.kv);
    freed.push(() => kv.free());
    const stages = cut.stages.map((own) => {
      // A stage has its weights from here on, whether it is made or not.
      left.shift();
      const stage = openStage(options, arena, file, own, kv, products);
      freed.push(() => stage.free());
      return stage;
    });
    const stream = new PartStream(arena, cut.parts, meter, { beside: cut.experts, spared: products });
    const rows_max = options.prefill_chunk_tokens + options.max_sequences;
    const embedding = new HostEmbedding(arena.backend.ggml, file, rows_max);
    freed.push(() => embedding.free());
    const on_free = (): void => {
      room.give();
      more.on_closed?.();
    };
    const on_part = more.on_part ?? ((): void => undefined);
    const { experts, lacking_bytes } = cut;
    const pass = experts
      ? new MixturePass({ stream, experts, stages, rows_max, on_part })
      : new LayerPass(stream, stages, rows_max, on_part);
    const executor = new StreamingExecutor({
      arena,
      stream,
      embedding,
      kv,
      disk: more.disk,
      stages,
      pass,
      experts,
      products,
      copied_because,
      uploads_because: more.uploads_because,
      lacking_bytes: lacking_bytes + (more.lacking_bytes ?? 0),
      on_free,
    });
    return { engine: new NativeEngine(options, arena.backend, { file, executor }), executor };
  } catch (error) {
    for (const free of freed.reverse()) free();
    room.give();
    throw error;
  }
}

function productsFor(
  { batch_invariant }: EngineOptions,
  meter: StreamMeter,
  { products: open }: StreamingEngineOptions,
): { products: HybridProducts | undefined; copied_because: string | undefined } {
  const opened = batch_invariant ? undefined : open?.(meter);
  if (opened === undefined) return { products: undefined, copied_because: undefined };
  return 'products' in opened
    ? { products: opened.products, copied_because: undefined }
    : { products: undefined, copied_because: opened.because };
}

/** Of a mixture only the experts that are needed are to come; where that cannot be, its layers do. */
function cutModel(
  options: EngineOptions,
  arena: StreamingArena,
  file: ModelFile,
  { resident_bytes = 0 }: StreamingEngineOptions,
  room: TakenRoom,
  meter: StreamMeter,
): StreamedCut {
  return (
    cutAtRouters({ options, arena, file, resident_bytes, meter }, room) ??
    cutIntoLayers(options, arena, file, resident_bytes, room)
  );
}

function openStage(
  options: EngineOptions,
  arena: StreamingArena,
  file: ModelFile,
  { operators, layer, weights }: CutStage,
  kv: KvMemory,
  operations: GraphOperations | undefined,
): Stage {
  // A part sees its own operators alone, so it cannot choose for all of them.
  const batch_invariant = options.batch_invariant ?? false;
  const memory = { weights, kv: layerKv(kv.storage, 2 * layer), scratch: arena.scratch };
  return new Stage(arena.backend, file, {
    ...stageOptions({ ...options, batch_invariant }, memory),
    operators,
    operations,
  });
}

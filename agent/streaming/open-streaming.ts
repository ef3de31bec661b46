import { residentTensors } from '../../solver/streaming/resident-share.ts';
import { planRing } from '../../solver/streaming/ring-plan.ts';
import type { EngineOptions } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { checkOptions, kernelPolicy } from '../engine/engine-options.ts';
import { KvMemory } from '../engine/kv-memory.ts';
import type { KvSource } from '../engine/kv-storage.ts';
import { type ModelFile, openModelFile } from '../engine/model-file.ts';
import { NativeEngine } from '../engine/native-engine.ts';
import { stageOperators } from '../engine/operators.ts';
import type { ParkingDisk } from '../engine/parking-disk.ts';
import { Stage } from '../engine/stage.ts';
import { stageOptions } from '../engine/stage-options.ts';
import { planWeights } from '../engine/weight-plan.ts';
import { HostEmbedding } from './host-embedding.ts';
import { layerKv } from './layer-kv.ts';
import { PartStream, type StreamPart } from './part-stream.ts';
import { PartWeights } from './part-weights.ts';
import type { StreamingArena } from './streaming-arena.ts';
import { StreamingExecutor } from './streaming-executor.ts';

export interface StreamingEngineOptions {
  /** Of the arena's bytes for parts that stay, what this model may have. Default: 0. */
  resident_bytes?: number;
  /** Of what was to stay, what the arena was not given. Default: 0. */
  lacking_bytes?: number;
  /** Absent: memory of its own. */
  kv?: KvSource;
  /** See `EngineResources`. */
  disk?: ParkingDisk | undefined;
  /** A part is there and was computed. */
  on_part?: () => void;
  /** It is closed. */
  on_closed?: () => void;
}

interface LayerPart {
  /** Operators [begin, end). */
  range: { begin: number; end: number };
  layer: number;
  weights: PartWeights;
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
  const taken: number[] = [];
  const freed: (() => void)[] = [];
  try {
    const layers = cutIntoLayers(options, arena, file);
    freed.push(
      ...layers.map(
        ({ weights }) =>
          () =>
            weights.free(),
      ),
    );
    const { parts, lacking_bytes } = placeParts(arena, file, layers, more, taken);
    const kv = new KvMemory(
      arena.backend,
      file.model,
      [...Array(file.model.n_layer).keys()],
      options,
      more.kv,
    );
    freed.push(() => kv.free());
    // Stages have their weights from here on.
    freed.splice(0, layers.length);
    const stages = layers.map((own) => {
      const stage = openStage(options, arena, file, own, kv);
      freed.push(() => stage.free());
      return stage;
    });
    const stream = new PartStream(arena, parts);
    const rows_max = options.prefill_chunk_tokens + options.max_sequences;
    const embedding = new HostEmbedding(arena.backend.ggml, file, rows_max);
    freed.push(() => embedding.free());
    const on_free = (): void => {
      for (const offset of taken) arena.giveResident(offset);
      more.on_closed?.();
    };
    const on_part = more.on_part ?? ((): void => undefined);
    const executor = new StreamingExecutor({
      arena,
      stream,
      embedding,
      kv,
      disk: more.disk,
      stages,
      rows_max,
      on_part,
      lacking_bytes,
      on_free,
    });
    return { engine: new NativeEngine(options, arena.backend, { file, executor }), executor };
  } catch (error) {
    for (const free of freed.reverse()) free();
    for (const offset of taken) arena.giveResident(offset);
    throw error;
  }
}

/** A part for each layer; the last one has the head, so that rows which leave it are picked as in a whole model. */
function cutIntoLayers(options: EngineOptions, arena: StreamingArena, file: ModelFile): LayerPart[] {
  const { gguf, model } = file;
  return Array.from({ length: model.n_layer }, (_, layer) => {
    const begin = 1 + 2 * layer;
    const range = { begin, end: begin + (layer === model.n_layer - 1 ? 3 : 2) };
    const plan = planWeights(gguf, model, stageOperators(model.n_layer, range), kernelPolicy(options));
    return { range, layer, weights: new PartWeights(arena, gguf, plan) };
  });
}

/** Which parts stay, each in a place of its own, and where the others lie in the ring. */
function placeParts(
  arena: StreamingArena,
  { gguf }: ModelFile,
  layers: readonly LayerPart[],
  { resident_bytes = 0, ...more }: StreamingEngineOptions,
  taken: number[],
): { parts: StreamPart[]; lacking_bytes: number } {
  const tensors = layers.map(({ weights }, order) => ({ bytes: weights.bytes, uses_per_s: 1, order }));
  const resident = new Set<number>();
  let { lacking_bytes = 0 } = more;
  for (const index of residentTensors(tensors, resident_bytes)) {
    const { weights } = layers[index]!;
    const offset = arena.takeResident(weights.bytes);
    if (offset === undefined) {
      // Other models have what is missing: this part is streamed.
      lacking_bytes += weights.bytes;
      continue;
    }
    taken.push(offset);
    resident.add(index);
    weights.placeAt(offset);
  }
  const streamed = layers.filter((_, index) => !resident.has(index)).map(({ weights }) => weights);
  const sizes = streamed.map(({ bytes }) => bytes);
  const ring = planRing(sizes, arena.ring.bytes, arena.alignment_bytes);
  if (!ring)
    throw new HpcserveError('E_NATIVE_MEMORY', {
      what: `${gguf.path} cannot be streamed through ${arena.ring.bytes} bytes`,
      because: `its largest layer has ${Math.max(...sizes)} bytes`,
      try: 'deploy again, so that the arena is planned for this file: two of its layers at least, so that one comes while the other computes',
    });
  for (const [index, { offset }] of ring.entries()) streamed[index]!.placeAt(arena.ring.offset + offset);
  const places = ring.values();
  const parts = layers.map(({ weights }, index): StreamPart => {
    return resident.has(index) ? { weights } : { weights, ring: places.next().value! };
  });
  return { parts, lacking_bytes };
}

function openStage(
  options: EngineOptions,
  arena: StreamingArena,
  file: ModelFile,
  { range, layer, weights }: LayerPart,
  kv: KvMemory,
): Stage {
  // A part sees its own operators alone, so it cannot choose for all of them.
  const batch_invariant = options.batch_invariant ?? false;
  const memory = { weights, kv: layerKv(kv.storage, 2 * layer), scratch: arena.scratch };
  return new Stage(arena.backend, file, { ...stageOptions({ ...options, batch_invariant }, memory), range });
}

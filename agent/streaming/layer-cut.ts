import type { EngineOptions } from '../../spec/engine-contract.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { kernelPolicy } from '../engine/engine-options.ts';
import type { ModelFile } from '../engine/model-file.ts';
import { stageOperators } from '../engine/operators.ts';
import { planWeights } from '../engine/weight-plan.ts';
import { PartWeights } from './part-weights.ts';
import { placeStaying, placeStreamed, type StreamedCut, type TakenRoom } from './streamed-cut.ts';
import type { StreamingArena } from './streaming-arena.ts';

/**
 * A part for each layer; the last one has the head, so that rows which leave it are picked as in a whole model.
 * @param resident_bytes for layers that stay
 * @throws HpcserveError E_NATIVE_MEMORY: a layer is larger than the ring; E_NATIVE_KERNEL
 */
export function cutIntoLayers(
  options: EngineOptions,
  arena: StreamingArena,
  { gguf, model }: ModelFile,
  resident_bytes: number,
  room: TakenRoom,
): StreamedCut {
  const weights: PartWeights[] = [];
  try {
    const stages = Array.from({ length: model.n_layer }, (_, layer) => {
      const begin = 1 + 2 * layer;
      const range = { begin, end: begin + (layer === model.n_layer - 1 ? 3 : 2) };
      const operators = stageOperators(model.n_layer, range);
      const own = new PartWeights(arena, gguf, planWeights(gguf, model, operators, kernelPolicy(options)));
      weights.push(own);
      return { operators, layer, weights: own };
    });
    const { staying, lacking_bytes } = placeStaying(weights, resident_bytes, room);
    const parts = placeStreamed(weights, staying, arena, arena.ring.bytes);
    if (parts) return { stages, parts, lacking_bytes };
    const largest = Math.max(...weights.filter((own) => !staying.has(own)).map(({ bytes }) => bytes));
    throw new HpcserveError('E_NATIVE_MEMORY', {
      what: `${gguf.path} cannot be streamed through ${arena.ring.bytes} bytes`,
      because: `its largest layer has ${largest} bytes`,
      try: 'deploy again, so that the arena is planned for this file: two of its layers at least, so that one comes while the other computes',
    });
  } catch (error) {
    for (const own of weights) own.free();
    throw error;
  }
}

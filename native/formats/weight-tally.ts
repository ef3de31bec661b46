/** Sums over the tensors of a model that do not depend on the file format. */
import type { ModelFileSummary } from '../../spec/model-summary.ts';

export interface SizedTensor {
  name: string;
  type: string;
  size_bytes: number;
}

export function tallyTypes(tensors: readonly SizedTensor[]): ModelFileSummary['tensor_types'] {
  const tally: ModelFileSummary['tensor_types'] = {};
  for (const { type, size_bytes } of tensors) {
    const entry = tally[type] ?? { tensors: 0, bytes: 0 };
    tally[type] = entry;
    entry.tensors += 1;
    entry.bytes += size_bytes;
  }
  return tally;
}

/**
 * Bytes by place. `layer` captures the layer's number; what matches neither pattern (embedding, rotary
 * factors, …) is needed before the first layer and counts as embedding.
 */
export function distributeWeights(
  tensors: readonly SizedTensor[],
  n_layer: number,
  patterns: { layer: RegExp; output: RegExp },
): ModelFileSummary['weight_bytes_of'] {
  const layers = new Array<number>(n_layer).fill(0);
  let embedding = 0;
  let output = 0;
  for (const { name, size_bytes } of tensors) {
    const layer = Number(patterns.layer.exec(name)?.[1] ?? -1);
    if (layer >= 0 && layer < n_layer) layers[layer]! += size_bytes;
    else if (patterns.output.test(name)) output += size_bytes;
    else embedding += size_bytes;
  }
  return { embedding, layers, output };
}

/** How large an arena is made that the weights of a model go through. Sizes are bytes. */
import type { ModelFileSummary } from '../../spec/model-summary.ts';
import { planRing } from './ring-plan.ts';

/** Tensors as kernels have them take a little more than in their file, as in the margin of resident ones. */
const layout_share = 1.05;
const alignment_bytes = 4096;
const step_bytes = 2 ** 20;
/** What may be added to the two largest parts, as shares of the largest. */
const additions = [0, 0.25, 0.5, 0.75, 1] as const;

type WeightsOfModel = Pick<ModelFileSummary, 'n_layer' | 'weight_bytes' | 'weight_bytes_of'>;

/** Parts that the executor streams: the layers, the last one with the head. The host reads rows of the embedding. */
export function streamedParts_bytes({ n_layer, weight_bytes, weight_bytes_of }: WeightsOfModel): number[] {
  const { embedding, layers, output } = weight_bytes_of;
  // A head without a matrix of its own is the embedding.
  const head_bytes = output < embedding / 2 ? embedding + output : output;
  const even_bytes = Math.max(0, weight_bytes - embedding - output) / n_layer;
  const parts = Array.from({ length: n_layer }, (_, layer) =>
    // Headers of some folders do not say which layer has what.
    layers.length === n_layer ? layers[layer]! : even_bytes,
  );
  parts[n_layer - 1]! += head_bytes;
  return parts;
}

/** The same parts as an arena holds them. */
export function arenaParts_bytes(model: WeightsOfModel): number[] {
  const aligned = (bytes: number): number => Math.ceil(bytes / alignment_bytes) * alignment_bytes;
  return streamedParts_bytes(model).map((bytes) => aligned(layout_share * bytes));
}

/** Of a step, what need not come where layers that take so much of an arena stay there. */
export function sparedStep_bytes(resident_bytes: number): number {
  return resident_bytes / layout_share;
}

/** What every step brings. */
export function streamed_bytes(model: WeightsOfModel): number {
  return streamedParts_bytes(model).reduce((sum, bytes) => sum + bytes, 0);
}

/**
 * The smallest of some arenas in which every part can come while the one before it computes, or where none is such the
 * largest of them; at most the whole model.
 */
export function arenaFor_bytes(model: WeightsOfModel): number {
  const inFile = streamedParts_bytes(model);
  const parts = inFile.map((bytes) => Math.ceil(layout_share * bytes));
  const [largest = 0, second = 0] = parts.toSorted((a, b) => b - a);
  const whole = parts.reduce((sum, bytes) => sum + bytes, 0);
  const rounded = (bytes: number): number => Math.ceil(bytes / step_bytes) * step_bytes;
  const choices = additions.map((share) => rounded(Math.min(whole, largest + second + share * largest)));
  // Whether they take as much as in the file or more.
  const overlaps = (bytes: number): boolean => [inFile, parts].every((sizes) => overlap(sizes, bytes));
  return choices.find(overlaps) ?? choices.at(-1)!;
}

/** The same for parts whose sizes are known. */
export function ringFor_bytes(parts_bytes: readonly number[]): number {
  const aligned = (bytes: number): number => Math.ceil(bytes / alignment_bytes) * alignment_bytes;
  const sizes = parts_bytes.map(aligned);
  const [largest = 0, second = 0] = sizes.toSorted((a, b) => b - a);
  const whole = sizes.reduce((sum, bytes) => sum + bytes, 0);
  const choices = additions.map((share) => Math.min(whole, aligned(largest + second + share * largest)));
  return choices.find((bytes) => overlap(sizes, bytes)) ?? choices.at(-1)!;
}

function overlap(sizes_bytes: readonly number[], ring_bytes: number): boolean {
  return planRing(sizes_bytes, ring_bytes, alignment_bytes)?.every(({ distance }) => distance > 1) ?? false;
}

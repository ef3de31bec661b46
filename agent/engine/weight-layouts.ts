/** In which layouts the weights of a stage lie, and what follows from it. */
import koffi from 'koffi';
import { type Ggml, tensorLayout } from '../../native/ggml.ts';
import { packedProducts } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { type LoadedWeights, plannedWeights } from './weights.ts';

/** Bytes by ggml's name of the buffer type: `CPU`, `AMX`, `PACKED_AMX_BF16`. */
export function bytesByLayout(ggml: Ggml, weights: LoadedWeights): Record<string, number> {
  const found: Record<string, number> = {};
  const tensors = new Map(plannedWeights(weights.plan).map((weight) => [weights.tensor(weight), weight]));
  for (const [tensor, weight] of tensors) {
    const buffer = koffi.decode(tensor, tensorLayout.buffer, 'void *') as Pointer;
    const bufferType = ggml.ggml_backend_buffer_get_type(buffer)!;
    const name = ggml.ggml_backend_buft_name(bufferType) ?? 'unnamed';
    const bytes = Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
    // Experts may lie among others, or be fewer at a time than there are.
    const planes = Number(koffi.decode(tensor, tensorLayout.ne + 8 * 2, 'int64_t'));
    found[name] = (found[name] ?? 0) + (bytes * (weight.shape[2] ?? 1)) / planes;
  }
  return found;
}

/**
 * Whether the order of sums would be fixed even if nobody asked for it, for all that our products multiply: then it
 * costs nothing. An exception is one row beside quantized weights on AMX.
 */
export function isFixedUnasked(ggml: Ggml, weights: LoadedWeights): boolean {
  const packed = packedProducts(ggml);
  return plannedWeights(weights.plan)
    .map((weight) => weights.tensor(weight))
    .filter((tensor) => packed?.holds(tensor))
    .every((tensor) => packed!.isFixedUnasked(tensor));
}

/**
 * Whether all matrices are multiplied by our products, whose sums go in one order whatever the batch. Those that choose
 * among experts are in F32, and have a product for it.
 */
export function haveFixedOrder(ggml: Ggml, weights: LoadedWeights): boolean {
  const packed = packedProducts(ggml);
  if (!packed) return false;
  const routers = [...weights.plan.layers.values()].flatMap(({ feed_forward, router }) => [
    feed_forward?.experts?.router,
    router?.router,
  ]);
  return plannedWeights(weights.plan)
    .filter(({ use }) => use === 'matrix' || use === 'experts')
    .filter((weight) => weight.type !== 'F32' || !routers.includes(weight))
    .every((weight) => packed.holds(weights.tensor(weight)));
}

/** In which layouts the weights of a stage lie, and what follows from it. */
import koffi from 'koffi';
import { type Ggml, tensorLayout } from '../../native/ggml.ts';
import { packedProducts } from '../../native/packed-products.ts';
import type { Pointer } from '../../native/signature.ts';
import { type LoadedWeights, plannedWeights } from './weights.ts';

/** Bytes by ggml's name of the buffer type: `CPU`, `AMX`, `PACKED_AMX_BF16`. */
export function bytesByLayout(ggml: Ggml, weights: LoadedWeights): Record<string, number> {
  const found: Record<string, number> = {};
  for (const tensor of new Set(plannedWeights(weights.plan).map((weight) => weights.tensor(weight)))) {
    const buffer = koffi.decode(tensor, tensorLayout.buffer, 'void *') as Pointer;
    const bufferType = ggml.ggml_backend_buffer_get_type(buffer)!;
    const name = ggml.ggml_backend_buft_name(bufferType) ?? 'unnamed';
    found[name] = (found[name] ?? 0) + Number(ggml.ggml_backend_buft_get_alloc_size(bufferType, tensor));
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
  const routers = [...weights.plan.layers.values()].map(({ feed_forward }) => feed_forward?.experts?.router);
  return plannedWeights(weights.plan)
    .filter(({ use }) => use === 'matrix' || use === 'experts')
    .filter((weight) => weight.type !== 'F32' || !routers.includes(weight))
    .every((weight) => packed.holds(weights.tensor(weight)));
}

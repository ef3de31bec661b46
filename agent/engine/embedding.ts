/**
 * Sequence embeddings: hidden rows after the output norm, pooled as the model's `pooling_type` says (mean
 * where it says nothing), and scaled to length one.
 */
import type { Pooling } from './architecture.ts';

/**
 * Adds the rows of one chunk.
 * @param pooled of the chunks before; absent at first.
 * @param rows shape [n, n_embd].
 * @param begin position of the first row in the prompt.
 */
export function poolRows(
  pooled: Float32Array | undefined,
  rows: Float32Array,
  n_embd: number,
  begin: number,
  pooling: Pooling,
): Float32Array {
  const count = rows.length / n_embd;
  if (pooling === 'first') return begin === 0 ? rows.slice(0, n_embd) : pooled!;
  if (pooling === 'last') return rows.slice((count - 1) * n_embd);
  const sum = pooled ?? new Float32Array(n_embd);
  for (let row = 0; row < count; row++)
    for (let index = 0; index < n_embd; index++) sum[index]! += rows[row * n_embd + index]!;
  return sum;
}

/** Shape [n_embd], of Euclidean length 1 (all zeros stay so). */
export function finishPooled(pooled: Float32Array, tokens: number, pooling: Pooling): Float32Array {
  const scale = pooling === 'mean' ? 1 / tokens : 1;
  let squares = 0;
  for (const value of pooled) squares += (value * scale) ** 2;
  const length = Math.sqrt(squares);
  return pooled.map((value) => (length > 0 ? (value * scale) / length : 0));
}

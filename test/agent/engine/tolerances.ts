/**
 * Root mean square of the differences in a row of logits, whose own is about 3. Measured: libllama differs
 * from itself by as much when it is fed one token at a time instead of a batch, since activations are
 * rounded to 8 bits before they meet quantized weights and to 16 before F16 and BF16, the KV cache rounds
 * to 16, and another order of summation moves a rounding now and then. Our products round activations to 16 bits
 * beside quantized weights, too: what is left of the difference is libllama's own (measured against the same weights in
 * F32, ours is off by 0.08 on average, and libllama by 0.18).
 */
export const tolerances: Record<string, number> = {
  F32: 0.02,
  F16: 0.03,
  BF16: 0.08,
  Q8_0: 0.55,
  Q4_0: 0.55,
  /** Activations in blocks of 256 share a scale, so that a rounding that moves weighs more. */
  Q4_K: 0.6,
  /** Keys and values rounded to 8 bits, the weights in F16. */
  'KV q8_0': 0.6,
};

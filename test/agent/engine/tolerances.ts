/**
 * Beside libllama with the same kernels of ggml, and the same attention.
 *
 * Root mean square of the differences in a row of logits, whose own is about 3. Measured: libllama differs
 * from itself by as much when it is fed one token at a time instead of a batch, since activations are
 * rounded to 8 bits before they meet quantized weights and to 16 before F16 and BF16, the KV cache rounds
 * to 16, and another order of summation moves a rounding now and then.
 */
export const tolerances: Record<string, number> = {
  F32: 0.02,
  F16: 0.03,
  BF16: 0.08,
  Q8_0: 0.3,
  Q4_0: 0.3,
  Q4_K: 0.4,
  /** Keys and values rounded to 8 bits, the weights in F16. */
  'KV q8_0': 0.6,
};

/**
 * Our kernels beside libllama's, which round otherwise: the errors of both come together.
 *
 * Beside the same weights in F32 (mean and largest over tiny models of three architectures):
 *
 *               our kernels   ggml's in our engine   libllama
 *     BF16      0.05, 0.13    0.05, 0.16             0.05, 0.17
 *     Q8_0      0.05, 0.23    0.18, 0.42             0.18, 0.40
 *     Q4_0      0.05, 0.15                           0.17, 0.43
 *     Q4_K      0.05, 0.13                           0.24, 0.72
 *
 * That is on AMX, where ours round activations to 16 bits beside quantized weights, too. Elsewhere they become bytes,
 * as those of libllama, and its errors are ours. exact-weights.test.ts holds them to that.
 */
export const ownTolerances: typeof tolerances = {
  ...tolerances,
  BF16: 0.15,
  Q8_0: 0.55,
  Q4_0: 0.55,
  /** Activations in blocks of 256 share a scale in libllama, so that a rounding that moves weighs more. */
  Q4_K: 0.85,
};

/**
 * Beside libllama on the same device. Kernels of Vulkan add halves up in matrix products, and not in those of one
 * row, so that libllama itself differs by more when it is fed one token at a time (largest of 36 rows behind prompts
 * of 17, 90 and 300 tokens, tiny models of two or three architectures, Mesa's llvmpipe): F32 0.037, F16 0.27, BF16
 * 0.14. The errors of both come together: F32 differed by 0.056 at most, F16 by 0.11.
 */
export const deviceTolerances: typeof tolerances = {
  ...tolerances,
  F32: 0.08,
  F16: 0.15,
  BF16: 0.15,
};

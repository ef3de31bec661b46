/* Products with VDPBF16PS, of weights in pairs and rows of x as BF16: see stripe-avx512.h. */
#include "stripe-avx512.h"

#define X_BLOCK_BYTES (2 * HK_BLOCK)

static inline __attribute__((always_inline)) __m512bh pair_of(const uint8_t *w, int pair) {
  return (__m512bh)_mm512_loadu_si512(w + pair * 64);
}

static inline __attribute__((always_inline)) void add_block(const enum hk_type type, const int rows, const int strips,
                                                            const uint8_t *x, const uint8_t *const *w,
                                                            __m512 (*sum)[STRIPS]) {
  (void)type;
#pragma GCC unroll 2
  for (int pair = 0; pair < HK_BLOCK / 2; pair++) {
    const __m512bh first = pair_of(w[0], pair);
    const __m512bh second = strips > 1 ? pair_of(w[1], pair) : first;
    const __m512bh third = strips > 2 ? pair_of(w[2], pair) : first;
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(((const int32_t *)(x + row * X_BLOCK_BYTES))[pair]);
      sum[row][0] = _mm512_dpbf16_ps(sum[row][0], both, first);
      if (strips > 1) sum[row][1] = _mm512_dpbf16_ps(sum[row][1], both, second);
      if (strips > 2) sum[row][2] = _mm512_dpbf16_ps(sum[row][2], both, third);
    }
  }
}

#include "stripes-in-place-avx512.h"

void hk_product_avx512_bf16(const struct hk_product *p, int64_t begin, int64_t end) { product(HK_BF16, p, begin, end); }

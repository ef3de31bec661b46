/* Products with VDPBF16PS, of weights in pairs and rows of x as BF16: see stripe-avx512.h. */
#include "stripe-avx512.h"

#define X_BLOCK_BYTES (2 * HK_BLOCK)
#define X_TILE_BLOCK_BYTES X_BLOCK_BYTES
#define BLOCK_BYTES HK_BLOCK_BYTES
#define SCALE_FLOATS_MAX 1

/* Weights are multiplied where they lie. */
static inline int is_expanded(enum hk_type type) {
  (void)type;
  return 0;
}

static inline void expand(const enum hk_type type, const uint8_t *packed, int64_t blocks, int64_t begin, int count,
                          uint8_t *to, float *scales) {
  (void)type, (void)packed, (void)blocks, (void)begin, (void)count, (void)to, (void)scales;
}

/* Sums of one block go on from those of the last. */
static inline __attribute__((always_inline)) void multiply(const int rows, const int strips, const struct part *p) {
  __m512 sum[ROWS][STRIPS];
  const uint8_t *x = p->x + p->row * X_BLOCK_BYTES, *w0 = p->w[0], *w1 = p->w[1], *w2 = p->w[2];
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) {
      float *total = p->totals + (row * STRIPS + strip) * HK_STRIP;
      sum[row][strip] = p->first ? _mm512_setzero_ps() : _mm512_load_ps(total);
    }
  for (int block = 0; block < p->count; block++) {
    prefetch_next(strips, block, p);
#pragma GCC unroll 2
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh first = (__m512bh)_mm512_loadu_si512(w0 + pair * 64);
      const __m512bh second = strips > 1 ? (__m512bh)_mm512_loadu_si512(w1 + pair * 64) : first;
      const __m512bh third = strips > 2 ? (__m512bh)_mm512_loadu_si512(w2 + pair * 64) : first;
#pragma GCC unroll 8
      for (int row = 0; row < rows; row++) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(((const int32_t *)(x + row * X_BLOCK_BYTES))[pair]);
        sum[row][0] = _mm512_dpbf16_ps(sum[row][0], both, first);
        if (strips > 1) sum[row][1] = _mm512_dpbf16_ps(sum[row][1], both, second);
        if (strips > 2) sum[row][2] = _mm512_dpbf16_ps(sum[row][2], both, third);
      }
    }
    x += p->x_step;
    w0 += BLOCK_BYTES;
    w1 += BLOCK_BYTES;
    w2 += BLOCK_BYTES;
  }
#pragma GCC unroll 3
  for (int strip = 0; strip < strips; strip++)
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
      _mm512_store_ps(p->totals + (row * STRIPS + strip) * HK_STRIP, sum[row][strip]);
}

static inline __attribute__((always_inline)) void multiply_rows(const enum hk_type type, int rows, int strips,
                                                                const struct part *p) {
  (void)type;
#define CASE(count)                                                                                                    \
  case count:                                                                                                          \
    if (strips == 3) multiply(count, 3, p);                                                                            \
    else if (strips == 2) multiply(count, 2, p);                                                                       \
    else multiply(count, 1, p);                                                                                        \
    break
  switch (rows) {
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(8);
  }
#undef CASE
}

#include "take-stripes-avx512.h"

void hk_product_avx512_bf16(const struct hk_product *p, int64_t begin, int64_t end) { product(HK_BF16, p, begin, end); }

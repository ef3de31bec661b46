/*
 * Products whose weights are multiplied where they lie, in one sum a row and strip: see stripe-avx512.h. The file that
 * includes this one has defined X_BLOCK_BYTES and
 *
 *   add_block   of up to three strips w by `rows` rows of x, to their sums
 */
#pragma once

#define X_TILE_BLOCK_BYTES X_BLOCK_BYTES
#define BLOCK_BYTES HK_BLOCK_BYTES
#define SCALE_FLOATS_MAX 1

static inline int is_expanded(enum hk_type type) {
  (void)type;
  return 0;
}

static inline void expand(const enum hk_type type, const uint8_t *packed, int64_t blocks, int64_t begin, int count,
                          uint8_t *to, float *scales) {
  (void)type, (void)packed, (void)blocks, (void)begin, (void)count, (void)to, (void)scales;
}

/* Sums of one block go on from those of the last. */
static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const int rows, const int strips,
                                                           const struct part *p) {
  __m512 sum[ROWS][STRIPS];
  const uint8_t *x = p->x + p->row * X_BLOCK_BYTES, *w[STRIPS] = {p->w[0], p->w[1], p->w[2]};
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) {
      float *total = p->totals + (row * STRIPS + strip) * HK_STRIP;
      sum[row][strip] = p->first ? _mm512_setzero_ps() : _mm512_load_ps(total);
    }
  for (int block = 0; block < p->count; block++, x += p->x_step) {
    prefetch_next(strips, block, p);
    add_block(type, rows, strips, x, w, sum);
#pragma GCC unroll 3
    for (int strip = 0; strip < STRIPS; strip++) w[strip] += BLOCK_BYTES;
  }
#pragma GCC unroll 3
  for (int strip = 0; strip < strips; strip++)
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
      _mm512_store_ps(p->totals + (row * STRIPS + strip) * HK_STRIP, sum[row][strip]);
}

static inline __attribute__((always_inline)) void multiply_rows(const enum hk_type type, int rows, int strips,
                                                                const struct part *p) {
#define CASE(count)                                                                                                    \
  case count:                                                                                                          \
    if (strips == 3) multiply(type, count, 3, p);                                                                      \
    else if (strips == 2) multiply(type, count, 2, p);                                                                 \
    else multiply(type, count, 1, p);                                                                                  \
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

/*
 * Products with AVX-512: 8 rows of x by three strips, whose 24 sums fill the registers and hide the latency.
 *
 * Three strips, a stripe, are multiplied a chunk of blocks at a time by all rows of a pass. Sums wait beside each other
 * between chunks, not in the result, whose rows are far apart.
 *
 * A file that includes this one defines multiply_rows and expand, and then includes take-stripes-avx512.h.
 */
#pragma once
#include "kernels.h"
#include <immintrin.h>

/* Higher: fewer products for each weight that is read; lower: sums are ready before they are needed again. */
#define STRIPS 3
#ifndef ROWS
#define ROWS 8
#endif
/* Blocks of three strips at once: up to 24 KiB, which the first cache holds beside rows of x. */
#define CHUNK 8
/*
 * Stripes of three strips that take turns with a chunk. Higher: rows of x are read less often; lower: their chunk and the
 * sums of all rows stay in the second cache.
 */
#define PANEL 4
/* Bytes of a pass of x up to which a stripe is taken to its end instead. Higher: x comes from the third cache. */
#define WHOLE_X_BYTES_MAX 1536 * 1024

/* Where some rows of x meet a chunk of up to three strips. */
struct part {
  /* A block of a tile of x, the first of the rows in it, and bytes from one block of the tile to the next. */
  const uint8_t *x;
  int row, tile_rows;
  int64_t x_step;
  /* Of each strip: blocks as they are multiplied, and their scales. */
  const uint8_t *w[STRIPS];
  const float *scales[STRIPS];
  int count;
  /* [row][strip][16], which begin here if `first`. */
  float *totals;
  int first;
  /* Of each strip: the blocks that come next, in memory, and which lines of each of them this part asks for. */
  const uint8_t *next[STRIPS];
  int64_t next_step;
  int line_begin, line_end;
};

static inline __attribute__((always_inline)) void prefetch_next(const int strips, int block, const struct part *p) {
  for (int line = p->line_begin; line < p->line_end; line++)
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++)
      _mm_prefetch((const char *)p->next[strip] + block * p->next_step + line * 64, _MM_HINT_T1);
}

/* Up to three strips, and the rows of x from `from` to `to`, which begin a tile. */
struct stripe {
  const struct hk_product *p;
  int64_t strip, from, to;
  int strips;
  /* The blocks that come next, of its first strip; NULL: nothing is asked for. */
  const uint8_t *next;
  float *totals;
};

/* Lanes of a strip that are columns of the result. */
static inline __mmask16 hk_columns(int64_t n, int64_t strip) {
  const int64_t left = n - strip * HK_STRIP;
  return left >= HK_STRIP ? 0xffff : (__mmask16)((1u << left) - 1);
}

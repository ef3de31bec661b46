/* Products with VDPBF16PS: 16 columns of the result by pairs along k. */
#include "expand-pairs-super.h"
#include "expand-pairs.h"

/* Blocks of two strips at once: 32 KiB as BF16, which the first cache holds. */
#define CHUNK 16

/* Where a part of the product begins. */
struct part {
  /* A row of a tile of x. */
  const uint16_t *x;
  int tile_rows;
  /* Of each strip: its first block, and that block's scales. */
  const uint16_t *w[2];
  const float *scales[2];
  int count;
  const struct hk_product *product;
  /* Of the result: its first row, and the first column of its first strip. */
  int64_t row, column;
  int valid;
  __mmask16 columns[2];
  int first;
};

/*
 * `rows` rows by one or two strips. Sums of a quantized block begin at zero and are added with its scale; those of BF16
 * go on from block to block.
 */
static inline __attribute__((always_inline)) void multiply(const int rows, const int strips, const int scaled,
                                                           const struct part *p) {
  __m512 total[8][2];
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
    for (int strip = 0; strip < strips; strip++)
      total[row][strip] =
          p->first || row >= p->valid
              ? _mm512_setzero_ps()
              : _mm512_maskz_loadu_ps(p->columns[strip], hk_row(p->product, p->row + row) + p->column + strip * HK_STRIP);
  const uint16_t *x = p->x, *w0 = p->w[0], *w1 = p->w[1];
  for (int block = 0; block < p->count; block++) {
    __m512 sum[8][2];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
      for (int strip = 0; strip < strips; strip++) sum[row][strip] = scaled ? _mm512_setzero_ps() : total[row][strip];
#pragma GCC unroll 2
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh first = (__m512bh)_mm512_loadu_si512(w0 + pair * 32);
      const __m512bh second = strips > 1 ? (__m512bh)_mm512_loadu_si512(w1 + pair * 32) : first;
#pragma GCC unroll 8
      for (int row = 0; row < rows; row++) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(((const int32_t *)(x + row * HK_BLOCK))[pair]);
        sum[row][0] = _mm512_dpbf16_ps(sum[row][0], both, first);
        if (strips > 1) sum[row][1] = _mm512_dpbf16_ps(sum[row][1], both, second);
      }
    }
#pragma GCC unroll 2
    for (int strip = 0; strip < strips; strip++) {
      const __m512 scale = scaled ? _mm512_load_ps(p->scales[strip] + block * HK_STRIP) : _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int row = 0; row < rows; row++)
        total[row][strip] =
            scaled ? _mm512_fmadd_ps(scale, sum[row][strip], total[row][strip]) : sum[row][strip];
    }
    x += p->tile_rows * HK_BLOCK;
    w0 += HK_BLOCK_BYTES / 2;
    w1 += HK_BLOCK_BYTES / 2;
  }
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
    for (int strip = 0; strip < strips; strip++)
      if (row < p->valid)
        _mm512_mask_storeu_ps(hk_row(p->product, p->row + row) + p->column + strip * HK_STRIP, p->columns[strip],
                              total[row][strip]);
}

/* Rows that are multiplied together: as many as sums fit into registers beside their totals. */
static void multiply_rows(int rows, int strips, int scaled, const struct part *p) {
#define CASE(count)                                                                                                    \
  case count:                                                                                                          \
    if (strips > 1 && scaled) multiply(count, 2, 1, p);                                                                \
    else if (strips > 1) multiply(count, 2, 0, p);                                                                     \
    else if (scaled) multiply(count, 1, 1, p);                                                                         \
    else multiply(count, 1, 0, p);                                                                                     \
    break
  switch (rows) {
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(6);
    CASE(8);
  }
#undef CASE
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  const int scaled = type == HK_Q4_0 || type == HK_Q8_0, in_memory = type == HK_BF16;
  uint16_t expanded[2][CHUNK * HK_BLOCK_BYTES / 2] __attribute__((aligned(64)));
  float scales[2][CHUNK * HK_STRIP] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  const int tile_rows = hk_tile_rows(p->m);
  const int64_t pass = hk_pass_rows(p->m);
  for (int64_t from = 0; from < p->m; from += pass) {
    const int64_t to = from + pass < p->m ? from + pass : p->m;
    for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK) {
      struct part part = {.tile_rows = tile_rows, .product = p, .first = chunk == 0};
      part.count = p->blocks - chunk < CHUNK ? (int)(p->blocks - chunk) : CHUNK;
      for (int64_t strip = begin; strip < end; strip += 2) {
        const int strips = end - strip > 1 ? 2 : 1;
        for (int side = 0; side < 2; side++) {
          const uint8_t *packed = p->weights + (strip + (side < strips ? side : 0)) * strip_bytes;
          part.columns[side] = side < strips ? hk_columns(p->n, strip + side) : 0;
          part.w[side] = in_memory ? (const uint16_t *)(packed + chunk * HK_BLOCK_BYTES) : expanded[side];
          part.scales[side] = scales[side];
          if (scaled && side < strips)
            hk_expand(type, packed, p->blocks, chunk, part.count, expanded[side], scales[side]);
          else if (!in_memory && side < strips)
            hk_expand_super(type, packed, p->blocks, chunk, part.count, expanded[side]);
        }
        for (int64_t row = from; row < to;) {
          const int64_t tile = row / tile_rows, within = row % tile_rows;
          const int left = (int)(tile_rows - within);
          const int rows = left >= 8 && !scaled ? 8 : left >= 6 && scaled ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
          part.x = p->x + ((tile * p->blocks + chunk) * tile_rows + within) * HK_BLOCK;
          part.row = row, part.column = strip * HK_STRIP;
          part.valid = to - row < rows ? (int)(to - row) : rows;
          multiply_rows(rows, strips, scaled, &part);
          row += rows;
        }
      }
    }
  }
}

void hk_product_avx512_bf16(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_BF16) product(HK_BF16, p, begin, end);
  else if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else if (p->type == HK_Q8_0) product(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

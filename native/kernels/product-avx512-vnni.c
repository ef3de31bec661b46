/*
 * Products of quantized weights with VPDPBUSD: integers are multiplied as integers, as ggml does it. A block of x becomes
 * 32 signed bytes with a scale; weights are counted from their least integer on, since one of the two has no sign, and
 * what that adds to a sum is where the sum begins. Sums of a block are exact, and go into the total block by block: in
 * the same order for one row and for hundreds.
 *
 * A block of a tile of x, of r rows:
 *
 *   [row r][32 bytes], in the order of hk_nibbles: elements 0, 16, 1, 17 to 7, 23, then 8, 24 to 15, 31
 *   [row r] scales, as floats
 *   [row r] -8 times the sum of the row's bytes, as integers of 32 bits
 */
#define ROWS 4
#include "prefetch.h"
#include "stripe-avx512.h"
#include <string.h>

#define X_BLOCK_BYTES HK_BLOCK_AS_BYTES
#define BLOCK_BYTES 512
/* Higher: more rows at the rate of the memory; lower: weights are unpacked less often. */
#define FEW_ROWS 4

static inline int is_expanded(enum hk_type type) { return type == HK_Q4_0; }

/* Scales as floats; of Q4_0 also blocks, as Q8_0 has them: [four elements 8][row 16][4]. */
static inline __attribute__((always_inline)) void expand(const enum hk_type type, const uint8_t *packed, int64_t blocks,
                                                         int64_t begin, int count, uint8_t *to, float *scales) {
  const __m512i low_bits = _mm512_set1_epi8(15);
  for (int block = 0; block < count; block++) {
    const __m256i halves = _mm256_loadu_si256((const __m256i *)hk_scales(type, packed, blocks, begin + block));
    _mm512_store_ps(scales + block * HK_STRIP, _mm512_cvtph_ps(halves));
    if (!is_expanded(type)) continue;
    const uint8_t *from = packed + (begin + block) * hk_integer_bytes(type);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      const __m512i bytes = _mm512_loadu_si512(from + 64 * v);
      _mm512_store_si512(to + block * BLOCK_BYTES + 64 * v, _mm512_and_si512(bytes, low_bits));
      _mm512_store_si512(to + block * BLOCK_BYTES + 64 * (v + 4),
                         _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits));
    }
  }
}

static inline __attribute__((always_inline)) __m512i four_bytes(const uint8_t *x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

static inline __attribute__((always_inline)) __m512 one_float(const uint8_t *x) {
  float value;
  memcpy(&value, x, 4);
  return _mm512_set1_ps(value);
}

/* Of few rows the totals stay in registers. */
static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const int rows, const int strips,
                                                           const struct part *p) {
  const int kept = 1;
  const uint8_t *x = p->x, *w0 = p->w[0], *w1 = p->w[1], *w2 = p->w[2];
  __m512 total[ROWS][STRIPS];
  if (p->first)
#pragma GCC unroll 24
    for (int at = 0; at < rows * STRIPS; at++) _mm512_store_ps(p->totals + at * HK_STRIP, _mm512_setzero_ps());
  if (kept)
#pragma GCC unroll 12
    for (int at = 0; at < rows * STRIPS; at++)
      total[at / STRIPS][at % STRIPS] = _mm512_load_ps(p->totals + at * HK_STRIP);
  for (int block = 0; block < p->count; block++) {
    const uint8_t *bytes = x + p->row * HK_BLOCK;
    const uint8_t *scale_of = x + p->tile_rows * HK_BLOCK + 4 * p->row, *begin_of = scale_of + 4 * p->tile_rows;
    __m512i sum[ROWS][STRIPS];
    prefetch_next(strips, block, p);
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) {
      __m512i begin = four_bytes(begin_of + 4 * row);
      /* Bytes are counted from -128, integers of 4 bits from -8. */
      if (type == HK_Q8_0) begin = _mm512_slli_epi32(begin, 4);
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++) sum[row][strip] = begin;
    }
#pragma GCC unroll 8
    for (int four = 0; four < 8; four++) {
      const __m512i first = _mm512_loadu_si512(w0 + 64 * four);
      const __m512i second = strips > 1 ? _mm512_loadu_si512(w1 + 64 * four) : first;
      const __m512i third = strips > 2 ? _mm512_loadu_si512(w2 + 64 * four) : first;
#pragma GCC unroll 8
      for (int row = 0; row < rows; row++) {
        const __m512i both = four_bytes(bytes + row * HK_BLOCK + 4 * four);
        sum[row][0] = _mm512_dpbusd_epi32(sum[row][0], first, both);
        if (strips > 1) sum[row][1] = _mm512_dpbusd_epi32(sum[row][1], second, both);
        if (strips > 2) sum[row][2] = _mm512_dpbusd_epi32(sum[row][2], third, both);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) {
      const __m512 x_scale = one_float(scale_of + 4 * row);
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++) {
        float *at = p->totals + (row * STRIPS + strip) * HK_STRIP;
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(p->scales[strip] + block * HK_STRIP), x_scale);
        const __m512 before = kept ? total[row][strip] : _mm512_load_ps(at);
        const __m512 after = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[row][strip]), scale, before);
        if (kept) total[row][strip] = after;
        else _mm512_store_ps(at, after);
      }
    }
    x += p->x_step;
    w0 += BLOCK_BYTES;
    w1 += BLOCK_BYTES;
    w2 += BLOCK_BYTES;
  }
  if (kept)
#pragma GCC unroll 12
    for (int at = 0; at < rows * STRIPS; at++)
      _mm512_store_ps(p->totals + at * HK_STRIP, total[at / STRIPS][at % STRIPS]);
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
  }
#undef CASE
}

#include "take-stripes-avx512.h"

/*
 * One strip by the rows of a tile that has few of them, at the rate of the memory: nothing is expanded, and what is ahead
 * is asked for.
 */
static inline __attribute__((always_inline)) void few_rows_by_strip(const enum hk_type type, const int rows,
                                                                    const struct hk_product *p, int64_t strip) {
  const __m512i low_bits = _mm512_set1_epi8(15);
  const uint8_t *packed = p->weights + strip * hk_strip_bytes(type, p->blocks), *x = (const uint8_t *)p->x;
  __m512 total[FEW_ROWS];
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) total[row] = _mm512_setzero_ps();
  for (int64_t block = 0; block < p->blocks; block++, x += rows * X_BLOCK_BYTES) {
    const uint8_t *from = packed + block * hk_integer_bytes(type), *scale_of = x + rows * HK_BLOCK;
    __m512i even[FEW_ROWS], odd[FEW_ROWS];
    hk_prefetch(type, packed, p->blocks, block, 1);
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
      even[row] = four_bytes(scale_of + 4 * (rows + row));
      if (type == HK_Q8_0) even[row] = _mm512_slli_epi32(even[row], 4);
      odd[row] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      const __m512i bytes = _mm512_loadu_si512(from + 64 * v);
      const __m512i first = type == HK_Q4_0 ? _mm512_and_si512(bytes, low_bits) : bytes;
      const __m512i second = type == HK_Q4_0 ? _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits)
                                             : _mm512_loadu_si512(from + 64 * (v + 4));
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        even[row] = _mm512_dpbusd_epi32(even[row], first, four_bytes(x + row * HK_BLOCK + 4 * v));
        odd[row] = _mm512_dpbusd_epi32(odd[row], second, four_bytes(x + row * HK_BLOCK + 4 * (v + 4)));
      }
    }
    const __m256i halves = _mm256_loadu_si256((const __m256i *)hk_scales(type, packed, p->blocks, block));
    const __m512 scale = _mm512_cvtph_ps(halves);
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(even[row], odd[row]));
      total[row] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, one_float(scale_of + 4 * row)), total[row]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
    if (row < p->m)
      _mm512_mask_storeu_ps(hk_row(p, row) + strip * HK_STRIP, hk_columns(p->n, strip), total[row]);
}

static inline __attribute__((always_inline)) void few_rows(const enum hk_type type, const struct hk_product *p,
                                                           int64_t begin, int64_t end) {
  for (int64_t strip = begin; strip < end; strip++)
    if (p->m == 1) few_rows_by_strip(type, 1, p, strip);
    else if (p->m == 2) few_rows_by_strip(type, 2, p, strip);
    else few_rows_by_strip(type, 4, p, strip);
}

void hk_product_avx512_vnni(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->m <= FEW_ROWS && p->type == HK_Q4_0) few_rows(HK_Q4_0, p, begin, end);
  else if (p->m <= FEW_ROWS) few_rows(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else product(HK_Q8_0, p, begin, end);
}

/* Products of quantized weights in fours with VPDPBUSD: see bytes.h. */
#define ROWS 4
#include "bytes.h"
#include "cut-off.h"
#include "prefetch.h"
#include "stripe-avx512.h"
#include <string.h>

#define X_BLOCK_BYTES HK_BLOCK_AS_BYTES
#define X_TILE_BLOCK_BYTES (2 * HK_BLOCK)
#define BLOCK_BYTES HK_BYTES_OF_BLOCK
#define SCALE_FLOATS_MAX (2 * HK_STRIP)
/* Higher: more rows at the rate of the memory; lower: weights are unpacked less often. */
#define FEW_ROWS 4
/* Strips that one row takes together. Higher: their beginnings and ends are read at the memory's latency. */
#define TOGETHER 2

static inline int is_expanded(enum hk_type type) { return hk_is_unpacked(type); }

/* Fours v and v + 4 of a block of a strip, for v from 0 to 3, as bytes. */
static inline __attribute__((always_inline)) void unpack(const enum hk_type type, const uint8_t *from, const int v,
                                                         __m512i *first, __m512i *second) {
  const __m512i low_bits = _mm512_set1_epi8(15), fifth_and_sixth = _mm512_set1_epi8(0x30);
  const __m512i bytes = _mm512_loadu_si512(from + 64 * v);
  *first = type == HK_Q8_0 ? bytes : _mm512_and_si512(bytes, low_bits);
  *second = type == HK_Q8_0 ? _mm512_loadu_si512(from + 64 * (v + 4))
                            : _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits);
  if (type != HK_Q6_K) return;
  const __m512i high = _mm512_loadu_si512(from + HK_Q6_K_LOW + 64 * (v & 1));
  const __m512i of_first = v < 2 ? _mm512_slli_epi16(high, 4) : _mm512_slli_epi16(high, 2);
  const __m512i of_second = v < 2 ? high : _mm512_srli_epi16(high, 2);
  *first = _mm512_or_si512(*first, _mm512_and_si512(of_first, fifth_and_sixth));
  *second = _mm512_or_si512(*second, _mm512_and_si512(of_second, fifth_and_sixth));
}

/* Scales of a block: hk_scale_floats. */
static inline __attribute__((always_inline)) void find_scales(const enum hk_type type, const uint8_t *packed,
                                                              int64_t blocks, int64_t block, __m512 *first,
                                                              __m512 *second) {
  if (!hk_is_super(type)) {
    *first = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)hk_scales(type, packed, blocks, block)));
    return;
  }
  const int8_t *integers = hk_block_scales(type, packed, blocks, block);
  const uint16_t *supers = hk_super_scales(type, packed, blocks, block);
  *first = hk_exact_super_scale(integers, supers);
  *second = hk_exact_super_scale(integers + HK_STRIP, type == HK_Q4_K ? supers + HK_STRIP : supers);
}

static inline __attribute__((always_inline)) void expand(const enum hk_type type, const uint8_t *packed, int64_t blocks,
                                                         int64_t begin, int count, uint8_t *to, float *scales) {
  for (int block = 0; block < count; block++, to += BLOCK_BYTES, scales += hk_scale_floats(type)) {
    __m512 first, second;
    find_scales(type, packed, blocks, begin + block, &first, &second);
    _mm512_store_ps(scales, first);
    if (hk_is_super(type)) _mm512_store_ps(scales + HK_STRIP, second);
    if (!is_expanded(type)) continue;
    const uint8_t *from = packed + (begin + block) * hk_integer_bytes(type);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      __m512i low, high;
      unpack(type, from, v, &low, &high);
      _mm512_store_si512(to + 64 * v, low);
      _mm512_store_si512(to + 64 * (v + 4), high);
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

/* Of a row of x: its two sums by factors. */
static inline __attribute__((always_inline)) __m512i sums_by(const uint8_t *sums, int32_t factors) {
  return _mm512_madd_epi16(four_bytes(sums), _mm512_set1_epi32(factors));
}

/* What a sum of a half of a block, or of a block, begins with: weights are counted from their least integer on. */
static inline __attribute__((always_inline)) __m512i begin_of(const enum hk_type type, const int half,
                                                              const struct hk_x_block *x, int row) {
  if (type == HK_Q4_K) return _mm512_setzero_si512();
  if (type == HK_Q6_K) return sums_by(x->sums + 4 * row, hk_begin_factors(half));
  const __m512i begin = four_bytes(x->begins + 4 * row);
  return type == HK_Q8_0 ? _mm512_slli_epi32(begin, 4) : begin;
}

/* What is subtracted for each unit of a minimum. */
static inline __attribute__((always_inline)) __m512 scaled_sum(const uint8_t *sums, __m512 x_scale) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(sums_by(sums, 0x00010001)), x_scale);
}

/* Sums of a half of a block, or of the block where it has no halves. */
static inline __attribute__((always_inline)) void dots(const enum hk_type type, const int half, const int rows,
                                                       const int strips, const struct hk_x_block *x,
                                                       const uint8_t *const *w, __m512i (*sum)[STRIPS]) {
  const int count = 8 / hk_halves(type);
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) {
    const __m512i begin = begin_of(type, half, x, row);
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) sum[row][strip] = begin;
  }
#pragma GCC unroll 8
  for (int four = half * count; four < (half + 1) * count; four++) {
    __m512i weights[STRIPS];
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) weights[strip] = _mm512_loadu_si512(w[strip] + 64 * four);
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
      const __m512i own = four_bytes(x->bytes + row * HK_BLOCK + 4 * four);
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++)
        sum[row][strip] = _mm512_dpbusd_epi32(sum[row][strip], weights[strip], own);
    }
  }
}

static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const int rows, const int strips,
                                                           const struct part *p) {
  const uint8_t *x = p->x, *w[STRIPS] = {p->w[0], p->w[1], p->w[2]};
  const float *scales[STRIPS] = {p->scales[0], p->scales[1], p->scales[2]};
  __m512 total[ROWS][STRIPS];
#pragma GCC unroll 12
  for (int at = 0; at < rows * STRIPS; at++)
    total[at / STRIPS][at % STRIPS] = p->first ? _mm512_setzero_ps() : _mm512_load_ps(p->totals + at * HK_STRIP);
  for (int block = 0; block < p->count; block++, x += p->x_step) {
    const struct hk_x_block own = hk_x_block_of(x, p->row, p->tile_rows);
    prefetch_next(strips, block, p);
#pragma GCC unroll 2
    for (int half = 0; half < hk_halves(type); half++) {
      __m512i sum[ROWS][STRIPS];
      dots(type, half, rows, strips, &own, w, sum);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        const __m512 x_scale = one_float(own.scales + 4 * row);
#pragma GCC unroll 3
        for (int strip = 0; strip < strips; strip++) {
          const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales[strip] + half * HK_STRIP), x_scale);
          total[row][strip] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[row][strip]), scale, total[row][strip]);
        }
      }
    }
    if (type == HK_Q4_K)
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        const __m512 shift = scaled_sum(own.sums + 4 * row, one_float(own.scales + 4 * row));
#pragma GCC unroll 3
        for (int strip = 0; strip < strips; strip++)
          total[row][strip] = _mm512_fnmadd_ps(_mm512_load_ps(scales[strip] + HK_STRIP), shift, total[row][strip]);
      }
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) w[strip] += BLOCK_BYTES, scales[strip] += hk_scale_floats(type);
  }
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

/* A block of a strip by the rows of a tile that has few of them. */
static inline __attribute__((always_inline)) void add_block(const enum hk_type type, const int rows,
                                                            const uint8_t *packed, int64_t blocks, int64_t block,
                                                            const struct hk_x_block *x, __m512 *total) {
  const uint8_t *from = packed + block * hk_integer_bytes(type);
  const int is_halved = hk_halves(type) == 2;
  __m512i low[FEW_ROWS], high[FEW_ROWS];
  __m512 first, second;
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) {
    low[row] = begin_of(type, 0, x, row);
    high[row] = is_halved ? begin_of(type, 1, x, row) : _mm512_setzero_si512();
  }
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    __m512i weights, others;
    unpack(type, from, v, &weights, &others);
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
      const uint8_t *bytes = x->bytes + row * HK_BLOCK + 4 * v;
      low[row] = _mm512_dpbusd_epi32(low[row], weights, four_bytes(bytes));
      high[row] = _mm512_dpbusd_epi32(high[row], others, four_bytes(bytes + 16));
    }
  }
  find_scales(type, packed, blocks, block, &first, &second);
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) {
    const __m512 x_scale = one_float(x->scales + 4 * row), scale = _mm512_mul_ps(first, x_scale);
    const __m512i sum = is_halved ? low[row] : _mm512_add_epi32(low[row], high[row]);
    total[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, total[row]);
    if (is_halved)
      total[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[row]), _mm512_mul_ps(second, x_scale), total[row]);
    if (type == HK_Q4_K) total[row] = _mm512_fnmadd_ps(second, scaled_sum(x->sums + 4 * row, x_scale), total[row]);
  }
}

/*
 * Strips that follow one another, at the rate of the memory: nothing is expanded, and what is ahead is asked for. One row
 * takes two strips at once: their memory comes in turns, and more of it a second than of one strip after the other.
 */
static inline __attribute__((always_inline)) void few_rows(const enum hk_type type, const int rows, const int strips,
                                                           const struct hk_product *p, int64_t strip) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  const uint8_t *packed = p->weights + strip * strip_bytes, *x = (const uint8_t *)p->x;
  __m512 total[TOGETHER][FEW_ROWS];
#pragma GCC unroll 2
  for (int side = 0; side < strips; side++)
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) total[side][row] = _mm512_setzero_ps();
  for (int64_t block = 0; block < p->blocks; block++, x += rows * X_BLOCK_BYTES) {
    const struct hk_x_block own = hk_x_block_of(x, 0, rows);
#pragma GCC unroll 2
    for (int side = 0; side < strips; side++) {
      hk_prefetch(type, packed + side * strip_bytes, p->blocks, block, strips);
      add_block(type, rows, packed + side * strip_bytes, p->blocks, block, &own, total[side]);
    }
  }
#pragma GCC unroll 2
  for (int side = 0; side < strips; side++)
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++)
      if (row < p->m)
        _mm512_mask_storeu_ps(hk_row(p, row) + (strip + side) * HK_STRIP, hk_columns(p->n, strip + side),
                              total[side][row]);
}

static inline __attribute__((always_inline)) void by_type(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  if (p->m > FEW_ROWS) {
    product(type, p, begin, end);
    return;
  }
  int64_t strip = begin;
  if (p->m == 1)
    for (; strip + TOGETHER <= end; strip += TOGETHER) few_rows(type, 1, TOGETHER, p, strip);
  for (; strip < end; strip++)
    if (p->m == 1) few_rows(type, 1, 1, p, strip);
    else if (p->m == 2) few_rows(type, 2, 1, p, strip);
    else few_rows(type, 4, 1, p, strip);
}

void hk_product_avx512_vnni(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_0) by_type(HK_Q4_0, p, begin, end);
  else if (p->type == HK_Q8_0) by_type(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) by_type(HK_Q4_K, p, begin, end);
  else by_type(HK_Q6_K, p, begin, end);
}

/*
 * Products of weights of 4 and 8 bits with AVX2, which multiplies bytes in pairs into 16 bits. Sums of a block are exact,
 * and its scales are applied as product-avx512-vnni.c does it: both give the same bits. What a block of x looks like is
 * written there.
 */
#include "prefetch.h"
#include <string.h>

/* Rows of x that are multiplied together: 8 sums, two vectors of weights and one of x fit into the registers. */
#define ROWS 4
/* Blocks at once: 4 KiB of weights, and of all rows of a pass what the second cache holds. */
#define CHUNK 8
#define BLOCK_BYTES 512

/* Where some rows of x meet a chunk of a strip. */
struct part {
  /* A block of a tile of x, and the first of the rows in it. */
  const uint8_t *x;
  int row, tile_rows;
  /* Blocks of [four elements 8][row 16][4] bytes: of Q4_0 from 0 on, of Q8_0 with their sign; and their scales. */
  const uint8_t *w;
  const float *scales;
  int count;
  /* [row][16] */
  float *totals;
};

static inline __m256i load(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }

static inline __attribute__((always_inline)) void expand(const enum hk_type type, const uint8_t *strip, int64_t blocks,
                                                         int64_t begin, int count, uint8_t *to, float *scales) {
  const __m256i low_bits = _mm256_set1_epi8(15), sign = _mm256_set1_epi8((char)0x80);
  for (int block = 0; block < count; block++, to += BLOCK_BYTES, scales += HK_STRIP) {
    const uint8_t *from = strip + (begin + block) * hk_integer_bytes(type);
    hk_prefetch(type, strip, blocks, begin + block, 1);
#pragma GCC unroll 8
    for (int at = 0; at < 256; at += 32) {
      const __m256i bytes = load(from + at);
      const __m256i high = type == HK_Q4_0 ? _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_bits)
                                           : _mm256_xor_si256(load(from + 256 + at), sign);
      const __m256i low = type == HK_Q4_0 ? _mm256_and_si256(bytes, low_bits) : _mm256_xor_si256(bytes, sign);
      _mm256_store_si256((__m256i *)(to + at), low);
      _mm256_store_si256((__m256i *)(to + 256 + at), high);
    }
    const uint16_t *halves = hk_scales(type, strip, blocks, begin + block);
    _mm256_store_ps(scales, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves)));
    _mm256_store_ps(scales + 8, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 8))));
  }
}

static inline __attribute__((always_inline)) __m256i four_bytes(const uint8_t *x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}

static inline __attribute__((always_inline)) __m256 one_float(const uint8_t *x) {
  float value;
  memcpy(&value, x, 4);
  return _mm256_set1_ps(value);
}

/*
 * Sums of a block. Eight products of 4 bits by 8, twice, stay below 2^15. Of 8 bits by 8 two do: the sign of the weight
 * goes to x, since one of the factors has none.
 */
static inline __attribute__((always_inline)) void block_sums(const enum hk_type type, const int rows, const uint8_t *w,
                                                             const uint8_t *x, __m256i (*sum)[2]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) sum[row][0] = sum[row][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int four = 0; four < 8; four++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256i weights = load(w + 64 * four + 32 * half), sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        const __m256i own = four_bytes(x + row * HK_BLOCK + 4 * four);
        if (type == HK_Q4_0) sum[row][half] = _mm256_add_epi16(sum[row][half], _mm256_maddubs_epi16(weights, own));
        else {
          const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(own, weights));
          sum[row][half] = _mm256_add_epi32(sum[row][half], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
  if (type != HK_Q4_0) return;
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) sum[row][half] = _mm256_madd_epi16(sum[row][half], ones);
}

static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const int rows,
                                                           const struct part *p) {
  const int64_t x_step = p->tile_rows * HK_BLOCK_AS_BYTES;
  const uint8_t *x = p->x;
  for (int block = 0; block < p->count; block++, x += x_step) {
    const uint8_t *scale_of = x + p->tile_rows * HK_BLOCK + 4 * p->row, *begin_of = scale_of + 4 * p->tile_rows;
    __m256i sum[ROWS][2];
    block_sums(type, rows, p->w + block * BLOCK_BYTES, x + p->row * HK_BLOCK, sum);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256 w_scale = _mm256_load_ps(p->scales + block * HK_STRIP + 8 * half);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        float *at = p->totals + row * HK_STRIP + 8 * half;
        __m256i whole = sum[row][half];
        /* Integers of 4 bits are counted from -8. */
        if (type == HK_Q4_0) whole = _mm256_add_epi32(whole, four_bytes(begin_of + 4 * row));
        const __m256 scale = _mm256_mul_ps(w_scale, one_float(scale_of + 4 * row));
        _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, _mm256_load_ps(at)));
      }
    }
  }
}

/* Some rows by all chunks of a strip. */
static inline __attribute__((always_inline)) void take_strip(const enum hk_type type, const struct hk_product *p,
                                                             int64_t strip, int64_t from, int64_t to, float *totals) {
  uint8_t w[CHUNK * BLOCK_BYTES] __attribute__((aligned(64)));
  float scales[CHUNK * HK_STRIP] __attribute__((aligned(64)));
  const int tile_rows = hk_tile_rows(p->m), rows = tile_rows < ROWS ? tile_rows : ROWS;
  const int64_t tile_bytes = (int64_t)tile_rows * p->blocks * HK_BLOCK * 2;
  const uint8_t *packed = p->weights + strip * hk_strip_bytes(type, p->blocks);
  memset(totals, 0, (size_t)hk_ceil_div(to - from, rows) * (size_t)rows * HK_STRIP * sizeof(float));
  struct part part = {.tile_rows = tile_rows, .w = w, .scales = scales};
  for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK) {
    part.count = (int)hk_min(CHUNK, p->blocks - chunk);
    expand(type, packed, p->blocks, chunk, part.count, w, scales);
    for (int64_t row = from; row < to; row += rows) {
      part.x = (const uint8_t *)p->x + row / tile_rows * tile_bytes + chunk * tile_rows * HK_BLOCK_AS_BYTES;
      part.row = (int)(row % tile_rows);
      part.totals = totals + (row - from) * HK_STRIP;
      if (rows == 4) multiply(type, 4, &part);
      else if (rows == 2) multiply(type, 2, &part);
      else multiply(type, 1, &part);
    }
  }
  const int64_t columns = hk_min(HK_STRIP, p->n - strip * HK_STRIP);
  for (int64_t row = from; row < to; row++)
    memcpy(hk_row(p, row) + strip * HK_STRIP, totals + (row - from) * HK_STRIP, (size_t)columns * sizeof(float));
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  float totals[HK_PASS_MAX * HK_STRIP] __attribute__((aligned(64)));
  const int64_t pass = hk_pass_rows(p->m);
  for (int64_t strip = begin; strip < end; strip++)
    for (int64_t from = 0; from < p->m; from += pass)
      take_strip(type, p, strip, from, hk_min(from + pass, p->m), totals);
}

void hk_product_avx2_bytes(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else product(HK_Q8_0, p, begin, end);
}

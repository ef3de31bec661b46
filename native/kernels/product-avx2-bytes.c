/*
 * Products of quantized weights in fours with AVX2, which multiplies bytes in pairs into 16 bits: see bytes.h. Sums are
 * exact, and scales are applied as product-avx512-vnni.c does it: both give the same bits.
 */
#include "bytes.h"
#include "prefetch.h"
#include <string.h>

/* Rows of x that are multiplied together: 8 sums, two vectors of weights and one of x fit into the registers. */
#define ROWS 4
/* Blocks at once: 4 KiB of weights, and of all rows of a pass what the second cache holds. */
#define CHUNK 8
#define BLOCK_BYTES HK_BYTES_OF_BLOCK

/* Where some rows of x meet a chunk of a strip. */
struct part {
  /* A block of a tile of x, and the first of the rows in it. */
  const uint8_t *x;
  int row, tile_rows;
  /* Blocks of bytes: Q8_0 with their sign, others from 0 on; and their scales. */
  const uint8_t *w;
  const float *scales;
  int count;
  /* [row][16] */
  float *totals;
};

static inline __m256i load(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }

/* 32 bytes each of fours v and v + 4 of a block, `at` bytes into four 0, 1, 2 or 3. */
static inline __attribute__((always_inline)) void unpack(const enum hk_type type, const uint8_t *from, const int at,
                                                         uint8_t *to) {
  const __m256i low_bits = _mm256_set1_epi8(15), sign = _mm256_set1_epi8((char)0x80);
  const __m256i fifth_and_sixth = _mm256_set1_epi8(0x30), bytes = load(from + at);
  __m256i low = _mm256_and_si256(bytes, low_bits), high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_bits);
  if (type == HK_Q8_0) {
    low = _mm256_xor_si256(bytes, sign);
    high = _mm256_xor_si256(load(from + 256 + at), sign);
  }
  if (type == HK_Q6_K) {
    const __m256i bits = load(from + HK_Q6_K_LOW + at % 128);
    const __m256i of_low = at < 128 ? _mm256_slli_epi16(bits, 4) : _mm256_slli_epi16(bits, 2);
    const __m256i of_high = at < 128 ? bits : _mm256_srli_epi16(bits, 2);
    low = _mm256_or_si256(low, _mm256_and_si256(of_low, fifth_and_sixth));
    high = _mm256_or_si256(high, _mm256_and_si256(of_high, fifth_and_sixth));
  }
  _mm256_store_si256((__m256i *)(to + at), low);
  _mm256_store_si256((__m256i *)(to + 256 + at), high);
}

/* Scales of 8 rows from `row` on; `second`: those of the second half, or minima. */
static inline __attribute__((always_inline)) __m256 scales_of(const enum hk_type type, const uint8_t *strip,
                                                              int64_t blocks, int64_t block, int row, int second) {
  const uint16_t *halves = hk_scales(type, strip, blocks, block) + row;
  if (!hk_is_super(type)) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
  const int8_t *integers = hk_block_scales(type, strip, blocks, block) + second * HK_STRIP + row;
  halves = hk_super_scales(type, strip, blocks, block) + (type == HK_Q4_K ? second * HK_STRIP : 0) + row;
  const __m256i scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)integers));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(scale), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves)));
}

static inline __attribute__((always_inline)) void expand(const enum hk_type type, const uint8_t *strip, int64_t blocks,
                                                         int64_t begin, int count, uint8_t *to, float *scales) {
  for (int64_t block = begin; block < begin + count; block++, to += BLOCK_BYTES) {
    const uint8_t *from = strip + block * hk_integer_bytes(type);
    hk_prefetch(type, strip, blocks, block, 1);
#pragma GCC unroll 8
    for (int at = 0; at < 256; at += 32) unpack(type, from, at, to);
    for (int second = 0; second < hk_scale_floats(type) / HK_STRIP; second++)
      for (int row = 0; row < HK_STRIP; row += 8, scales += 8)
        _mm256_store_ps(scales, scales_of(type, strip, blocks, block, row, second));
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
 * Sums of a half of a block, or of the block where it has no halves. Of 4 bits by 8 eight products, twice, stay below
 * 2^15; of 6 bits by 8 two do, twice; of 8 bits by 8 two: the sign of the weight goes to x, since one factor has
 * none.
 */
static inline __attribute__((always_inline)) void dots(const enum hk_type type, const int part, const int rows,
                                                       const uint8_t *w, const uint8_t *x, __m256i (*sum)[2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  const int fours = 8 / hk_halves(type), together = type == HK_Q8_0 ? 1 : type == HK_Q6_K ? 2 : 8;
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++) sum[row][0] = sum[row][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int first = part * fours; first < (part + 1) * fours; first += together) {
    __m256i pairs[ROWS][2];
#pragma GCC unroll 8
    for (int four = first; four < first + together; four++)
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const __m256i weights = load(w + 64 * four + 32 * half), sizes = _mm256_abs_epi8(weights);
#pragma GCC unroll 4
        for (int row = 0; row < rows; row++) {
          const __m256i own = four_bytes(x + row * HK_BLOCK + 4 * four);
          const __m256i product = type == HK_Q8_0 ? _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(own, weights))
                                                  : _mm256_maddubs_epi16(weights, own);
          pairs[row][half] = four == first ? product : _mm256_add_epi16(pairs[row][half], product);
        }
      }
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++)
        sum[row][half] = _mm256_add_epi32(sum[row][half], _mm256_madd_epi16(pairs[row][half], ones));
  }
}

static inline __attribute__((always_inline)) __m256i sums_by(const uint8_t *sums, int32_t factors) {
  return _mm256_madd_epi16(four_bytes(sums), _mm256_set1_epi32(factors));
}

/* Sums of 8 columns become part of the total of a row. */
static inline __attribute__((always_inline)) void add_sums(const enum hk_type type, const int part, __m256i sum,
                                                           const struct hk_x_block *x, int row, const float *w_scales,
                                                           float *total) {
  if (type == HK_Q4_0) sum = _mm256_add_epi32(sum, four_bytes(x->begins + 4 * row));
  if (type == HK_Q6_K) sum = _mm256_add_epi32(sum, sums_by(x->sums + 4 * row, hk_begin_factors(part)));
  const __m256 x_scale = one_float(x->scales + 4 * row);
  const __m256 scale = _mm256_mul_ps(_mm256_load_ps(w_scales + part * HK_STRIP), x_scale);
  __m256 after = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_load_ps(total));
  if (type == HK_Q4_K) {
    const __m256 shift = _mm256_mul_ps(_mm256_cvtepi32_ps(sums_by(x->sums + 4 * row, 0x00010001)), x_scale);
    after = _mm256_fnmadd_ps(_mm256_load_ps(w_scales + HK_STRIP), shift, after);
  }
  _mm256_store_ps(total, after);
}

static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const int rows,
                                                           const struct part *p) {
  const int64_t x_step = p->tile_rows * HK_BLOCK_AS_BYTES;
  const uint8_t *x = p->x;
  for (int block = 0; block < p->count; block++, x += x_step) {
    const struct hk_x_block own = hk_x_block_of(x, p->row, p->tile_rows);
    const float *w_scales = p->scales + block * hk_scale_floats(type);
#pragma GCC unroll 2
    for (int part = 0; part < hk_halves(type); part++) {
      __m256i sum[ROWS][2];
      dots(type, part, rows, p->w + block * BLOCK_BYTES, own.bytes, sum);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
          add_sums(type, part, sum[row][half], &own, row, w_scales + 8 * half,
                   p->totals + row * HK_STRIP + 8 * half);
    }
  }
}

/* Rows [from, to), which begin a tile, by one strip. */
static inline __attribute__((always_inline)) void take_strip(const enum hk_type type, const struct hk_product *p,
                                                             int64_t strip, int64_t from, int64_t to, float *totals) {
  uint8_t w[CHUNK * BLOCK_BYTES] __attribute__((aligned(64)));
  float scales[CHUNK * 2 * HK_STRIP] __attribute__((aligned(64)));
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
  else if (p->type == HK_Q8_0) product(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

/*
 * Products of quantized weights in fours with AVX2, which multiplies bytes in pairs into 16 bits: see bytes.h. Sums are
 * exact, and scales are applied as product-avx512-vnni.c does it: both give the same bits.
 */
#include "bytes.h"
#include "prefetch.h"
#include <string.h>

/* Rows of x that are multiplied together: 8 sums, weights, x and products fit into the registers. */
#define ROWS 4
/* Blocks at once: 4 KiB of weights. */
#define CHUNK 8
/* Strips that a tile of x meets one after the other, so that it comes from the second cache once for all of them. */
#define PANEL 4
#define BLOCK_BYTES HK_BYTES_OF_BLOCK

/* Compilers would add the products of a block in another order, which needs more registers than there are. */
#define KEEP_ORDER(sum) __asm__("" : "+x"(sum))

/* Where weights of some rows come from: packed; packed, and their bytes are kept for other rows; or such bytes. */
enum source { PACKED, PACKED_AND_KEPT, BYTES };

/* Where some rows of x meet a chunk of a strip. */
struct part {
  /* A block of a tile of x, and the first of the rows in it. */
  const uint8_t *x;
  int row, tile_rows;
  /* Of it `count` blocks from `begin` on; and strips to the one that is asked for meanwhile. */
  const uint8_t *strip;
  int64_t blocks, begin;
  int count, step;
  /* Of the chunk, where they were unpacked: bytes, of Q8_0 with their sign, others from 0 on; and scales. */
  uint8_t *bytes;
  float *scales;
  /* [row][16] */
  float *totals;
};

static inline __m256i load(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }

/* Four `four` of a block, of rows from 8 times `half` on: bytes of Q8_0 with their sign, others from 0 on. */
static inline __attribute__((always_inline)) __m256i unpack(const enum hk_type type, const uint8_t *block,
                                                            const int four, const int half) {
  if (type == HK_Q8_0) return _mm256_xor_si256(load(block + 64 * four + 32 * half), _mm256_set1_epi8((char)0x80));
  const __m256i low_bits = _mm256_set1_epi8(15), pairs = load(block + 64 * (four % 4) + 32 * half);
  const __m256i low = _mm256_and_si256(four < 4 ? pairs : _mm256_srli_epi16(pairs, 4), low_bits);
  if (type != HK_Q6_K) return low;
  const __m256i high = load(block + HK_Q6_K_LOW + 64 * (four % 2) + 32 * half);
  const __m256i turned = four < 2   ? _mm256_slli_epi16(high, 4)
                         : four < 4 ? _mm256_slli_epi16(high, 2)
                         : four < 6 ? high
                                    : _mm256_srli_epi16(high, 2);
  return _mm256_or_si256(low, _mm256_and_si256(turned, _mm256_set1_epi8(0x30)));
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

static inline __attribute__((always_inline)) void find_scales(const enum hk_type type, const uint8_t *strip,
                                                              int64_t blocks, int64_t block, float *scales) {
#pragma GCC unroll 2
  for (int second = 0; second < hk_scale_floats(type) / HK_STRIP; second++)
#pragma GCC unroll 2
    for (int row = 0; row < HK_STRIP; row += 8)
      _mm256_store_ps(scales + second * HK_STRIP + row, scales_of(type, strip, blocks, block, row, second));
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

static inline __attribute__((always_inline)) __m256i products(const enum hk_type type, __m256i weights, __m256i x) {
  return type == HK_Q8_0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
                         : _mm256_maddubs_epi16(weights, x);
}

/*
 * Sums of a half of a block, or of the block where it has no halves. Of 4 bits by 8 eight products, twice, stay below
 * 2^15, and are added as they are; of 6 bits by 8 two do, twice; of 8 bits by 8 two: the sign of the weight goes to x,
 * since one factor has none.
 */
static inline __attribute__((always_inline)) void dots(const enum hk_type type, const enum source source,
                                                       const int part, const int rows, const uint8_t *packed,
                                                       uint8_t *bytes, const uint8_t *x, __m256i (*sum)[2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  const int fours = 8 / hk_halves(type), together = type == HK_Q6_K ? 2 : 1, first = part * fours;
  const int is_short = type == HK_Q4_0 || type == HK_Q4_K;
#pragma GCC unroll 8
  for (int four = first; four < first + fours; four += together) {
    __m256i weights[2][2];
#pragma GCC unroll 2
    for (int next = 0; next < together; next++)
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        __m256i *at = (__m256i *)(bytes + 64 * (four + next) + 32 * half);
        weights[next][half] = source == BYTES ? _mm256_load_si256(at) : unpack(type, packed, four + next, half);
        if (source == PACKED_AND_KEPT) _mm256_store_si256(at, weights[next][half]);
      }
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        const uint8_t *own = x + row * HK_BLOCK + 4 * four;
        __m256i more = products(type, weights[0][half], four_bytes(own));
        if (together == 2) more = _mm256_add_epi16(more, products(type, weights[1][half], four_bytes(own + 4)));
        if (!is_short) more = _mm256_madd_epi16(more, ones);
        if (four == first) sum[row][half] = more;
        else if (is_short) sum[row][half] = _mm256_add_epi16(sum[row][half], more);
        else sum[row][half] = _mm256_add_epi32(sum[row][half], more);
        KEEP_ORDER(sum[row][half]);
      }
  }
  if (!is_short) return;
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) sum[row][half] = _mm256_madd_epi16(sum[row][half], ones);
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

static inline __attribute__((always_inline)) void multiply(const enum hk_type type, const enum source source,
                                                           const int rows, const struct part *p) {
  const int64_t x_step = p->tile_rows * HK_BLOCK_AS_BYTES;
  const uint8_t *x = p->x;
  for (int block = 0; block < p->count; block++, x += x_step) {
    const struct hk_x_block own = hk_x_block_of(x, p->row, p->tile_rows);
    const uint8_t *packed = p->strip + (p->begin + block) * hk_integer_bytes(type);
    float *w_scales = p->scales + block * hk_scale_floats(type);
    if (source != BYTES) {
      hk_prefetch(type, p->strip, p->blocks, p->begin + block, p->step);
      find_scales(type, p->strip, p->blocks, p->begin + block, w_scales);
    }
#pragma GCC unroll 2
    for (int part = 0; part < hk_halves(type); part++) {
      __m256i sum[ROWS][2];
      dots(type, source, part, rows, packed, p->bytes + block * BLOCK_BYTES, own.bytes, sum);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
          add_sums(type, part, sum[row][half], &own, row, w_scales + 8 * half,
                   p->totals + row * HK_STRIP + 8 * half);
    }
  }
}

/* Rows of a tile by a chunk of a strip, which the first of them unpack, and keep where others follow. */
static inline __attribute__((always_inline)) void take_tile(const enum hk_type type, int rows, int is_first,
                                                            int is_last, struct part *p) {
  p->row = 0;
  if (p->tile_rows == 1) multiply(type, PACKED, 1, p);
  else if (p->tile_rows == 2) multiply(type, PACKED, 2, p);
  else
    for (; p->row < rows; p->row += ROWS, p->totals += ROWS * HK_STRIP)
      if (!(is_first && p->row == 0)) multiply(type, BYTES, ROWS, p);
      else if (is_last && rows <= ROWS) multiply(type, PACKED, ROWS, p);
      else multiply(type, PACKED_AND_KEPT, ROWS, p);
}

/* Rows [from, to), which begin a tile, by `strips` strips. */
static inline __attribute__((always_inline)) void take_panel(const enum hk_type type, const struct hk_product *p,
                                                             int64_t strip, int strips, int64_t from, int64_t to,
                                                             float (*totals)[HK_PASS_MAX * HK_STRIP]) {
  uint8_t bytes[PANEL][CHUNK * BLOCK_BYTES] __attribute__((aligned(64)));
  float scales[PANEL][CHUNK * 2 * HK_STRIP] __attribute__((aligned(64)));
  const int tile_rows = hk_tile_rows(p->m);
  const int64_t tile_bytes = (int64_t)tile_rows * p->blocks * HK_BLOCK * 2;
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  const int64_t tiles = hk_ceil_div(to - from, tile_rows);
  struct part part = {.tile_rows = tile_rows, .blocks = p->blocks, .step = strips};
  for (int side = 0; side < strips; side++)
    memset(totals[side], 0, (size_t)(tiles * tile_rows) * HK_STRIP * sizeof(float));
  for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK) {
    part.begin = chunk;
    part.count = (int)hk_min(CHUNK, p->blocks - chunk);
    for (int64_t row = from; row < to; row += tile_rows) {
      part.x = (const uint8_t *)p->x + row / tile_rows * tile_bytes + chunk * tile_rows * HK_BLOCK_AS_BYTES;
      for (int side = 0; side < strips; side++) {
        part.strip = p->weights + (strip + side) * strip_bytes;
        part.bytes = bytes[side];
        part.scales = scales[side];
        part.totals = totals[side] + (row - from) * HK_STRIP;
        take_tile(type, (int)hk_min(tile_rows, to - row), row == from, row + tile_rows >= to, &part);
      }
    }
  }
  for (int side = 0; side < strips; side++) {
    const int64_t column = (strip + side) * HK_STRIP, columns = hk_min(HK_STRIP, p->n - column);
    for (int64_t row = from; row < to; row++)
      memcpy(hk_row(p, row) + column, totals[side] + (row - from) * HK_STRIP, (size_t)columns * sizeof(float));
  }
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  float totals[PANEL][HK_PASS_MAX * HK_STRIP] __attribute__((aligned(64)));
  const int64_t pass = hk_pass_rows(p->m), panel = p->m > ROWS ? PANEL : 1;
  for (int64_t strip = begin; strip < end; strip += panel)
    for (int64_t from = 0; from < p->m; from += pass)
      take_panel(type, p, strip, (int)hk_min(panel, end - strip), from, hk_min(from + pass, p->m), totals);
}

void hk_product_avx2_bytes(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else if (p->type == HK_Q8_0) product(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

/*
 * Products of quantized weights in rows by one row of x, at the rate of the memory. Integers are multiplied as integers:
 * a block of x becomes whole numbers of 16 bits with a scale, which is nearer to x than BF16 is, and each is split into
 * two signed bytes, since VPDPBUSD multiplies bytes. Its sums differ from those of the tile unit by their rounding, so
 * this is for callers to whom one row may differ from the same row in a batch.
 *
 * A block of x: 32 upper bytes, 32 lower bytes, each in the order of hk_nibbles: elements 0, 16, 1, 17 to 7, 23, then
 * 8, 24 to 15, 31. Behind all blocks: of each, its scale and its sums.
 */
#include "expand-rows.h"
#include "pack.h"
#include <string.h>

/* 16 bytes each of the first and the last elements, in turns. */
static inline void store_bytes(uint8_t *to, __m512i first, __m512i second) {
  const __m128i a = _mm512_cvtepi32_epi8(first), b = _mm512_cvtepi32_epi8(second);
  _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi8(a, b));
  _mm_storeu_si128((__m128i *)(to + 16), _mm_unpackhi_epi8(a, b));
}

static struct hk_summary pack_block(const float *x, uint8_t *bytes) {
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
  const int numbers = !(_mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q));
  if (largest < HK_SMALLEST) largest = 0;
  const __m512 inverse = _mm512_set1_ps(largest > 0 ? HK_INTEGER_MAX / largest : 0);
  const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
  const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  const __m512i half = _mm512_set1_epi32(128);
  store_bytes(bytes, _mm512_srai_epi32(_mm512_add_epi32(first, half), 8),
              _mm512_srai_epi32(_mm512_add_epi32(second, half), 8));
  store_bytes(bytes + 32, first, second);
  /* What is no number in x is none in any result. */
  const float scale = numbers ? largest / HK_INTEGER_MAX : __builtin_nanf("");
  const int sums[2] = {_mm512_reduce_add_epi32(first), _mm512_reduce_add_epi32(second)};
  return (struct hk_summary){scale, scale * (float)(sums[0] + sums[1]), scale * (float)sums[0], scale * (float)sums[1]};
}

void hk_pack_one_row(int64_t k, const float *x, uint16_t *packed, int64_t begin, int64_t end) {
  struct hk_summary *summaries = (struct hk_summary *)(packed + hk_blocks(k) * HK_BLOCK);
  for (int64_t block = begin; block < end; block++)
    summaries[block] = pack_block(x + block * HK_BLOCK, (uint8_t *)(packed + block * HK_BLOCK));
}

/* Weights from 0 on by a block of x, as floats. */
static inline __attribute__((always_inline)) __m512 multiply(__m512i weights, __m512i upper, __m512i lower) {
  const __m512i sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, upper), 8);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sum, weights, lower));
}

static inline __attribute__((always_inline)) __m512i four_bytes(const uint8_t *x) {
  int32_t bytes;
  memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}

/* Sums of 16 rows of 4 bits. */
static inline __attribute__((always_inline)) __m512 nibbles(const uint8_t *from, const uint8_t *x) {
  const __m512i low_bits = _mm512_set1_epi8(15);
  __m512i upper = _mm512_setzero_si512(), upper_odd = upper, lower = upper, lower_odd = upper;
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++, x += 4) {
    const __m512i bytes = _mm512_loadu_si512(from + 64 * v);
    const __m512i even = _mm512_and_si512(bytes, low_bits);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits);
    upper = _mm512_dpbusd_epi32(upper, even, four_bytes(x));
    upper_odd = _mm512_dpbusd_epi32(upper_odd, odd, four_bytes(x + 16));
    lower = _mm512_dpbusd_epi32(lower, even, four_bytes(x + 32));
    lower_odd = _mm512_dpbusd_epi32(lower_odd, odd, four_bytes(x + 48));
  }
  const __m512i sum = _mm512_slli_epi32(_mm512_add_epi32(upper, upper_odd), 8);
  return _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_add_epi32(lower, lower_odd)));
}

/* 32 bytes of x in the order of elements, twice. */
static inline __attribute__((always_inline)) __m512i in_order(const uint8_t *x) {
  const __m256i apart = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i halves = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)x), apart);
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 1, 3, 0, 2, 1, 3), _mm512_castsi256_si512(halves));
}

/* Of each vector: the sums of row 2v in the lower half, those of 2v + 1 in the upper. */
static inline __attribute__((always_inline)) void block_q8_0(const uint8_t *from, const uint8_t *x, __m512 scale,
                                                             __m512 *total) {
  const __m512i upper = in_order(x), lower = in_order(x + 32);
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  __m512i rows = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) {
    const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(from + 64 * v), sign);
    total[v] = _mm512_fmadd_ps(multiply(weights, upper, lower), _mm512_permutexvar_ps(rows, scale), total[v]);
    rows = _mm512_add_epi32(rows, _mm512_set1_epi32(2));
  }
}

/* The same, where either half of a row has a scale. See super-block.h. */
static inline __attribute__((always_inline)) void block_q6_k(const uint8_t *from, const uint8_t *x, __m512 first,
                                                             __m512 second, __m512 *total) {
  const __m512i upper = in_order(x), lower = in_order(x + 32);
  const __m512i four_bits = _mm512_set1_epi8(15), fifth_and_sixth = _mm512_set1_epi8(0x30);
  __m512i rows = _mm512_setr_epi32(0, 0, 0, 0, 16, 16, 16, 16, 1, 1, 1, 1, 17, 17, 17, 17);
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) {
    const __m512i lows = _mm512_loadu_si512(from + 64 * (v & 3));
    const __m512i highs = _mm512_loadu_si512(from + HK_Q6_K_LOW + 64 * (v & 1));
    const __m512i low = _mm512_and_si512(v < 4 ? lows : _mm512_srli_epi16(lows, 4), four_bits);
    const __m512i moved = v < 2   ? _mm512_slli_epi16(highs, 4)
                          : v < 4 ? _mm512_slli_epi16(highs, 2)
                          : v < 6 ? highs
                                  : _mm512_srli_epi16(highs, 2);
    const __m512i weights = _mm512_or_si512(low, _mm512_and_si512(moved, fifth_and_sixth));
    const __m512 scale = _mm512_permutex2var_ps(first, rows, second);
    total[v] = _mm512_fmadd_ps(multiply(weights, upper, lower), scale, total[v]);
    rows = _mm512_add_epi32(rows, _mm512_set1_epi32(2));
  }
}

/* The row's own sum, in the order of rows; of two rows in each vector. */
static inline __m512 sums_of(const __m512 *total) {
  float sums[HK_STRIP] __attribute__((aligned(64)));
  for (int v = 0; v < 8; v += 2) {
    const __m256 a = _mm256_hadd_ps(_mm512_castps512_ps256(total[v]), _mm512_extractf32x8_ps(total[v], 1));
    const __m256 b = _mm256_hadd_ps(_mm512_castps512_ps256(total[v + 1]), _mm512_extractf32x8_ps(total[v + 1], 1));
    const __m256 both = _mm256_hadd_ps(a, b);
    _mm_store_ps(sums + 2 * v, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
  }
  return _mm512_load_ps(sums);
}

static inline __m512 halves(const uint16_t *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

/* What is multiplied with the integers of a block, and with 16 more scales or minima of a super-block. */
struct scales {
  __m512 first, second;
};

static inline __attribute__((always_inline)) struct scales scales_of(enum hk_type type, const uint8_t *strip,
                                                                     int64_t blocks, int64_t block) {
  if (!hk_is_super(type)) return (struct scales){halves(hk_scales(type, strip, blocks, block)), _mm512_setzero_ps()};
  const int8_t *integers = hk_block_scales(type, strip, blocks, block);
  const uint16_t *supers = hk_super_scales(type, strip, blocks, block);
  return (struct scales){hk_exact_super_scale(integers, supers),
                         hk_exact_super_scale(integers + HK_STRIP, type == HK_Q4_K ? supers + HK_STRIP : supers)};
}

/* One strip. Weights are multiplied as numbers from 0 on; what that is too much is `shift`. */
static inline __attribute__((always_inline)) __m512 strip_sums(const enum hk_type type, const struct hk_product *p,
                                                               const uint8_t *packed) {
  const int64_t bytes = hk_integer_bytes(type);
  const uint8_t *x = (const uint8_t *)p->x;
  const struct hk_summary *summary = (const struct hk_summary *)(p->x + p->blocks * HK_BLOCK);
  __m512 total[8], shift = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int row = 0; row < 8; row++) total[row] = _mm512_setzero_ps();
  for (int64_t block = 0; block < p->blocks; block++, summary++, x += 2 * HK_BLOCK) {
    const uint8_t *from = packed + block * bytes;
    hk_prefetch(type, packed, p->blocks, block, 1);
    const struct scales own = scales_of(type, packed, p->blocks, block);
    const __m512 scale = _mm512_mul_ps(own.first, _mm512_set1_ps(summary->scale));
    if (type == HK_Q4_K) shift = _mm512_fmadd_ps(own.second, _mm512_set1_ps(summary->sum), shift);
    else if (type == HK_Q6_K) {
      shift = _mm512_fmadd_ps(own.first, _mm512_set1_ps(summary->first), shift);
      shift = _mm512_fmadd_ps(own.second, _mm512_set1_ps(summary->second), shift);
    } else shift = _mm512_fmadd_ps(own.first, _mm512_set1_ps(summary->sum), shift);
    if (type == HK_Q8_0) block_q8_0(from, x, scale, total);
    else if (type == HK_Q6_K) {
      const __m512 second = _mm512_mul_ps(own.second, _mm512_set1_ps(summary->scale));
      block_q6_k(from, x, scale, second, total);
    } else total[0] = _mm512_fmadd_ps(nibbles(from, x), scale, total[0]);
  }
  const float least = type == HK_Q4_K ? 1 : type == HK_Q4_0 ? 8 : type == HK_Q6_K ? 32 : 128;
  const __m512 sums = type == HK_Q8_0 || type == HK_Q6_K ? sums_of(total) : total[0];
  return _mm512_fnmadd_ps(_mm512_set1_ps(least), shift, sums);
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  for (int64_t strip = begin; strip < end; strip++)
    _mm512_mask_storeu_ps(hk_row(p, 0) + strip * HK_STRIP, hk_columns(p->n, strip),
                          strip_sums(type, p, p->weights + strip * strip_bytes));
}

void hk_product_one_row(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else if (p->type == HK_Q8_0) product(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

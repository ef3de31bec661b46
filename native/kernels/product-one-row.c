/*
 * Products of quantized weights in rows by one row of x, at the rate of the memory. Integers are multiplied as integers:
 * a block of x becomes whole numbers of 16 bits with a scale, which is nearer to x than BF16 is, and each is split into
 * two signed bytes, since VPDPBUSD multiplies bytes. Its sums differ from those of the tile unit by their rounding, so
 * this is for callers to whom one row may differ from the same row in a batch.
 *
 * A block of x: 32 upper bytes, 32 lower bytes. Behind all blocks: of each, its scale and its sum.
 */
#include "expand-rows.h"
#include "pack.h"

/* Bytes in front of what is multiplied that are asked of the memory. */
#define AHEAD_BYTES 4096
/* Upper bytes reach from -127 to 127, lower ones from -128 to 127. */
#define INTEGER_MAX 32639.0f
/* A block of smaller numbers counts as zeros: the factor that makes them whole numbers would be infinite. */
#define SMALLEST 1e-30f

struct summary {
  float scale, sum;
};

static struct summary pack_block(const float *x, uint8_t *bytes) {
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
  const int numbers = !(_mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q));
  if (largest < SMALLEST) largest = 0;
  const __m512 inverse = _mm512_set1_ps(largest > 0 ? INTEGER_MAX / largest : 0);
  const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
  const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  const __m512i half = _mm512_set1_epi32(128);
  _mm_storeu_si128((__m128i *)bytes, _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(first, half), 8)));
  _mm_storeu_si128((__m128i *)(bytes + 16), _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(second, half), 8)));
  _mm_storeu_si128((__m128i *)(bytes + 32), _mm512_cvtepi32_epi8(first));
  _mm_storeu_si128((__m128i *)(bytes + 48), _mm512_cvtepi32_epi8(second));
  /* What is no number in x is none in any result. */
  const float scale = numbers ? largest / INTEGER_MAX : __builtin_nanf("");
  return (struct summary){scale, scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(first, second))};
}

void hk_pack_one_row(int64_t k, const float *x, uint16_t *packed, int64_t begin, int64_t end) {
  struct summary *summaries = (struct summary *)(packed + hk_blocks(k) * HK_BLOCK);
  for (int64_t block = begin; block < end; block++)
    summaries[block] = pack_block(x + block * HK_BLOCK, (uint8_t *)(packed + block * HK_BLOCK));
}

/* Weights from 0 on by a block of x, as floats. */
static inline __attribute__((always_inline)) __m512 multiply(__m512i weights, __m512i upper, __m512i lower) {
  const __m512i sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, upper), 8);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sum, weights, lower));
}

/* Of each vector: the sums of rows 4v and 4v + 2, then those of 4v + 1 and 4v + 3, two lanes of every four each. */
static inline __attribute__((always_inline)) void block_q4_0(const uint8_t *from, const uint8_t *x, __m512 scale,
                                                             __m512 *total) {
  const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
  const __m512i low_bits = _mm512_set1_epi8(15), high_bits = _mm512_set1_epi8((char)0xf0);
  const __m512i upper =
      _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)x)));
  const __m512i lower =
      _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(x + 32))));
  /* Bytes of two rows in turns become eight of one, then eight of the other. */
  const __m512i apart =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i first = _mm512_setr_epi32(0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7);
  /* Odd rows stay in their upper bits, and so are 16 times as large. */
  const __m512 units = _mm512_broadcast_f32x8(_mm256_setr_ps(1, 1, 1, 1, 0.0625f, 0.0625f, 0.0625f, 0.0625f));
  float scales[2 * HK_STRIP] __attribute__((aligned(64)));
  _mm512_store_ps(scales, _mm512_mul_ps(units, _mm512_permutexvar_ps(first, scale)));
  _mm512_store_ps(scales + 16, _mm512_mul_ps(units, _mm512_permutexvar_ps(
                                                        _mm512_add_epi32(first, _mm512_set1_epi32(8)), scale)));
  /* Each is read from memory again, into all lanes at once: compilers would move them through one busy port. */
  __asm__ volatile("" ::: "memory");
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    const __m512i words = _mm512_loadu_si512(from + 64 * v);
    const __m512i even = _mm512_shuffle_epi8(_mm512_and_si512(words, low_bits), apart);
    const __m512i odd = _mm512_shuffle_epi8(_mm512_and_si512(words, high_bits), apart);
    total[2 * v] = _mm512_fmadd_ps(multiply(even, upper, lower),
                                   _mm512_broadcast_f32x4(_mm_load_ps(scales + 8 * v)), total[2 * v]);
    total[2 * v + 1] = _mm512_fmadd_ps(multiply(odd, upper, lower),
                                       _mm512_broadcast_f32x4(_mm_load_ps(scales + 8 * v + 4)), total[2 * v + 1]);
  }
}

/* Of each vector: the sums of row 2v in the lower half, those of 2v + 1 in the upper. */
static inline __attribute__((always_inline)) void block_q8_0(const uint8_t *from, const uint8_t *x, __m512 scale,
                                                             __m512 *total) {
  const __m512i upper = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)x));
  const __m512i lower = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(x + 32)));
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  __m512i rows = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) {
    const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(from + 64 * v), sign);
    total[v] = _mm512_fmadd_ps(multiply(weights, upper, lower), _mm512_permutexvar_ps(rows, scale), total[v]);
    rows = _mm512_add_epi32(rows, _mm512_set1_epi32(2));
  }
}

static inline __m128 quarters(__m512 sums) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* The row's own sum, in the order of rows. */
static inline __m512 sums_of(enum hk_type type, const __m512 *total) {
  float sums[HK_STRIP] __attribute__((aligned(64)));
  if (type == HK_Q4_0)
    for (int v = 0; v < 4; v++) {
      const __m128 rows = _mm_hadd_ps(quarters(total[2 * v]), quarters(total[2 * v + 1]));
      _mm_store_ps(sums + 4 * v, _mm_shuffle_ps(rows, rows, _MM_SHUFFLE(3, 1, 2, 0)));
    }
  else
    for (int v = 0; v < 8; v += 2) {
      const __m256 a = _mm256_hadd_ps(_mm512_castps512_ps256(total[v]), _mm512_extractf32x8_ps(total[v], 1));
      const __m256 b = _mm256_hadd_ps(_mm512_castps512_ps256(total[v + 1]), _mm512_extractf32x8_ps(total[v + 1], 1));
      const __m256 both = _mm256_hadd_ps(a, b);
      _mm_store_ps(sums + 2 * v, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
    }
  return _mm512_load_ps(sums);
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  const int64_t bytes = hk_integer_bytes(type), strip_bytes = hk_strip_bytes(type, p->blocks);
  const uint8_t *x = (const uint8_t *)p->x;
  const struct summary *summaries = (const struct summary *)(p->x + p->blocks * HK_BLOCK);
  for (int64_t strip = begin; strip < end; strip++) {
    const uint8_t *packed = p->weights + strip * strip_bytes;
    __m512 total[8], shift = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int row = 0; row < 8; row++) total[row] = _mm512_setzero_ps();
    for (int64_t block = 0; block < p->blocks; block++) {
      const uint8_t *from = packed + block * bytes;
#pragma GCC unroll 8
      for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch((const char *)from + AHEAD_BYTES + at, _MM_HINT_T0);
      const __m512 own =
          _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)hk_scales(type, packed, p->blocks, block)));
      const __m512 scale = _mm512_mul_ps(own, _mm512_set1_ps(summaries[block].scale));
      /* Weights were multiplied as numbers from 0 on. */
      shift = _mm512_fmadd_ps(own, _mm512_set1_ps(summaries[block].sum), shift);
      if (type == HK_Q4_0) block_q4_0(from, x + 2 * HK_BLOCK * block, scale, total);
      else block_q8_0(from, x + 2 * HK_BLOCK * block, scale, total);
    }
    const __m512 least = _mm512_set1_ps(type == HK_Q4_0 ? 8 : 128);
    _mm512_mask_storeu_ps(p->y + strip * HK_STRIP, hk_columns(p->n, strip),
                          _mm512_fnmadd_ps(least, shift, sums_of(type, total)));
  }
}

void hk_product_one_row(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else product(HK_Q8_0, p, begin, end);
}

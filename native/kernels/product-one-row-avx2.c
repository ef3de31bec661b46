/* One row of x by quantized weights in pairs, with AVX2: see one-row-pairs.h. And that row as integers of 16 bits. */
#include "pack.h"
#include <immintrin.h>
#include <math.h>

#define LANES 8
typedef __m256i ints;
typedef __m256 floats;

static inline ints spread_ints(int32_t x) { return _mm256_set1_epi32(x); }
static inline ints load_ints(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }
static inline ints add_ints(ints a, ints b) { return _mm256_add_epi32(a, b); }
static inline ints shifted(ints x) { return _mm256_srli_epi32(x, 4); }
static inline ints low_nibbles(ints x) { return _mm256_and_si256(x, _mm256_set1_epi32(0x000f000f)); }
static inline ints dot(ints sum, ints a, ints b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
static inline floats as_floats(ints x) { return _mm256_cvtepi32_ps(x); }
static inline floats spread(float x) { return _mm256_set1_ps(x); }
static inline floats times(floats a, floats b) { return _mm256_mul_ps(a, b); }
static inline floats fma_of(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline void store(float *to, floats x) { _mm256_store_ps(to, x); }
static inline floats from_halves(const uint16_t *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline floats from_bytes(const int8_t *from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}
/* 16 signed bytes of the even element, then 16 of the odd one, become a pair for each row. */
static inline void interleave(__m256i both, ints *pairs) {
  const __m128i even = _mm256_castsi256_si128(both), odd = _mm256_extracti128_si256(both, 1);
  pairs[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(even, odd));
  pairs[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(even, odd));
}

#include "one-row-pairs.h"

void hk_product_one_row_avx2(const struct hk_product *p, int64_t begin, int64_t end) { one_row(p, begin, end); }

void hk_pack_one_row_pairs(int64_t k, const float *x, uint16_t *packed, int64_t begin, int64_t end) {
  struct hk_summary *summaries = (struct hk_summary *)(packed + hk_blocks(k) * HK_BLOCK);
  for (int64_t block = begin; block < end; block++) {
    const float *from = x + block * HK_BLOCK;
    int16_t *to = (int16_t *)(packed + block * HK_BLOCK);
    float largest = 0;
    int numbers = 1, sums[2] = {0, 0};
    for (int at = 0; at < HK_BLOCK; at++) {
      const float size = fabsf(from[at]);
      numbers &= size <= INFINITY;
      largest = size > largest ? size : largest;
    }
    if (largest < HK_SMALLEST) largest = 0;
    const float inverse = largest > 0 ? HK_INTEGER_MAX / largest : 0;
    for (int at = 0; at < HK_BLOCK; at += 8) {
      const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + at), _mm256_set1_ps(inverse)));
      int32_t some[8];
      _mm256_storeu_si256((__m256i *)some, whole);
      for (int index = 0; index < 8; index++) {
        to[at + index] = (int16_t)some[index];
        sums[at >> 4] += (int16_t)some[index];
      }
    }
    /* What is no number in x is none in any result. */
    const float scale = numbers ? largest / HK_INTEGER_MAX : NAN;
    summaries[block] = (struct hk_summary){scale, scale * (float)(sums[0] + sums[1]), scale * (float)sums[0],
                                           scale * (float)sums[1]};
  }
}

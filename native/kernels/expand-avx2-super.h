/* Blocks of Q4_K and Q6_K as F32, [element][row of the strip], with their scale, which is exact. */
#pragma once
#include "super-block.h"
#include <immintrin.h>

/* Scales of 8 rows from `row` on. */
static inline __m256 hk_super_scale(const int8_t *integers, const uint16_t *halves, int row) {
  const __m256i scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(integers + row)));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(scale), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + row))));
}

static void expand_q4_k(const uint8_t *from, const int8_t *scales, const uint16_t *supers, float *to) {
  const __m256i four_bits = _mm256_set1_epi32(15);
  for (int row = 0; row < HK_STRIP; row += 8) {
    const __m256 scale = hk_super_scale(scales, supers, row);
    const __m256 minimum = hk_super_scale(scales + HK_STRIP, supers + HK_STRIP, row);
    for (int v = 0; v < 4; v++) {
      __m256i words = _mm256_loadu_si256((const __m256i *)(from + 64 * v + 4 * row));
      for (int pair = 0; pair < 4; pair++, words = _mm256_srli_epi32(words, 4)) {
        const __m256 even = _mm256_cvtepi32_ps(_mm256_and_si256(words, four_bits));
        const __m256 odd = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words, 16), four_bits));
        float *at = to + (4 * v + pair) * 2 * HK_STRIP + row;
        _mm256_store_ps(at, _mm256_fmsub_ps(even, scale, minimum));
        _mm256_store_ps(at + HK_STRIP, _mm256_fmsub_ps(odd, scale, minimum));
      }
    }
  }
}

static void expand_q6_k(const uint8_t *from, const int8_t *scales, const uint16_t *supers, float *to) {
  const __m256i four_bits = _mm256_set1_epi32(15), two_bits = _mm256_set1_epi32(3), middle = _mm256_set1_epi32(32);
  for (int row = 0; row < HK_STRIP; row += 8)
    for (int element = 0; element < HK_BLOCK; element++) {
      const uint8_t *low = from + 16 * (element & 15) + row, *high = from + HK_Q6_K_LOW + 16 * (element & 7) + row;
      const __m256i lows = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)low));
      const __m256i highs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)high));
      const __m256i low_bits = _mm256_and_si256(_mm256_srli_epi32(lows, element < 16 ? 0 : 4), four_bits);
      const __m256i high_bits = _mm256_and_si256(_mm256_srli_epi32(highs, 2 * (element >> 3)), two_bits);
      const __m256i q = _mm256_sub_epi32(_mm256_or_si256(low_bits, _mm256_slli_epi32(high_bits, 4)), middle);
      const __m256 scale = hk_super_scale(scales + (element < 16 ? 0 : HK_STRIP), supers, row);
      _mm256_store_ps(to + element * HK_STRIP + row, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(q)));
    }
}

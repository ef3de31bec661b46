/* Scales of weights that become BF16 by cutting. */
#pragma once
#include "super-block.h"
#include <immintrin.h>

/*
 * An F32 becomes BF16 by taking its upper half. That alone would make weights smaller by a quarter of a percent on
 * average, so scales are as much larger: the error is at most 0.7 units in the last place of BF16 (0.5 if rounded), its
 * mean is zero, and what BF16 can hold stays as it is. Rounding would take as long as all else of an expansion.
 */
#define HK_CUT_OFF 1.00271f

/* Scales of 16 rows. */
static inline __m512 hk_exact_super_scale(const int8_t *integers, const uint16_t *halves) {
  const __m512 scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)integers)));
  return _mm512_mul_ps(scale, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves)));
}

/* The same with what cutting takes away. */
static inline __m512 hk_super_scale(const int8_t *integers, const uint16_t *halves) {
  return _mm512_mul_ps(hk_exact_super_scale(integers, halves), _mm512_set1_ps(HK_CUT_OFF));
}

/* Blocks of Q4_K and Q6_K as BF16, [pair 16][row 16][2], with AVX-512. Their scale is multiplied in. */
#pragma once
#include "cut-off.h"

/* The upper halves of two floats as a pair. */
static inline __m512i hk_pair(__m512 even, __m512 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(odd));
}

static inline void hk_expand_q4_k(const uint8_t *from, __m512 scale, __m512 minimum, uint16_t *to) {
  const __m512i four_bits = _mm512_set1_epi32(15);
  for (int v = 0; v < 4; v++) {
    __m512i words = _mm512_loadu_si512(from + 64 * v);
    for (int pair = 0; pair < 4; pair++, to += 32, words = _mm512_srli_epi32(words, 4)) {
      const __m512 even = _mm512_cvtepi32_ps(_mm512_and_si512(words, four_bits));
      const __m512 odd = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 16), four_bits));
      _mm512_store_si512(to, hk_pair(_mm512_fmsub_ps(even, scale, minimum), _mm512_fmsub_ps(odd, scale, minimum)));
    }
  }
}

/* Element `element` of 16 rows, as integers. */
static inline __m512 hk_q6_k_element(const uint8_t *from, int element) {
  const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + 16 * (element & 15))));
  const __m512i high =
      _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + HK_Q6_K_LOW + 16 * (element & 7))));
  const __m512i low_bits = _mm512_and_si512(_mm512_srli_epi32(low, element < 16 ? 0 : 4), _mm512_set1_epi32(15));
  const __m512i high_bits = _mm512_and_si512(_mm512_srli_epi32(high, 2 * (element >> 3)), _mm512_set1_epi32(3));
  const __m512i q = _mm512_or_si512(low_bits, _mm512_slli_epi32(high_bits, 4));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(32)));
}

static inline void hk_expand_q6_k(const uint8_t *from, __m512 first, __m512 second, uint16_t *to) {
#pragma GCC unroll 16
  for (int pair = 0; pair < 16; pair++, to += 32) {
    const __m512 scale = pair < 8 ? first : second;
    _mm512_store_si512(to, hk_pair(_mm512_mul_ps(scale, hk_q6_k_element(from, 2 * pair)),
                                   _mm512_mul_ps(scale, hk_q6_k_element(from, 2 * pair + 1))));
  }
}

/* The blocks [begin, begin + count) of a strip. */
static inline __attribute__((always_inline)) void hk_expand_super(enum hk_type type, const uint8_t *strip,
                                                                  int64_t blocks, int64_t begin, int count,
                                                                  uint16_t *to) {
  for (int64_t block = begin; block < begin + count; block++, to += HK_BLOCK_BYTES / 2) {
    const uint8_t *from = strip + block * hk_integer_bytes(type);
    const int8_t *scales = hk_block_scales(type, strip, blocks, block);
    const uint16_t *supers = hk_super_scales(type, strip, blocks, block);
    const __m512 first = hk_super_scale(scales, supers);
    if (type == HK_Q4_K) hk_expand_q4_k(from, first, hk_super_scale(scales + HK_STRIP, supers + HK_STRIP), to);
    else hk_expand_q6_k(from, first, hk_super_scale(scales + HK_STRIP, supers), to);
  }
}

/* Blocks of quantized weights as BF16, [pair 16][row 16][2], with AVX-512. */
#pragma once
#include "kernels.h"
#include <immintrin.h>

/* BF16 of the integers -8 to 7, twice: of an index's bits the fifth, which belongs to the next pair, does not count. */
static inline __m512i hk_q4_0_table(void) {
  static const uint16_t table[32] __attribute__((aligned(64))) = {
      0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
      0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
      0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
  return _mm512_load_si512(table);
}

static inline void hk_expand_q4_0(const uint8_t *from, uint16_t *to) {
  const __m512i table = hk_q4_0_table();
  for (int v = 0; v < 4; v++, to += 128) {
    const __m512i words = _mm512_loadu_si512(from + 64 * v);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(words, table));
    _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table));
    _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table));
    _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table));
  }
}

/* An integer of 8 bits is a float whose low half is zero, so that two floats make a pair without rounding. */
static inline void hk_expand_q8_0(const uint8_t *from, uint16_t *to) {
  for (int pair = 0; pair < 16; pair++, from += 32, to += 32) {
    const __m512i even = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
    const __m512i odd = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + 16)));
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
    _mm512_store_si512(to, _mm512_or_si512(low, _mm512_castps_si512(_mm512_cvtepi32_ps(odd))));
  }
}

/* The blocks [begin, begin + count) of a strip, and their scales. */
static inline __attribute__((always_inline)) void hk_expand(enum hk_type type, const uint8_t *strip, int64_t blocks,
                                                            int64_t begin, int count, uint16_t *to, float *scales) {
  for (int block = 0; block < count; block++) {
    const uint8_t *from = strip + (begin + block) * hk_integer_bytes(type);
    if (type == HK_Q4_0) hk_expand_q4_0(from, to + block * HK_BLOCK_BYTES / 2);
    else hk_expand_q8_0(from, to + block * HK_BLOCK_BYTES / 2);
    const __m256i halves = _mm256_loadu_si256((const __m256i *)hk_scales(type, strip, blocks, begin + block));
    _mm512_store_ps(scales + block * HK_STRIP, _mm512_cvtph_ps(halves));
  }
}

/* Lanes of a strip that are columns of the result. */
static inline __mmask16 hk_columns(int64_t n, int64_t strip) {
  const int64_t left = n - strip * HK_STRIP;
  return left >= HK_STRIP ? 0xffff : (__mmask16)((1u << left) - 1);
}

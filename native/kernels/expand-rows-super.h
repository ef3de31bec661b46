/* Blocks of Q4_K and Q6_K as rows of BF16, [row 16][element 32], with their scale. */
#pragma once
#include "cut-off.h"
#include "expand-nibbles.h"
#include "prefetch.h"

static inline __attribute__((always_inline)) void hk_expand_rows_q4_k(const uint8_t *from, const float *scales,
                                                                      const float *minima, uint16_t *to) {
  const __m512 integers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint8_t turned[256] __attribute__((aligned(64)));
  hk_turn_nibbles(from, turned);
#pragma GCC unroll 16
  for (int row = 0; row < 16; row++) {
    const __m512 scale = _mm512_set1_ps(scales[row]), minimum = _mm512_set1_ps(minima[row]);
    hk_look_up_nibbles(turned, row, _mm512_fmsub_ps(integers, scale, minimum), to + 32 * row);
  }
}

static inline __attribute__((always_inline)) void hk_expand_rows_q6_k(const uint8_t *from, const float *first,
                                                                      const float *second, uint16_t *to) {
  static const uint16_t upper_halves[32] __attribute__((aligned(64))) = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i index = _mm512_load_si512(upper_halves);
  const __m256i four_bits = _mm256_set1_epi8(15), fifth_and_sixth = _mm256_set1_epi8(0x30);
#pragma GCC unroll 16
  for (int row = 0; row < 16; row++, to += 32) {
    const __m256i lows = _mm256_loadu_si256((const __m256i *)(from + 32 * (row & 7)));
    const __m256i highs = _mm256_loadu_si256((const __m256i *)(from + HK_Q6_K_LOW + 32 * (row & 3)));
    const __m256i low = _mm256_and_si256(row < 8 ? lows : _mm256_srli_epi16(lows, 4), four_bits);
    const __m256i moved = row < 4   ? _mm256_slli_epi16(highs, 4)
                          : row < 8 ? _mm256_slli_epi16(highs, 2)
                          : row < 12 ? highs
                                     : _mm256_srli_epi16(highs, 2);
    const __m256i both = _mm256_or_si256(low, _mm256_and_si256(moved, fifth_and_sixth));
    const __m256i q = _mm256_sub_epi8(both, _mm256_set1_epi8(32));
    const __m512i a = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(q));
    const __m512i b = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1));
    const __m512 x = _mm512_mul_ps(_mm512_set1_ps(first[row]), _mm512_cvtepi32_ps(a));
    const __m512 y = _mm512_mul_ps(_mm512_set1_ps(second[row]), _mm512_cvtepi32_ps(b));
    _mm512_store_si512(to, _mm512_permutex2var_epi16(_mm512_castps_si512(x), index, _mm512_castps_si512(y)));
  }
}

/* The blocks [begin, begin + count) of a strip. */
static inline __attribute__((always_inline)) void hk_expand_rows_super(enum hk_type type, const uint8_t *strip,
                                                                       int64_t blocks, int64_t begin, int count,
                                                                       uint16_t *to) {
  float first[HK_STRIP] __attribute__((aligned(64))), second[HK_STRIP] __attribute__((aligned(64)));
  const int64_t bytes = hk_integer_bytes(type);
  for (int64_t block = begin; block < begin + count; block++, to += HK_BLOCK_BYTES / 2) {
    const uint8_t *from = strip + block * bytes;
    hk_prefetch(type, strip, blocks, block, 2);
    const int8_t *scales = hk_block_scales(type, strip, blocks, block);
    const uint16_t *supers = hk_super_scales(type, strip, blocks, block);
    _mm512_store_ps(first, hk_super_scale(scales, supers));
    _mm512_store_ps(second, hk_super_scale(scales + HK_STRIP, type == HK_Q4_K ? supers + HK_STRIP : supers));
    /* Each is read from memory again, into all lanes at once, as in hk_expand_rows. */
    __asm__ volatile("" ::: "memory");
    if (type == HK_Q4_K) hk_expand_rows_q4_k(from, first, second, to);
    else hk_expand_rows_q6_k(from, first, second, to);
  }
}

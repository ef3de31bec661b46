/* Blocks of quantized weights as rows of BF16, [row 16][element 32], with their scale. */
#pragma once
#include "cut-off.h"
#include "expand-nibbles.h"
#include "expand-rows-super.h"
#include "prefetch.h"
#include "kernels.h"
#include <immintrin.h>

static inline __m512i hk_counting(void) {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Lanes of a strip that are columns of the result. */
static inline __mmask16 hk_columns(int64_t n, int64_t strip) {
  const int64_t left = n - strip * HK_STRIP;
  return left >= HK_STRIP ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* 16 rows of 16 floats become columns. */
static inline __attribute__((always_inline)) void hk_transpose(__m512 *r) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

static inline __attribute__((always_inline)) void hk_expand_rows_q4_0(const uint8_t *from, const float *scales,
                                                                      uint16_t *to) {
  const __m512 integers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  uint8_t turned[256] __attribute__((aligned(64)));
  hk_turn_nibbles(from, turned);
#pragma GCC unroll 16
  for (int row = 0; row < 16; row++)
    hk_look_up_nibbles(turned, row, _mm512_mul_ps(integers, _mm512_set1_ps(scales[row])), to + 32 * row);
}

static inline __attribute__((always_inline)) void hk_expand_rows_q8_0(const uint8_t *from, const float *scales,
                                                                      uint16_t *to) {
  static const uint16_t upper_halves[32] __attribute__((aligned(64))) = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i index = _mm512_load_si512(upper_halves);
#pragma GCC unroll 4
  for (int row = 0; row < 16; row++, from += 32, to += 32) {
    const __m512 scale = _mm512_set1_ps(scales[row]);
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + 16)));
    const __m512i first = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(low)));
    const __m512i second = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(high)));
    _mm512_store_si512(to, _mm512_permutex2var_epi16(first, index, second));
  }
}

/* The blocks [begin, begin + count) of a strip. */
static inline __attribute__((always_inline)) void hk_expand_rows(enum hk_type type, const uint8_t *strip,
                                                                 int64_t blocks, int64_t begin, int count,
                                                                 uint16_t *to) {
  if (hk_is_super(type)) {
    hk_expand_rows_super(type, strip, blocks, begin, count, to);
    return;
  }
  float scales[HK_STRIP] __attribute__((aligned(64)));
  const int64_t bytes = hk_integer_bytes(type);
  for (int block = 0; block < count; block++, to += HK_BLOCK_BYTES / 2) {
    const uint8_t *from = strip + (begin + block) * bytes;
    hk_prefetch(type, strip, blocks, begin + block, 2);
    const __m256i halves = _mm256_loadu_si256((const __m256i *)hk_scales(type, strip, blocks, begin + block));
    _mm512_store_ps(scales, _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(HK_CUT_OFF)));
    /* Each is read from memory again, into all lanes at once: compilers would move them through one busy port. */
    __asm__ volatile("" ::: "memory");
    if (type == HK_Q4_0) hk_expand_rows_q4_0(from, scales, to);
    else hk_expand_rows_q8_0(from, scales, to);
  }
}

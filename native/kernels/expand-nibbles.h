/* Rows of 4 bits, which lie as hk_nibbles says, as BF16. */
#pragma once
#include "kernels.h"
#include <immintrin.h>

/* The four words of a row lie in four vectors and come together: row r at 64 (r mod 4) + 16 (r div 4). */
static inline __attribute__((always_inline)) void hk_turn_nibbles(const uint8_t *from, uint8_t *turned) {
  const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
  const __m512i c = _mm512_loadu_si512(from + 128), d = _mm512_loadu_si512(from + 192);
  const __m512i low_ab = _mm512_unpacklo_epi32(a, b), low_cd = _mm512_unpacklo_epi32(c, d);
  const __m512i high_ab = _mm512_unpackhi_epi32(a, b), high_cd = _mm512_unpackhi_epi32(c, d);
  _mm512_store_si512(turned, _mm512_unpacklo_epi64(low_ab, low_cd));
  _mm512_store_si512(turned + 64, _mm512_unpackhi_epi64(low_ab, low_cd));
  _mm512_store_si512(turned + 128, _mm512_unpacklo_epi64(high_ab, high_cd));
  _mm512_store_si512(turned + 192, _mm512_unpackhi_epi64(high_ab, high_cd));
  /* Each row is read from memory again, into all lanes at once: compilers would move it through one busy port. */
  __asm__ volatile("" ::"r"(turned) : "memory");
}

/*
 * The 16 values that a row of a block can have are its look-up table: BF16 in the upper halves of F32, which words with
 * an odd index are. Of an index five bits count, here those of the integer and a one.
 */
static inline __attribute__((always_inline)) void hk_look_up_nibbles(const uint8_t *turned, int row, __m512 values,
                                                                     uint16_t *to) {
  const __m512i turns = _mm512_setr_epi32(31, 31, 31, 31, 3, 3, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11);
  const __m128i *words = (const __m128i *)(turned + 64 * (row & 3) + 16 * (row >> 2));
  const __m512i bits = _mm512_rorv_epi32(_mm512_broadcast_i32x4(_mm_load_si128(words)), turns);
  const __m512i index = _mm512_or_si512(bits, _mm512_set1_epi16(1));
  _mm512_store_si512(to, _mm512_permutexvar_epi16(index, _mm512_castps_si512(values)));
}

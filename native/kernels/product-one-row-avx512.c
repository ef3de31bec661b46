/* One row of x by quantized weights in pairs, with AVX-512 VNNI: see one-row-pairs.h. */
#include "kernels.h"
#include <immintrin.h>

#define LANES 16
typedef __m512i ints;
typedef __m512 floats;

static inline ints spread_ints(int32_t x) { return _mm512_set1_epi32(x); }
static inline ints load_ints(const uint8_t *from) { return _mm512_loadu_si512(from); }
static inline ints add_ints(ints a, ints b) { return _mm512_add_epi32(a, b); }
static inline ints shifted(ints x) { return _mm512_srli_epi32(x, 4); }
static inline ints low_nibbles(ints x) { return _mm512_and_si512(x, _mm512_set1_epi32(0x000f000f)); }
static inline ints dot(ints sum, ints a, ints b) { return _mm512_dpwssd_epi32(sum, a, b); }
static inline floats as_floats(ints x) { return _mm512_cvtepi32_ps(x); }
static inline floats spread(float x) { return _mm512_set1_ps(x); }
static inline floats times(floats a, floats b) { return _mm512_mul_ps(a, b); }
static inline floats fma_of(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline void store(float *to, floats x) { _mm512_store_ps(to, x); }
static inline floats from_halves(const uint16_t *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline floats from_bytes(const int8_t *from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
/* 16 signed bytes of the even element, then 16 of the odd one, become a pair for each row. */
static inline void interleave(__m256i both, ints *pairs) {
  const __m512i index = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  pairs[0] = _mm512_permutexvar_epi16(index, _mm512_cvtepi8_epi16(both));
}

#include "one-row-pairs.h"

void hk_product_one_row_avx512(const struct hk_product *p, int64_t begin, int64_t end) { one_row(p, begin, end); }

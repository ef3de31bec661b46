/* Products of F16 in ones and of BF16 in pairs with FMA in F32, of any AVX-512: see stripe-avx512.h. */
#include "stripe-avx512.h"

#define X_BLOCK_BYTES (4 * HK_BLOCK)

/* An element of a strip's 16 rows, widened where it lies; `odd` says which of a pair it is. */
static inline __attribute__((always_inline)) __m512 widened(const enum hk_type type, const uint8_t *w, int element,
                                                            const int odd) {
  if (type == HK_F16) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + element * 2 * HK_STRIP)));
  const __m512i pair = _mm512_loadu_si512(w + (element - odd) * 2 * HK_STRIP);
  return _mm512_castsi512_ps(odd ? _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000))
                                 : _mm512_slli_epi32(pair, 16));
}

static inline __attribute__((always_inline)) void add_element(const enum hk_type type, const int rows, const int strips,
                                                              const uint8_t *x, const uint8_t *const *w, int element,
                                                              const int odd, __m512 (*sum)[STRIPS]) {
  const __m512 first = widened(type, w[0], element, odd);
  const __m512 second = strips > 1 ? widened(type, w[1], element, odd) : first;
  const __m512 third = strips > 2 ? widened(type, w[2], element, odd) : first;
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++) {
    const __m512 one = _mm512_set1_ps(((const float *)(x + row * X_BLOCK_BYTES))[element]);
    sum[row][0] = _mm512_fmadd_ps(one, first, sum[row][0]);
    if (strips > 1) sum[row][1] = _mm512_fmadd_ps(one, second, sum[row][1]);
    if (strips > 2) sum[row][2] = _mm512_fmadd_ps(one, third, sum[row][2]);
  }
}

static inline __attribute__((always_inline)) void add_block(const enum hk_type type, const int rows, const int strips,
                                                            const uint8_t *x, const uint8_t *const *w,
                                                            __m512 (*sum)[STRIPS]) {
  for (int element = 0; element < HK_BLOCK; element += 2) {
    add_element(type, rows, strips, x, w, element, 0, sum);
    add_element(type, rows, strips, x, w, element + 1, 1, sum);
  }
}

#include "stripes-in-place-avx512.h"

void hk_product_avx512_floats(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_F16) product(HK_F16, p, begin, end);
  else product(HK_BF16, p, begin, end);
}

/*
 * F32 by F32, for the small matrices that choose among experts: nothing is rounded, and sums go in one order whatever
 * is computed beside them. Needs AVX2 and FMA; the order is the same on every CPU.
 */
#include "ggml-tensor.h"
#include "kernels.h"
#include <immintrin.h>

/* Rows of x and columns of the result that are computed together: their sums fit into the registers. */
#define ROWS 2
#define COLUMNS 4
#define LANES 8

static inline float sum_of(__m256 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Eight elements, of which those behind the last count as zeros. */
static inline __m256 some_of(const float *from, int64_t left) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), places));
}

static inline __attribute__((always_inline)) void dots(const int rows, const int columns, int64_t k,
                                                       const float *const *x, const float *const *w, float *const *y) {
  __m256 sums[ROWS][COLUMNS];
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
    for (int column = 0; column < columns; column++) sums[row][column] = _mm256_setzero_ps();
  for (int64_t at = 0; at < k; at += LANES) {
    const int64_t left = k - at;
    __m256 from[ROWS];
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++)
      from[row] = left >= LANES ? _mm256_loadu_ps(x[row] + at) : some_of(x[row] + at, left);
#pragma GCC unroll 4
    for (int column = 0; column < columns; column++) {
      const __m256 weights = left >= LANES ? _mm256_loadu_ps(w[column] + at) : some_of(w[column] + at, left);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++)
        sums[row][column] = _mm256_fmadd_ps(from[row], weights, sums[row][column]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
    for (int column = 0; column < columns; column++) y[row][column] = sum_of(sums[row][column]);
}

/* dst: F32 [n, m]; src 0: weights, F32 [k, n] as in model files; src 1: x, F32 [k, m]. */
HK_API void hk_exact_operator(struct tensor *dst, int thread, int threads, void *none) {
  (void)none;
  const struct tensor *w = dst->src[0], *x = dst->src[1];
  const int64_t k = w->ne[0], n = w->ne[1], m = dst->ne[1], groups = hk_ceil_div(n, COLUMNS) * hk_ceil_div(m, ROWS);
  for (int64_t group = groups * thread / threads; group < groups * (thread + 1) / threads; group++) {
    const int64_t first = group / hk_ceil_div(n, COLUMNS) * ROWS, column = group % hk_ceil_div(n, COLUMNS) * COLUMNS;
    const int rows = m - first < ROWS ? 1 : ROWS, columns = n - column < COLUMNS ? (int)(n - column) : COLUMNS;
    const float *from[ROWS], *weights[COLUMNS];
    float *to[ROWS];
    for (int row = 0; row < rows; row++) {
      from[row] = (const float *)((const char *)x->data + (first + row) * (int64_t)x->nb[1]);
      to[row] = (float *)((char *)dst->data + (first + row) * (int64_t)dst->nb[1]) + column;
    }
    for (int index = 0; index < columns; index++)
      weights[index] = (const float *)((const char *)w->data + (column + index) * (int64_t)w->nb[1]);
    if (columns == COLUMNS) {
      if (rows == ROWS) dots(ROWS, COLUMNS, k, from, weights, to);
      else dots(1, COLUMNS, k, from, weights, to);
    } else
      for (int row = 0; row < rows; row++)
        for (int index = 0; index < columns; index++) {
          float *one[1] = {to[row] + index};
          dots(1, 1, k, from + row, weights + index, one);
        }
  }
}

/* Attention with AVX2 and FMA, in F32: F16 and quantized keys and values are widened without rounding. */
#include <immintrin.h>
#include <stdint.h>

#define LANES 8
#define ROWS 2
typedef __m256 floats;

static inline floats spread(float x) { return _mm256_set1_ps(x); }
static inline floats load(const float *x) { return _mm256_loadu_ps(x); }
static inline void store(float *x, floats y) { _mm256_storeu_ps(x, y); }
static inline floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
static inline floats sub(floats a, floats b) { return _mm256_sub_ps(a, b); }
/* b where one of them is no number. */
static inline floats max_of(floats a, floats b) { return _mm256_max_ps(a, b); }
static inline floats fma_of(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline floats rounded(floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline floats with_exponent(floats x, floats exponent) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(exponent), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted));
}
static inline floats zero_where_less(floats x, floats y, floats value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, y, _CMP_NLT_UQ), value);
}
static inline float first_of(floats x) { return _mm256_cvtss_f32(x); }
static inline float highest_of(floats x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline float sum_of(floats x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
/* −∞ in the lanes from `count` on. */
static inline floats lowest_from(int count, floats x) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(seen));
}

#include "attention.h"

static inline __attribute__((always_inline)) floats widened_all(const enum hk_kv_type type, const uint8_t *head,
                                                                int index) {
  if (type == HK_KV_F32) return _mm256_loadu_ps((const float *)head + 8 * index);
  if (type == HK_KV_F16) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(head + 16 * index)));
  /* struct block_q8_0 of ggml: an F16, then 32 signed bytes. */
  const uint8_t *block = head + 34 * (index / 4);
  const __m256 scale = _mm256_cvtph_ps(_mm_set1_epi16(*(const int16_t *)block));
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)(block + 2 + 8 * (index & 3)));
  return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}

struct work;
struct rows;
struct ahead;
struct values;
static inline __attribute__((always_inline)) void order_keys(const enum hk_kv_type type, const struct work *w,
                                                             const struct rows *rows, int64_t offset, float *to,
                                                             struct ahead *ahead);
static inline __attribute__((always_inline)) void multiply_keys(const int count, const float *q, int64_t padded,
                                                                const float *keys, float (*scores)[HK_STEP], int group);
static inline __attribute__((always_inline)) void multiply_values(const int count, const int vectors,
                                                                  const enum hk_kv_type type,
                                                                  float (*scores)[HK_STEP], int tokens,
                                                                  const struct values *values, int begin,
                                                                  const float *factors, int64_t padded, float *part);
#include "attention-tile.h"

/* Two tokens at a time, four elements of each: 128 bits are moved as one. */
static inline void order_keys(const enum hk_kv_type type, const struct work *w, const struct rows *rows,
                              int64_t offset, float *to, struct ahead *ahead) {
  for (int first = 0; first < rows->count; first += 16, to += 16 * w->padded)
    for (int half = 0; half < 2; half++)
      for (int third = 0; third < 4; third++) {
        ask(ahead, 2 * ahead->each);
        const uint8_t *const *from = rows->keys + first + 8 * half + third;
        for (int index = 0; index < w->padded / 8; index++) {
          const __m256 a = widened(type, from[0] + offset, index, w->a->head_dim);
          const __m256 b = widened(type, from[4] + offset, index, w->a->head_dim);
          float *at = to + index * 128 + third * 16 + half * 8;
          _mm256_storeu_ps(at, _mm256_permute2f128_ps(a, b, 0x20));
          _mm256_storeu_ps(at + 64, _mm256_permute2f128_ps(a, b, 0x31));
        }
      }
}

static inline void multiply_keys(const int count, const float *q, int64_t padded, const float *keys,
                                 float (*scores)[HK_STEP], int group) {
  for (int half = 0; half < 2; half++) {
    __m256 sum[ROWS][4];
#pragma GCC unroll 2
    for (int row = 0; row < count; row++)
#pragma GCC unroll 4
      for (int third = 0; third < 4; third++) sum[row][third] = _mm256_setzero_ps();
    for (int64_t element = 0; element < padded; element += 4) {
      const float *at = keys + 16 * element + 8 * half;
#pragma GCC unroll 2
      for (int row = 0; row < count; row++) {
        const __m256 four = _mm256_broadcast_ps((const __m128 *)(q + row * padded + element));
#pragma GCC unroll 4
        for (int third = 0; third < 4; third++)
          sum[row][third] = _mm256_fmadd_ps(four, _mm256_loadu_ps(at + 16 * third), sum[row][third]);
      }
    }
#pragma GCC unroll 2
    for (int row = 0; row < count; row++) {
      const __m256 low = _mm256_add_ps(_mm256_unpacklo_ps(sum[row][0], sum[row][1]),
                                       _mm256_unpackhi_ps(sum[row][0], sum[row][1]));
      const __m256 high = _mm256_add_ps(_mm256_unpacklo_ps(sum[row][2], sum[row][3]),
                                        _mm256_unpackhi_ps(sum[row][2], sum[row][3]));
      const __m256d a = _mm256_castps_pd(low), b = _mm256_castps_pd(high);
      const __m256 even = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), odd = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      _mm256_store_ps(scores[row] + 16 * group + 8 * half, _mm256_add_ps(even, odd));
    }
  }
}

static inline void multiply_values(const int count, const int vectors, const enum hk_kv_type type,
                                   float (*scores)[HK_STEP], int tokens, const struct values *values, int begin,
                                   const float *factors, int64_t padded, float *part) {
  __m256 sum[ROWS][VALUE_VECTORS];
#pragma GCC unroll 2
  for (int row = 0; row < count; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
      sum[row][v] = _mm256_mul_ps(_mm256_loadu_ps(part + row * padded + 8 * v), _mm256_set1_ps(factors[row]));
  for (int token = 0; token < tokens; token++) {
    __m256 value[VALUE_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) value[v] = value_of(type, values, token, begin + v);
#pragma GCC unroll 2
    for (int row = 0; row < count; row++) {
      const __m256 p = _mm256_set1_ps(scores[row][token]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) sum[row][v] = _mm256_fmadd_ps(p, value[v], sum[row][v]);
    }
  }
#pragma GCC unroll 2
  for (int row = 0; row < count; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) _mm256_storeu_ps(part + row * padded + 8 * v, sum[row][v]);
}

void hk_attention_avx2(const struct hk_attention *a, const struct hk_attention_task *task) { attend(a, task); }

void hk_merge_avx2(int64_t head_dim, float *sums, const float *part) { merge_sums(head_dim, sums, part); }

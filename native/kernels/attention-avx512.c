/* Attention with AVX-512, in F32: F16 and quantized keys and values are widened without rounding. */
#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define ROWS 4
typedef __m512 floats;

static inline floats spread(float x) { return _mm512_set1_ps(x); }
static inline floats load(const float *x) { return _mm512_loadu_ps(x); }
static inline void store(float *x, floats y) { _mm512_storeu_ps(x, y); }
static inline floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
static inline floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
/* b where one of them is no number. */
static inline floats max_of(floats a, floats b) { return _mm512_max_ps(a, b); }
static inline floats fma_of(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline floats rounded(floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline floats with_exponent(floats x, floats exponent) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_cvtps_epi32(exponent), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shifted));
}
static inline floats zero_where_less(floats x, floats y, floats value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, y, _CMP_NLT_UQ), value);
}
static inline float first_of(floats x) { return _mm512_cvtss_f32(x); }
static inline float highest_of(floats x) { return _mm512_reduce_max_ps(x); }
static inline float sum_of(floats x) { return _mm512_reduce_add_ps(x); }
/* −∞ in the lanes from `count` on. */
static inline floats lowest_from(int count, floats x) {
  const __mmask16 seen = count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
  return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), seen, x);
}

#include "attention.h"

static inline __attribute__((always_inline)) floats widened_all(const enum hk_kv_type type, const uint8_t *head,
                                                                int index) {
  if (type == HK_KV_F32) return _mm512_loadu_ps((const float *)head + 16 * index);
  if (type == HK_KV_F16) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(head + 32 * index)));
  /* struct block_q8_0 of ggml: an F16, then 32 signed bytes. */
  const uint8_t *block = head + 34 * (index / 2);
  const __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16(*(const int16_t *)block));
  const __m128i bytes = _mm_loadu_si128((const __m128i *)(block + 2 + 16 * (index & 1)));
  return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
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

/* Four tokens at a time, four elements of each: 128 bits are moved as one. */
static inline void order_keys(const enum hk_kv_type type, const struct work *w, const struct rows *rows,
                              int64_t offset, float *to, struct ahead *ahead) {
  for (int first = 0; first < rows->count; first += 16, to += 16 * w->padded)
    for (int third = 0; third < 4; third++) {
      ask(ahead, 4 * ahead->each);
      const uint8_t *const *from = rows->keys + first + third;
      for (int index = 0; index < w->padded / 16; index++) {
        const __m512 a = widened(type, from[0] + offset, index, w->a->head_dim);
        const __m512 b = widened(type, from[4] + offset, index, w->a->head_dim);
        const __m512 c = widened(type, from[8] + offset, index, w->a->head_dim);
        const __m512 d = widened(type, from[12] + offset, index, w->a->head_dim);
        const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), ab2 = _mm512_shuffle_f32x4(a, b, 0xee);
        const __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44), cd2 = _mm512_shuffle_f32x4(c, d, 0xee);
        float *at = to + index * 256 + third * 16;
        _mm512_storeu_ps(at, _mm512_shuffle_f32x4(ab, cd, 0x88));
        _mm512_storeu_ps(at + 64, _mm512_shuffle_f32x4(ab, cd, 0xdd));
        _mm512_storeu_ps(at + 128, _mm512_shuffle_f32x4(ab2, cd2, 0x88));
        _mm512_storeu_ps(at + 192, _mm512_shuffle_f32x4(ab2, cd2, 0xdd));
      }
    }
}

static inline void multiply_keys(const int count, const float *q, int64_t padded, const float *keys,
                                 float (*scores)[HK_STEP], int group) {
  __m512 sum[ROWS][4];
#pragma GCC unroll 4
  for (int row = 0; row < count; row++)
#pragma GCC unroll 4
    for (int third = 0; third < 4; third++) sum[row][third] = _mm512_setzero_ps();
  for (int64_t element = 0; element < padded; element += 4, keys += 64) {
    const __m512 k0 = _mm512_loadu_ps(keys), k1 = _mm512_loadu_ps(keys + 16);
    const __m512 k2 = _mm512_loadu_ps(keys + 32), k3 = _mm512_loadu_ps(keys + 48);
#pragma GCC unroll 4
    for (int row = 0; row < count; row++) {
      const __m512 four = _mm512_broadcast_f32x4(_mm_loadu_ps(q + row * padded + element));
      sum[row][0] = _mm512_fmadd_ps(four, k0, sum[row][0]);
      sum[row][1] = _mm512_fmadd_ps(four, k1, sum[row][1]);
      sum[row][2] = _mm512_fmadd_ps(four, k2, sum[row][2]);
      sum[row][3] = _mm512_fmadd_ps(four, k3, sum[row][3]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < count; row++) {
    const __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(sum[row][0], sum[row][1]),
                                     _mm512_unpackhi_ps(sum[row][0], sum[row][1]));
    const __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(sum[row][2], sum[row][3]),
                                      _mm512_unpackhi_ps(sum[row][2], sum[row][3]));
    const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
    const __m512 even = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), odd = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    _mm512_store_ps(scores[row] + 16 * group, _mm512_add_ps(even, odd));
  }
}

static inline void multiply_values(const int count, const int vectors, const enum hk_kv_type type,
                                   float (*scores)[HK_STEP], int tokens, const struct values *values, int begin,
                                   const float *factors, int64_t padded, float *part) {
  __m512 sum[ROWS][VALUE_VECTORS];
#pragma GCC unroll 4
  for (int row = 0; row < count; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
      sum[row][v] = _mm512_mul_ps(_mm512_loadu_ps(part + row * padded + 16 * v), _mm512_set1_ps(factors[row]));
  for (int token = 0; token < tokens; token++) {
    __m512 value[VALUE_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) value[v] = value_of(type, values, token, begin + v);
#pragma GCC unroll 4
    for (int row = 0; row < count; row++) {
      const __m512 p = _mm512_set1_ps(scores[row][token]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) sum[row][v] = _mm512_fmadd_ps(p, value[v], sum[row][v]);
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < count; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) _mm512_storeu_ps(part + row * padded + 16 * v, sum[row][v]);
}

void hk_attention_avx512(const struct hk_attention *a, const struct hk_attention_task *task) { attend(a, task); }

void hk_merge_avx512(int64_t head_dim, float *sums, const float *part) { merge_sums(head_dim, sums, part); }

/* Activations from F32 into tiles of bytes: see bytes.h. */
#include "bytes.h"
#include "pack.h"
#include <immintrin.h>
#include <string.h>

static inline float largest_of(const __m256 *x) {
  const __m256 sizes = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 a = _mm256_max_ps(_mm256_and_ps(x[0], sizes), _mm256_and_ps(x[1], sizes));
  const __m256 b = _mm256_max_ps(_mm256_and_ps(x[2], sizes), _mm256_and_ps(x[3], sizes));
  const __m256 all = _mm256_max_ps(a, b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline int are_numbers(const __m256 *x) {
  const __m256 a = _mm256_or_ps(_mm256_cmp_ps(x[0], x[0], _CMP_UNORD_Q), _mm256_cmp_ps(x[1], x[1], _CMP_UNORD_Q));
  const __m256 b = _mm256_or_ps(_mm256_cmp_ps(x[2], x[2], _CMP_UNORD_Q), _mm256_cmp_ps(x[3], x[3], _CMP_UNORD_Q));
  return _mm256_movemask_ps(_mm256_or_ps(a, b)) == 0;
}

static inline int32_t sum_of(__m256i a, __m256i b) {
  const __m256i both = _mm256_add_epi32(a, b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 1)));
}

/* 32 integers as bytes, in their order. */
static inline __m256i as_bytes(const __m256i *q) {
  const __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* One block of a row, which is number `row` of a tile. */
static void pack_block(const float *x, uint8_t *block, int row, int tile_rows) {
  __m256 values[4];
  __m256i integers[4];
  for (int at = 0; at < 4; at++) values[at] = _mm256_loadu_ps(x + 8 * at);
  const float found = largest_of(values), largest = found < HK_SMALLEST ? 0 : found;
  const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0);
  for (int at = 0; at < 4; at++) integers[at] = _mm256_cvtps_epi32(_mm256_mul_ps(values[at], inverse));
  _mm256_storeu_si256((__m256i *)(block + row * HK_BLOCK), as_bytes(integers));
  /* What is no number in x is none in any result. */
  const float scale = are_numbers(values) ? largest / 127.0f : __builtin_nanf("");
  const int16_t sums[2] = {(int16_t)sum_of(integers[0], integers[1]), (int16_t)sum_of(integers[2], integers[3])};
  const int32_t begin = -8 * (sums[0] + sums[1]);
  memcpy(block + tile_rows * HK_BLOCK + 4 * row, &scale, 4);
  memcpy(block + tile_rows * (HK_BLOCK + 4) + 4 * row, sums, 4);
  memcpy(block + tile_rows * (HK_BLOCK + 8) + 4 * row, &begin, 4);
}

static void pack_zeros(uint8_t *block, int row, int tile_rows) {
  memset(block + row * HK_BLOCK, 0, HK_BLOCK);
  memset(block + tile_rows * HK_BLOCK + 4 * row, 0, 4);
  memset(block + tile_rows * (HK_BLOCK + 4) + 4 * row, 0, 4);
  memset(block + tile_rows * (HK_BLOCK + 8) + 4 * row, 0, 4);
}

void hk_pack_tile_as_bytes(int64_t m, const float *const *x, uint8_t *tile, int64_t begin, int64_t end) {
  const int rows = hk_tile_rows(m);
  for (int row = 0; row < rows; row++)
    for (int64_t block = begin; block < end; block++) {
      uint8_t *to = tile + block * rows * HK_BLOCK_AS_BYTES;
      if (x[row]) pack_block(x[row] + block * HK_BLOCK, to, row, rows);
      else pack_zeros(to, row, rows);
    }
}

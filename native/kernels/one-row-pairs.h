/*
 * Products of Q4_K and Q6_K in pairs by one row of x, whatever the width of vectors: the file that includes this one
 * defines
 *
 *   LANES, ints, floats, and the functions on them that are used below.
 *
 * Integers are multiplied as integers: a block of x becomes whole numbers of 16 bits with a scale, which is nearer to x
 * than BF16 is, and nothing is expanded. Sums differ from those of several rows by their rounding, so this is for
 * callers to whom one row may differ from the same row in a batch.
 *
 * A block of x: 32 integers in their order. Behind all blocks: of each, its scale and its sums.
 */
#include "prefetch.h"
#include "super-block.h"
#include <string.h>

#define VECTORS (HK_STRIP / LANES)

/* Sums of the first and the last 16 elements of a block. */
struct integer_sums {
  ints half[2][VECTORS];
};

static inline __attribute__((always_inline)) ints pair_of(const int16_t *x) {
  int32_t both;
  memcpy(&both, x, 4);
  return spread_ints(both);
}

static inline __attribute__((always_inline)) void nibbles(const uint8_t *from, const int16_t *x,
                                                          struct integer_sums *sums) {
#pragma GCC unroll 4
  for (int word = 0; word < 4; word++)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      ints bits = load_ints(from + 64 * word + 4 * LANES * v);
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; pair++, bits = shifted(bits))
        sums->half[word / 2][v] =
            dot(sums->half[word / 2][v], low_nibbles(bits), pair_of(x + 8 * word + 2 * pair));
    }
}

/* See super-block.h. */
static inline __attribute__((always_inline)) void six_bits(const uint8_t *from, const int16_t *x,
                                                           struct integer_sums *sums) {
  const __m256i four_bits = _mm256_set1_epi8(15), fifth_and_sixth = _mm256_set1_epi8(0x30);
#pragma GCC unroll 16
  for (int pair = 0; pair < 16; pair++) {
    const __m256i lows = _mm256_loadu_si256((const __m256i *)(from + 32 * (pair & 7)));
    const __m256i highs = _mm256_loadu_si256((const __m256i *)(from + HK_Q6_K_LOW + 32 * (pair & 3)));
    const __m256i low = _mm256_and_si256(pair < 8 ? lows : _mm256_srli_epi16(lows, 4), four_bits);
    const __m256i moved = pair < 4   ? _mm256_slli_epi16(highs, 4)
                          : pair < 8 ? _mm256_slli_epi16(highs, 2)
                          : pair < 12 ? highs
                                      : _mm256_srli_epi16(highs, 2);
    ints weights[VECTORS];
    interleave(_mm256_or_si256(low, _mm256_and_si256(moved, fifth_and_sixth)), weights);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++)
      sums->half[pair / 8][v] = dot(sums->half[pair / 8][v], weights[v], pair_of(x + 2 * pair));
  }
}

/* What is multiplied with the integers of a block, and with 16 more scales or minima of a super-block. */
static inline __attribute__((always_inline)) void scales_of(const enum hk_type type, const uint8_t *strip,
                                                            int64_t blocks, int64_t block, int v, floats *first,
                                                            floats *second) {
  const int8_t *integers = hk_block_scales(type, strip, blocks, block) + LANES * v;
  const uint16_t *supers = hk_super_scales(type, strip, blocks, block) + LANES * v;
  *first = times(from_bytes(integers), from_halves(supers));
  *second = times(from_bytes(integers + HK_STRIP), from_halves(type == HK_Q4_K ? supers + HK_STRIP : supers));
}

/* One strip. Unsigned weights are multiplied as numbers from 0 on; what that is too much is `shift`. */
static inline __attribute__((always_inline)) void strip_sums(const enum hk_type type, const struct hk_product *p,
                                                             const uint8_t *packed, float *to) {
  const int16_t *x = (const int16_t *)p->x;
  const struct hk_summary *summary = (const struct hk_summary *)(p->x + p->blocks * HK_BLOCK);
  floats total[VECTORS], shift[VECTORS];
  for (int v = 0; v < VECTORS; v++) total[v] = shift[v] = spread(0);
  for (int64_t block = 0; block < p->blocks; block++, summary++, x += HK_BLOCK) {
    struct integer_sums sums;
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) sums.half[0][v] = sums.half[1][v] = spread_ints(0);
    hk_prefetch(type, packed, p->blocks, block, 1);
    const uint8_t *from = packed + block * hk_integer_bytes(type);
    if (type == HK_Q6_K) six_bits(from, x, &sums);
    else nibbles(from, x, &sums);
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; v++) {
      floats first, second;
      scales_of(type, packed, p->blocks, block, v, &first, &second);
      const floats scale = spread(summary->scale);
      if (type == HK_Q6_K) {
        total[v] = fma_of(as_floats(sums.half[0][v]), times(first, scale), total[v]);
        total[v] = fma_of(as_floats(sums.half[1][v]), times(second, scale), total[v]);
        shift[v] = fma_of(first, spread(summary->first), shift[v]);
        shift[v] = fma_of(second, spread(summary->second), shift[v]);
        continue;
      }
      total[v] = fma_of(as_floats(add_ints(sums.half[0][v], sums.half[1][v])), times(first, scale), total[v]);
      shift[v] = fma_of(second, spread(summary->sum), shift[v]);
    }
  }
  const float least = type == HK_Q4_K ? 1 : 32;
  for (int v = 0; v < VECTORS; v++) store(to + LANES * v, fma_of(spread(-least), shift[v], total[v]));
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  for (int64_t strip = begin; strip < end; strip++) {
    float sums[HK_STRIP] __attribute__((aligned(64)));
    strip_sums(type, p, p->weights + strip * strip_bytes, sums);
    const int64_t left = p->n - strip * HK_STRIP;
    memcpy(hk_row(p, 0) + strip * HK_STRIP, sums, (size_t)(left < HK_STRIP ? left : HK_STRIP) * sizeof(float));
  }
}

static inline void one_row(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

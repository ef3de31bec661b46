/* Weights from the layout of model files into strips. */
#include "pack.h"
#include <immintrin.h>
#include <string.h>

int hk_can_pack(int type, int64_t k) {
  if (k <= 0) return 0;
  if (type == HK_BF16 || type == HK_F16) return 1;
  if (type == HK_Q4_K || type == HK_Q6_K) return k % (8 * HK_BLOCK) == 0;
  return (type == HK_Q4_0 || type == HK_Q8_0) && k % HK_BLOCK == 0;
}

int64_t hk_packed_bytes(int type, int64_t n, int64_t k) {
  return hk_ceil_div(n, HK_STRIP) * hk_strip_bytes((enum hk_type)type, hk_blocks(k));
}

/* Row `row` of a strip, for the tile unit. Elements behind k stay zero, as the whole strip is before. */
static void pack_row_bf16(const uint8_t *source, int64_t k, int row, uint8_t *strip) {
  for (int64_t block = 0; block * HK_BLOCK < k; block++) {
    const int64_t left = k - block * HK_BLOCK;
    const size_t elements = (size_t)(left < HK_BLOCK ? left : HK_BLOCK);
    memcpy(strip + block * HK_BLOCK_BYTES + row * 64, source + 64 * block, 2 * elements);
  }
}

/* The first and the last 16 integers of a block. */
static inline void store_nibbles(__m128i first, __m128i second, int row, uint8_t *block) {
  const __m128i low = _mm_or_si128(first, _mm_slli_epi16(_mm_srli_si128(first, 8), 4));
  const __m128i high = _mm_or_si128(second, _mm_slli_epi16(_mm_srli_si128(second, 8), 4));
  uint32_t words[4];
  _mm_storeu_si128((__m128i *)words, _mm_unpacklo_epi8(low, high));
  for (int v = 0; v < 4; v++) memcpy(block + hk_nibbles(row, 2 * v), words + v, 4);
}

void hk_pack_nibbles(const uint8_t *integers, int row, uint8_t *block) {
  store_nibbles(_mm_loadu_si128((const __m128i *)integers), _mm_loadu_si128((const __m128i *)(integers + 16)), row,
                block);
}

/* 16 bytes, whose lower halves are the first integers of a block: as fours they stay together. */
static inline void store_fours(__m128i bytes, int row, uint8_t *block) {
  uint32_t fours[4];
  _mm_storeu_si128((__m128i *)fours, bytes);
  for (int four = 0; four < 4; four++) memcpy(block + hk_fours(row, 4 * four), fours + four, 4);
}

void hk_pack_fours(const uint8_t *integers, int row, uint8_t *block) {
  const __m128i first = _mm_loadu_si128((const __m128i *)integers);
  const __m128i second = _mm_loadu_si128((const __m128i *)(integers + 16));
  store_fours(_mm_or_si128(first, _mm_slli_epi16(second, 4)), row, block);
}

/* struct block_q4_0 of ggml: an F16, then 16 bytes, whose lower halves come first. */
static void pack_row_q4_0(int in_fours, const uint8_t *source, int64_t blocks, int row, uint8_t *strip) {
  uint16_t *scales = (uint16_t *)(strip + blocks * 256) + row;
  const __m128i four_bits = _mm_set1_epi8(15);
  for (int64_t block = 0; block < blocks; block++, source += 18) {
    memcpy(scales + block * HK_STRIP, source, 2);
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(source + 2));
    if (in_fours) store_fours(bytes, row, strip + block * 256);
    else
      store_nibbles(_mm_and_si128(bytes, four_bits), _mm_and_si128(_mm_srli_epi16(bytes, 4), four_bits), row,
                    strip + block * 256);
  }
}

static void pack_row_q8_0(const uint8_t *source, int64_t blocks, int row, uint8_t *strip) {
  uint16_t *scales = (uint16_t *)(strip + blocks * 512) + row;
  for (int64_t block = 0; block < blocks; block++, source += 34) {
    memcpy(scales + block * HK_STRIP, source, 2);
    memcpy(strip + block * 512 + 32 * row, source + 2, HK_BLOCK);
  }
}

/* struct block_q8_0 of ggml, an F16 and 32 signed bytes, in fours: counted from -128, which turns the first bit. */
static void pack_fours_q8_0(const uint8_t *source, int64_t blocks, int row, uint8_t *strip) {
  uint16_t *scales = (uint16_t *)(strip + blocks * 512) + row;
  const __m128i sign = _mm_set1_epi8((char)0x80);
  for (int64_t block = 0; block < blocks; block++, source += 34) {
    memcpy(scales + block * HK_STRIP, source, 2);
    uint32_t fours[8];
    for (int half = 0; half < 2; half++) {
      const __m128i bytes = _mm_loadu_si128((const __m128i *)(source + 2 + 16 * half));
      _mm_storeu_si128((__m128i *)(fours + 4 * half), _mm_xor_si128(bytes, sign));
    }
    for (int four = 0; four < 8; four++) memcpy(strip + block * 512 + hk_fours(row, 4 * four), fours + four, 4);
  }
}

/* The same for vectors, in pairs. */
static void pack_pairs_bf16(const uint8_t *source, int64_t k, int row, uint8_t *strip) {
  const uint16_t *from = (const uint16_t *)source;
  uint32_t *to = (uint32_t *)strip + row;
  int64_t pair = 0;
  for (; 2 * pair + 1 < k; pair++) {
    uint32_t both;
    memcpy(&both, from + 2 * pair, 4);
    to[pair * HK_STRIP] = both;
  }
  if (2 * pair < k) to[pair * HK_STRIP] = from[2 * pair];
}

/* 16 rows by 16 elements of 16 bits, `stride` bytes from row to row, turned: element by element. */
static void turn_halves(const uint8_t *source, int64_t stride, __m256i *to) {
  __m256i rows[16], pairs[16], fours[16], eights[16];
#pragma GCC unroll 16
  for (int row = 0; row < 16; row++) rows[row] = _mm256_loadu_si256((const __m256i *)(source + row * stride));
  /* Words of two rows, then of four, of eight, in each half of 8 elements. */
#pragma GCC unroll 8
  for (int at = 0; at < 8; at++) {
    pairs[2 * at] = _mm256_unpacklo_epi16(rows[2 * at], rows[2 * at + 1]);
    pairs[2 * at + 1] = _mm256_unpackhi_epi16(rows[2 * at], rows[2 * at + 1]);
  }
#pragma GCC unroll 4
  for (int group = 0; group < 4; group++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m256i first = pairs[4 * group + half], second = pairs[4 * group + 2 + half];
      fours[4 * group + 2 * half] = _mm256_unpacklo_epi32(first, second);
      fours[4 * group + 2 * half + 1] = _mm256_unpackhi_epi32(first, second);
    }
#pragma GCC unroll 2
  for (int group = 0; group < 2; group++)
#pragma GCC unroll 4
    for (int at = 0; at < 4; at++) {
      const __m256i first = fours[8 * group + at], second = fours[8 * group + 4 + at];
      eights[8 * group + 2 * at] = _mm256_unpacklo_epi64(first, second);
      eights[8 * group + 2 * at + 1] = _mm256_unpackhi_epi64(first, second);
    }
#pragma GCC unroll 8
  for (int element = 0; element < 8; element++) {
    _mm256_storeu_si256(to + element, _mm256_permute2x128_si256(eights[element], eights[8 + element], 0x20));
    _mm256_storeu_si256(to + 8 + element, _mm256_permute2x128_si256(eights[element], eights[8 + element], 0x31));
  }
}

/* Some rows of F16, [element][row], into a strip that is zero where it has fewer rows or elements. */
static void pack_ones_f16(const uint8_t *source, int rows, int64_t k, uint8_t *strip) {
  int64_t element = 0;
  if (rows == HK_STRIP)
    for (; element + 16 <= k; element += 16)
      turn_halves(source + 2 * element, 2 * k, (__m256i *)(strip + 2 * HK_STRIP * element));
  for (; element < k; element++)
    for (int row = 0; row < rows; row++)
      memcpy(strip + 2 * (HK_STRIP * element + row), source + 2 * (row * k + element), 2);
}

int64_t hk_row_bytes(int type, int64_t k) {
  if (type == HK_Q4_K || type == HK_Q6_K) return hk_super_row_bytes(type, k);
  return type == HK_Q4_0 ? k / HK_BLOCK * 18 : type == HK_Q8_0 ? k / HK_BLOCK * 34 : 2 * k;
}

static void pack_row(int set, int type, const uint8_t *source, int64_t k, int row, uint8_t *strip) {
  const int64_t blocks = hk_blocks(k);
  if (hk_is_in_fours(set, (enum hk_type)type)) {
    if (type == HK_Q4_0) pack_row_q4_0(1, source, blocks, row, strip);
    else pack_fours_q8_0(source, blocks, row, strip);
  } else if (hk_is_in_rows(set)) {
    if (type == HK_BF16) pack_row_bf16(source, k, row, strip);
    else if (type == HK_Q4_0) pack_row_q4_0(0, source, blocks, row, strip);
    else pack_row_q8_0(source, blocks, row, strip);
  } else pack_pairs_bf16(source, k, row, strip);
}

int hk_pack_weights(int set, int type, int64_t n, int64_t k, const void *source, void *packed) {
  const int64_t row_bytes = hk_row_bytes(type, k), strip_bytes = hk_strip_bytes((enum hk_type)type, hk_blocks(k));
  const int is_super = type == HK_Q4_K || type == HK_Q6_K;
  uint8_t *strip = packed;
  int finite = 1;
  for (int64_t first = 0; first < n; first += HK_STRIP, strip += strip_bytes) {
    const int rows = n - first < HK_STRIP ? (int)(n - first) : HK_STRIP;
    if (rows < HK_STRIP || k % HK_BLOCK != 0 || is_super) memset(strip, 0, (size_t)strip_bytes);
    for (int row = 0; row < rows; row++) {
      const uint8_t *from = (const uint8_t *)source + (first + row) * row_bytes;
      finite &= hk_is_finite_row(type, k, from);
      if (is_super) hk_pack_super_row(set, type, from, k, row, strip);
      else if (type != HK_F16) pack_row(set, type, from, k, row, strip);
    }
    if (type == HK_F16) pack_ones_f16((const uint8_t *)source + first * row_bytes, rows, k, strip);
  }
  return finite;
}

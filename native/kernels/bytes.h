/*
 * Quantized weights in fours by activations as bytes: integers are multiplied as integers, as ggml does it. A block of
 * x becomes 32 signed bytes with a scale, and its sums are exact. Weights are counted from their least integer on, since
 * one of the two has no sign, and what that adds to a sum is where the sum begins. Sums go into the total half by half
 * or block by block, in the same order for one row and for hundreds, on AVX2 and on AVX-512:
 *
 *   Q4_0, Q8_0   total += sum of the block × (scale of w × scale of x)
 *   Q6_K         the same of each half of the block, which has a scale of its own
 *   Q4_K         the same of the block, then total −= minimum × (scale of x × sum of the bytes of x)
 *
 * A block of a tile of x, of r rows:
 *
 *   [row r][32 bytes]
 *   [row r] scales, as floats
 *   [row r][2] sums of the first and the last 16 bytes, as integers of 16 bits
 *   [row r] -8 times the sum of all, as integers of 32 bits
 */
#pragma once
#include "super-block.h"

/* Of one row of x. */
#define HK_BLOCK_AS_BYTES (HK_BLOCK + 12)
/* Integers of a block of a strip, one a byte: [four elements 8][row 16][4]. */
#define HK_BYTES_OF_BLOCK (HK_BLOCK * HK_STRIP)

/* Sums of a block that have a scale of their own. */
static inline int hk_halves(enum hk_type type) { return type == HK_Q6_K ? 2 : 1; }

/* Floats of the scales of a block of a strip: of its halves, or the scale and the minimum, 16 each. */
static inline int hk_scale_floats(enum hk_type type) { return hk_is_super(type) ? 2 * HK_STRIP : HK_STRIP; }

/* Whether a type is unpacked into bytes before several rows are multiplied by it. */
static inline int hk_is_unpacked(enum hk_type type) { return type != HK_Q8_0; }

/* Two factors of 16 bits for the sums of x, which give what the sum of a half of Q6_K begins with. */
static inline int32_t hk_begin_factors(int half) {
  const uint32_t least = (uint16_t)-32;
  return (int32_t)(half == 0 ? least : least << 16);
}

/* A block of a tile of x, from the first of the rows that are multiplied: 4 bytes a row but for the bytes. */
struct hk_x_block {
  const uint8_t *bytes, *scales, *sums, *begins;
};

static inline struct hk_x_block hk_x_block_of(const uint8_t *x, int row, int tile_rows) {
  const uint8_t *scales = x + tile_rows * HK_BLOCK + 4 * row;
  return (struct hk_x_block){x + row * HK_BLOCK, scales, scales + 4 * tile_rows, scales + 8 * tile_rows};
}

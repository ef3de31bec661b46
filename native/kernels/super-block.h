/*
 * Weights in super-blocks of 256 elements, Q4_K and Q6_K of ggml: 8 blocks, whose scales are integers times one F16. A
 * strip of them is
 *
 *   the integers of all blocks, then 32 bytes a block of scales and minima, then the F16 of all super-blocks.
 *
 *          integers of a block, rows           fours                                  a block         a super-block
 *   Q4_K   as Q4_0                             as Q4_0                                [2][row 16]     [2][row 16]
 *   Q6_K   [row 8][element 32] low bits,       low bits as Q4_0,                      [2][row 16]     [row 16]
 *          of the row 8 further the high half  [2][row 16][4] high bits: of element
 *          [row 4][element 32] high bits       e in byte e mod 8, from bit 2 (e div 8)
 *
 * Q4_K: scale × q − minimum, where a block has the scale first and then the minimum, and so a super-block. Q6_K: scale
 * × (q − 32), where a block has a scale for its first 16 elements and one for the others.
 */
#pragma once
#include "kernels.h"

#define HK_SUPER 8
#define HK_Q6_K_LOW 256

static inline int hk_is_super(enum hk_type type) { return type == HK_Q4_K || type == HK_Q6_K; }

/* Two for each row: scales and minima, or scales of either half. */
static inline const int8_t *hk_block_scales(enum hk_type type, const uint8_t *strip, int64_t blocks, int64_t block) {
  return (const int8_t *)strip + blocks * hk_integer_bytes(type) + block * 2 * HK_STRIP;
}

static inline const uint16_t *hk_super_scales(enum hk_type type, const uint8_t *strip, int64_t blocks, int64_t block) {
  const uint8_t *first = strip + blocks * (hk_integer_bytes(type) + 2 * HK_STRIP);
  return (const uint16_t *)first + block / HK_SUPER * (type == HK_Q4_K ? 2 : 1) * HK_STRIP;
}

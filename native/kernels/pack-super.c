/* Weights in super-blocks from the layout of model files into strips. */
#include "super-block.h"
#include "pack.h"
#include <string.h>

#define Q4_K_BYTES 144
#define Q6_K_BYTES 210

/* 6 bits of block `block` of struct block_q4_K: its scale and its minimum share 12 bytes with those of the others. */
static void q4_k_scales(const uint8_t *s, int block, uint8_t *scale, uint8_t *minimum) {
  if (block < 4) {
    *scale = s[block] & 63;
    *minimum = s[block + 4] & 63;
  } else {
    *scale = (uint8_t)((s[block + 4] & 15) | (s[block - 4] >> 6) << 4);
    *minimum = (uint8_t)(s[block + 4] >> 4 | (s[block] >> 6) << 4);
  }
}

/* struct block_q4_K: two F16, 12 bytes of scales, and of each 64 elements 32 bytes, whose low halves come first. */
static void q4_k_integers(const uint8_t *source, int block, uint8_t *q) {
  const uint8_t *bytes = source + 16 + 32 * (block / 2);
  for (int element = 0; element < HK_BLOCK; element++) q[element] = (bytes[element] >> 4 * (block & 1)) & 15;
}

/* struct block_q6_K: 128 bytes of low bits, 64 of high ones, 16 scales, and an F16. */
static void q6_k_integers(const uint8_t *source, int block, uint8_t *q) {
  const int half = block / 4, quarter = block % 4;
  const uint8_t *low = source + 64 * half + 32 * (quarter & 1), *high = source + 128 + 32 * half;
  for (int element = 0; element < HK_BLOCK; element++)
    q[element] = (uint8_t)(((low[element] >> (quarter < 2 ? 0 : 4)) & 15) | ((high[element] >> 2 * quarter) & 3) << 4);
}

/* Integers of the tile unit's layout are added to what was zero. */
static void rows_q6(const uint8_t *q, int row, uint8_t *block) {
  uint8_t *low = block + 32 * (row & 7), *high = block + HK_Q6_K_LOW + 32 * (row & 3);
  for (int element = 0; element < HK_BLOCK; element++) {
    low[element] |= (uint8_t)((q[element] & 15) << (row < 8 ? 0 : 4));
    high[element] |= (uint8_t)((q[element] >> 4) << 2 * (row >> 2));
  }
}

static void fours_q6(const uint8_t *q, int row, uint8_t *block) {
  uint8_t low[HK_BLOCK], high[8];
  for (int element = 0; element < HK_BLOCK; element++) low[element] = q[element] & 15;
  for (int byte = 0; byte < 8; byte++)
    high[byte] = (uint8_t)(q[byte] >> 4 | q[byte + 8] >> 4 << 2 | q[byte + 16] >> 4 << 4 | q[byte + 24] >> 4 << 6);
  hk_pack_fours(low, row, block);
  for (int half = 0; half < 2; half++) memcpy(block + HK_Q6_K_LOW + hk_fours(row, 4 * half), high + 4 * half, 4);
}

static void pack_q4_k(int set, const uint8_t *source, int64_t blocks, int row, uint8_t *strip) {
  uint8_t q[HK_BLOCK];
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t *from = source + block / HK_SUPER * Q4_K_BYTES;
    uint8_t *scales = (uint8_t *)hk_block_scales(HK_Q4_K, strip, blocks, block) + row;
    uint8_t *supers = (uint8_t *)(hk_super_scales(HK_Q4_K, strip, blocks, block) + row);
    q4_k_integers(from, block % HK_SUPER, q);
    q4_k_scales(from + 4, block % HK_SUPER, scales, scales + HK_STRIP);
    memcpy(supers, from, 2);
    memcpy(supers + 2 * HK_STRIP, from + 2, 2);
    if (hk_is_in_rows(set)) hk_pack_nibbles(q, row, strip + block * hk_integer_bytes(HK_Q4_K));
    else hk_pack_fours(q, row, strip + block * hk_integer_bytes(HK_Q4_K));
  }
}

static void pack_q6_k(int set, const uint8_t *source, int64_t blocks, int row, uint8_t *strip) {
  uint8_t q[HK_BLOCK];
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t *from = source + block / HK_SUPER * Q6_K_BYTES;
    uint8_t *scales = (uint8_t *)hk_block_scales(HK_Q6_K, strip, blocks, block) + row;
    q6_k_integers(from, block % HK_SUPER, q);
    memcpy(scales, from + 192 + 2 * (block % HK_SUPER), 1);
    memcpy(scales + HK_STRIP, from + 193 + 2 * (block % HK_SUPER), 1);
    memcpy((uint8_t *)(hk_super_scales(HK_Q6_K, strip, blocks, block) + row), from + 208, 2);
    if (hk_is_in_rows(set)) rows_q6(q, row, strip + block * hk_integer_bytes(HK_Q6_K));
    else fours_q6(q, row, strip + block * hk_integer_bytes(HK_Q6_K));
  }
}

int64_t hk_super_row_bytes(int type, int64_t k) {
  return k / (HK_SUPER * HK_BLOCK) * (type == HK_Q4_K ? Q4_K_BYTES : Q6_K_BYTES);
}

void hk_pack_super_row(int set, int type, const uint8_t *source, int64_t k, int row, uint8_t *strip) {
  if (type == HK_Q4_K) pack_q4_k(set, source, hk_blocks(k), row, strip);
  else pack_q6_k(set, source, hk_blocks(k), row, strip);
}

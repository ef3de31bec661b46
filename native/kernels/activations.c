/* Activations from F32 into tiles of BF16, or of F32. */
#include "pack.h"
#include <string.h>

int64_t hk_activation_bytes(int set, int64_t m, int64_t k) {
  const int rows = hk_tile_rows(m);
  /* Of one row, each block has a scale and sums on AMX: see product-one-row.c. */
  const int64_t summaries = m == 1 ? (int64_t)sizeof(struct hk_summary) * hk_blocks(k) : 0;
  return hk_ceil_div(m, rows) * rows * hk_blocks(k) * hk_x_block_bytes(set & HK_AS_FLOATS) + summaries;
}

/* To the nearest BF16, ties to even; a NaN stays one. */
static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

/* One row of a tile; x is NULL behind the last row. */
static void pack_row(const float *x, int64_t k, uint16_t *tile, int rows, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block++) {
    uint16_t *to = tile + block * rows * HK_BLOCK;
    const int64_t left = x ? k - block * HK_BLOCK : 0;
    if (left >= HK_BLOCK)
      for (int element = 0; element < HK_BLOCK; element++) to[element] = to_bf16(x[block * HK_BLOCK + element]);
    else
      for (int element = 0; element < HK_BLOCK; element++)
        to[element] = element < left ? to_bf16(x[block * HK_BLOCK + element]) : 0;
  }
}

/* The same without rounding. */
static void copy_row(const float *x, int64_t k, float *tile, int rows, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block++) {
    float *to = tile + block * rows * HK_BLOCK;
    const int64_t left = x ? hk_min(k - block * HK_BLOCK, HK_BLOCK) : 0;
    if (left < HK_BLOCK) memset(to, 0, HK_BLOCK * sizeof *to);
    if (left > 0) memcpy(to, x + block * HK_BLOCK, (size_t)left * sizeof *to);
  }
}

/* In pairs of BF16, beside the other rows of the tile. */
static void pack_pairs(const float *x, int64_t k, uint16_t *tile, int rows, int64_t begin, int64_t end) {
  for (int64_t pair = begin * 16; pair < end * 16; pair++) {
    uint16_t *to = tile + pair * 2 * rows;
    to[0] = x && 2 * pair < k ? to_bf16(x[2 * pair]) : 0;
    to[1] = x && 2 * pair + 1 < k ? to_bf16(x[2 * pair + 1]) : 0;
  }
}

void hk_pack_tile(int set, int64_t m, int64_t k, const float *const *x, uint16_t *tile, int64_t begin, int64_t end) {
  if (set & HK_AS_BYTES) {
    hk_pack_tile_as_bytes(m, x, (uint8_t *)tile, begin, end);
    return;
  }
#ifdef HK_WITH_AMX_BF16
  if (set == (HK_AMX_BF16 | HK_ONE_ROW_APART) && m == 1) {
    hk_pack_one_row(k, x[0], tile, begin, end);
    return;
  }
#endif
  const int rows = hk_tile_rows(m);
  if (set & HK_AS_FLOATS) {
    for (int row = 0; row < rows; row++) copy_row(x[row], k, (float *)tile + row * HK_BLOCK, rows, begin, end);
    return;
  }
  set &= ~HK_FLAGS;
#ifdef HK_WITH_AMX_BF16
  if (hk_is_in_rows(set) && rows == HK_TILE_MAX) {
    hk_pack_tile_amx(k, x, tile, begin, end);
    return;
  }
#endif
  for (int row = 0; row < rows; row++)
    if (hk_is_in_rows(set)) pack_pairs(x[row], k, tile + 2 * row, rows, begin, end);
    else pack_row(x[row], k, tile + row * HK_BLOCK, rows, begin, end);
}

void hk_pack_activations(int set, int64_t m, int64_t k, const float *x, int64_t x_stride, uint16_t *packed,
                         int64_t begin, int64_t end) {
  const int rows = hk_tile_rows(m);
  const int64_t words = rows * hk_blocks(k) * hk_x_block_bytes(set & HK_AS_FLOATS) / (int64_t)sizeof *packed;
  for (int64_t first = 0; first < m; first += rows, packed += words) {
    const float *tile[HK_TILE_MAX];
    for (int row = 0; row < rows; row++) tile[row] = first + row < m ? x + (first + row) * x_stride : NULL;
    hk_pack_tile(set, m, k, tile, packed, begin, end);
  }
}

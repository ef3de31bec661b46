/* Packing of weights, on the CPU: see layout.h. */
#include <string.h>

#include "hybrid-gemm.h"
#include "layout.h"

using namespace hybrid;

namespace {

constexpr int q8_block_bytes = 2 + quant_block;

int64_t tileBytes(int32_t type) {
  return type == HG_BF16 ? Bf16Weights::tile_bytes : type == HG_Q8_0 ? Q8Weights::tile_bytes : 0;
}

/* A tile's group of 8 columns × 32 of inner; what is beyond the ends stays zero. */
void packBf16(const uint16_t *rows, int64_t n, int64_t k, int64_t column, int64_t inner, uint8_t *to) {
  for (int lane = 0; lane < lanes; lane++) {
    const int64_t own = column + lane / 4;
    if (own >= n) continue;
    for (int value = 0; value < 8; value++) {
      const int64_t at = inner + innerOf(lane, value / 2) + value % 2;
      if (at < k) memcpy(to + lane * Bf16Weights::lane_bytes + 2 * value, rows + own * k + at, 2);
    }
  }
}

void packQ8(const uint8_t *rows, int64_t n, int64_t k, int64_t column, int64_t inner, uint8_t *to, uint8_t *scales) {
  if (inner >= k) return;
  const int64_t row_blocks = k / quant_block;
  for (int own = 0; own < group_columns && column + own < n; own++) {
    const uint8_t *block = rows + ((column + own) * row_blocks + inner / quant_block) * q8_block_bytes;
    memcpy(scales + 2 * own, block, 2);
    for (int lane = own * 4; lane < own * 4 + 4; lane++)
      for (int value = 0; value < 8; value++)
        to[lane * Q8Weights::lane_bytes + value] = block[2 + innerOf(lane, value / 2) + value % 2];
  }
}

}  // namespace

int64_t hg_packed_bytes(int32_t type, int64_t n, int64_t k) {
  const int64_t bytes = tileBytes(type);
  if (bytes == 0 || n < 1 || k < 1) return -1;
  if (type == HG_Q8_0 && k % quant_block != 0) return -1;
  return ceiling(n, strip_columns) * ceiling(k, depth) * bytes;
}

int32_t hg_pack(int32_t type, int64_t n, int64_t k, const void *rows, void *packed) {
  if (tileBytes(type) == 0) return HG_ERROR_TYPE;
  const int64_t bytes = hg_packed_bytes(type, n, k);
  if (bytes < 0) return HG_ERROR_SHAPE;
  if ((uintptr_t)packed % 128 != 0) return HG_ERROR_ALIGNMENT;
  memset(packed, 0, bytes);
  uint8_t *tile = (uint8_t *)packed;
  for (int64_t column = 0; column < n; column += strip_columns)
    for (int64_t inner = 0; inner < k; inner += depth, tile += tileBytes(type))
      for (int group = 0; group < groups; group++)
        for (int block = 0; block < blocks; block++) {
          const int64_t from_column = column + group * group_columns;
          const int64_t from_inner = inner + block * quant_block;
          const int unit = block * groups + group;
          if (type == HG_BF16)
            packBf16((const uint16_t *)rows, n, k, from_column, from_inner,
                     tile + unit * lanes * Bf16Weights::lane_bytes);
          else
            packQ8((const uint8_t *)rows, n, k, from_column, from_inner, tile + unit * lanes * Q8Weights::lane_bytes,
                   tile + Q8Weights::scales_offset + unit * group_columns * 2);
        }
  return HG_OK;
}

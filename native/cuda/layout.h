/*
 * How operands lie, so that a thread finds what an instruction wants in one aligned read and every copy into shared
 * memory is a run of whole 128-byte lines. m16n8k16 of the PTX ISA ("Matrix fragments for mma.m16n8k16") gives lane l,
 * with g = l / 4 and t = l % 4:
 *
 *   a (16 rows × 16)    registers 0 to 3: rows g, g + 8, g, g + 8 at inner 2t, 2t + 1 (0, 1) and 2t + 8, 2t + 9 (2, 3)
 *   b (16 × 8 columns)  registers 0, 1: column g at inner 2t, 2t + 1 and 2t + 8, 2t + 9
 *   c (16 × 8)          0, 1: row g, columns 2t, 2t + 1; 2, 3: row g + 8
 *
 * Weights of BF16: for 8 columns × 32 of inner, each lane has the 8 that two instructions take: 16 bytes.
 * Weights of Q8_0: the same as bytes, 8 of each lane; their scales (F16) lie behind those of the tile. 34 bytes for 32
 * weights, as in a GGUF file, whose blocks begin at even addresses, so that no read over the link would be a whole line.
 *
 *   tile    32 columns × 64 of inner: 4 groups of 8 columns, 2 depths of 32    BF16 4096 bytes, Q8_0 2048 + 128
 *   matrix  strip by strip of 32 columns; in a strip, its tiles along inner
 *
 * Activations (rounded to BF16 on the device before a product): 16 rows × 64, 4 depths of 16, 16 bytes a lane.
 * What is beyond the ends of a matrix is zero, so that kernels know no ends but those of results.
 */
#pragma once
#include <stdint.h>

namespace hybrid {

constexpr int lanes = 32;
constexpr int depth = 64;
constexpr int strip_columns = 32;
constexpr int group_columns = 8;
constexpr int groups = strip_columns / group_columns;
constexpr int quant_block = 32;
constexpr int blocks = depth / quant_block;
constexpr int band_rows = 16;
constexpr int band_bytes = band_rows * depth * 2;
/* Of weights that stay on the chip, along inner (panel_inner in solver/streaming/hybrid-product.ts). */
constexpr int panel_depth = 512;

constexpr int64_t ceiling(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

/* Where in inner the two numbers of a lane's register are, of 32 or 16: registers are 8 apart. */
#if defined(__CUDACC__)
#define HYBRID_BOTH __host__ __device__
#else
#define HYBRID_BOTH
#endif
HYBRID_BOTH constexpr int innerOf(int lane, int reg) { return lane % 4 * 2 + reg * 8; }

struct Bf16Weights {
  static constexpr int lane_bytes = 16;
  static constexpr int tile_bytes = groups * blocks * lanes * lane_bytes;
};

struct Q8Weights {
  static constexpr int lane_bytes = 8;
  static constexpr int scales_offset = groups * blocks * lanes * lane_bytes;
  static constexpr int tile_bytes = scales_offset + strip_columns * blocks * 2;
};

}  // namespace hybrid

/*
 * The product, of two ways that blocks of one launch go about it:
 *
 *   tiled        a tile of results stays in registers while weights and rows pass by, several steps of 64 on their way:
 *                each tile of rows reads the weights again
 *   stationary   a panel of weights (512 of inner) is read into shared memory and stays while all rows pass by; sums go
 *                to device memory and back for each panel after the first, always by the thread that wrote them
 *
 * Blocks below `stationary_blocks` go the second way: alpha is their share (solver/streaming/hybrid-product.ts has the
 * costs of both). A sum that comes back goes on where it ended, so a result has the same bits by either way, with any
 * M tile, and whatever rows are beside it.
 */
#pragma once
#include "device.cuh"
#include "layout.h"

namespace hybrid {

struct Operands {
  const uint8_t *weights;
  /* Bands of 16 rows, see layout.h. */
  const uint8_t *x;
  float *y;
  int64_t y_stride;
  int64_t rows, columns;
  int inner_tiles, row_tiles, column_blocks, stationary_blocks;
  /* Bytes of weights that were asked for. */
  unsigned long long *link_bytes;
};

/* Tile of rows × columns, and which part of it a warp has. */
template <int rows_, int columns_>
struct Shape {
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int warps = columns == strip_columns ? 4 : 8;
  static constexpr int threads = warps * lanes;
  static constexpr int warps_down = rows >= 128 ? 4 : rows == 64 ? 2 : 1;
  static constexpr int warps_across = warps / warps_down;
  /* Instructions of a warp: 16 rows, 8 columns each. */
  static constexpr int bands = rows / band_rows / warps_down;
  static constexpr int groups = columns / group_columns / warps_across;
  static constexpr int strips = columns / strip_columns;
  static constexpr int x_bytes = rows / band_rows * band_bytes;
  static constexpr int stages = rows == 256 ? 3 : rows == 128 ? 4 : 6;
  static constexpr int row_stages = rows >= 128 ? 2 : 3;
  static constexpr int panel_tiles = panel_depth / depth;
};

template <class Weights, class Tile>
constexpr int tiledShared() {
  return Tile::stages * (Tile::strips * Weights::tile_bytes + Tile::x_bytes);
}

template <class Weights, class Tile>
constexpr int stationaryShared() {
  return Tile::panel_tiles * Tile::strips * Weights::tile_bytes + Tile::row_stages * Tile::x_bytes;
}

/* What two instructions take of 8 columns × 32 of inner. */
struct FourRegisters {
  uint32_t of[4];
};

HYBRID_DEVICE FourRegisters weightsOf(const uint8_t *tile, int unit, int lane, Bf16Weights) {
  const uint4 own = *(const uint4 *)(tile + (unit * lanes + lane) * Bf16Weights::lane_bytes);
  return {{own.x, own.y, own.z, own.w}};
}

/* Bytes are BF16 numbers exactly, so the upper half of a float is one. */
HYBRID_DEVICE uint32_t widened(uint32_t bytes, int first) {
  const float low = (float)(int8_t)(bytes >> first), high = (float)(int8_t)(bytes >> (first + 8));
  return bitsOf(low) >> 16 | (bitsOf(high) & 0xffff0000u);
}

HYBRID_DEVICE FourRegisters weightsOf(const uint8_t *tile, int unit, int lane, Q8Weights) {
  const uint2 own = *(const uint2 *)(tile + (unit * lanes + lane) * Q8Weights::lane_bytes);
  return {{widened(own.x, 0), widened(own.x, 16), widened(own.y, 0), widened(own.y, 16)}};
}

HYBRID_DEVICE void multiplyBlock(float (&sum)[4], const uint4 (&x)[2], const FourRegisters &weights, const uint8_t *,
                                 int, int, Bf16Weights) {
  multiplyAdd(sum, x[0], weights.of[0], weights.of[1]);
  multiplyAdd(sum, x[1], weights.of[2], weights.of[3]);
}

/* Scales go on sums of a block, in F32, so that no weight is rounded. */
HYBRID_DEVICE void multiplyBlock(float (&sum)[4], const uint4 (&x)[2], const FourRegisters &weights,
                                 const uint8_t *tile, int unit, int lane, Q8Weights) {
  float part[4] = {0, 0, 0, 0};
  multiplyAdd(part, x[0], weights.of[0], weights.of[1]);
  multiplyAdd(part, x[1], weights.of[2], weights.of[3]);
  const uint32_t pair = *(const uint32_t *)(tile + Q8Weights::scales_offset + (unit * group_columns + lane % 4 * 2) * 2);
  const float scales[2] = {halfToFloat(pair & 0xffff), halfToFloat(pair >> 16)};
  for (int value = 0; value < 4; value++) sum[value] += part[value] * scales[value % 2];
}

template <class Weights, class Tile>
struct Sums {
  float of[Tile::bands][Tile::groups][4];

  /* A step of 64 along inner: `strips` are tiles of neighbouring strips, one behind the other. */
  HYBRID_DEVICE void add(const uint8_t *strips, const uint8_t *x) {
    const int lane = threadIndex() % lanes, warp = threadIndex() / lanes;
    const int first_band = warp % Tile::warps_down * Tile::bands;
    const int first_group = warp / Tile::warps_down * Tile::groups;
    // The largest tile has no registers for both at once.
#pragma unroll(Tile::rows == 256 ? 1 : blocks)
    for (int block = 0; block < blocks; block++) {
      uint4 rows[Tile::bands][2];
#pragma unroll
      for (int band = 0; band < Tile::bands; band++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          rows[band][half] = *(const uint4 *)(x + (first_band + band) * band_bytes +
                                              ((block * 2 + half) * lanes + lane) * 16);
#pragma unroll
      for (int group = 0; group < Tile::groups; group++) {
        const int own = first_group + group;
        const uint8_t *tile = strips + own / hybrid::groups * Weights::tile_bytes;
        const int unit = block * hybrid::groups + own % hybrid::groups;
        const FourRegisters weights = weightsOf(tile, unit, lane, Weights());
#pragma unroll
        for (int band = 0; band < Tile::bands; band++)
          multiplyBlock(of[band][group], rows[band], weights, tile, unit, lane, Weights());
      }
    }
  }

  HYBRID_DEVICE void clear() {
    everyValue([](float &value, int64_t, int64_t) { value = 0; });
  }

  /* What store() wrote for former panels. */
  HYBRID_DEVICE void load(const Operands &operands, int row_tile, int column_block) {
    everyValue([&](float &value, int64_t row, int64_t column) {
      row += (int64_t)row_tile * Tile::rows;
      column += (int64_t)column_block * Tile::columns;
      const bool is_there = row < operands.rows && column < operands.columns;
      value = is_there ? operands.y[row * operands.y_stride + column] : 0;
    });
  }

  HYBRID_DEVICE void store(const Operands &operands, int row_tile, int column_block) {
    everyValue([&](float &value, int64_t row, int64_t column) {
      row += (int64_t)row_tile * Tile::rows;
      column += (int64_t)column_block * Tile::columns;
      if (row < operands.rows && column < operands.columns) operands.y[row * operands.y_stride + column] = value;
    });
  }

  /* @param act on each sum of this thread, with its row and column in the tile */
  template <class Act>
  HYBRID_DEVICE void everyValue(const Act &act) {
    const int lane = threadIndex() % lanes, warp = threadIndex() / lanes;
    const int first_row = warp % Tile::warps_down * Tile::bands * band_rows + lane / 4;
    const int first_column = warp / Tile::warps_down * Tile::groups * group_columns + lane % 4 * 2;
#pragma unroll
    for (int band = 0; band < Tile::bands; band++)
#pragma unroll
      for (int group = 0; group < Tile::groups; group++)
#pragma unroll
        for (int value = 0; value < 4; value++)
          act(of[band][group][value], first_row + band * band_rows + value / 2 * 8,
              first_column + group * group_columns + value % 2);
  }
};

/* Tiles of a block's strips at one step along inner. Strips beyond the last are not read: nobody stores their sums. */
template <class Weights, class Tile>
HYBRID_DEVICE void beginWeights(const Operands &operands, int column_block, int inner_tile, uint8_t *shared) {
  constexpr int pieces = Weights::tile_bytes / 16;
  const int64_t all = (operands.columns + strip_columns - 1) / strip_columns;
  const int64_t first = (int64_t)column_block * Tile::strips;
  for (int piece = threadIndex(); piece < Tile::strips * pieces; piece += Tile::threads) {
    const int64_t strip = first + piece / pieces;
    if (strip >= all) return;
    beginCopy16(shared + piece * 16, operands.weights +
                                         (strip * operands.inner_tiles + inner_tile) * Weights::tile_bytes +
                                         piece % pieces * 16);
  }
}

template <class Tile>
HYBRID_DEVICE void beginRows(const Operands &operands, int row_tile, int inner_tile, uint8_t *shared) {
  constexpr int pieces = band_bytes / 16;
  const int64_t first = (int64_t)row_tile * (Tile::rows / band_rows);
  for (int piece = threadIndex(); piece < Tile::x_bytes / 16; piece += Tile::threads) {
    const int64_t band = first + piece / pieces;
    beginCopy16(shared + piece * 16,
                operands.x + (band * operands.inner_tiles + inner_tile) * band_bytes + piece % pieces * 16);
  }
}

template <class Weights, class Tile>
HYBRID_DEVICE void countWeights(const Operands &operands, int column_block) {
  if (threadIndex() != 0) return;
  const int64_t all = (operands.columns + strip_columns - 1) / strip_columns;
  const int64_t left = all - (int64_t)column_block * Tile::strips;
  const int64_t strips = left < Tile::strips ? left : Tile::strips;
  addTo(operands.link_bytes, (unsigned long long)(strips * operands.inner_tiles * Weights::tile_bytes));
}

template <class Weights, class Tile>
HYBRID_DEVICE void multiplyTiled(const Operands &operands, int row_tile, int column_block) {
  constexpr int weight_bytes = Tile::strips * Weights::tile_bytes;
  constexpr int stage_bytes = weight_bytes + Tile::x_bytes;
  uint8_t *shared = sharedMemory();
  const auto begin = [&](int inner_tile) {
    if (inner_tile < operands.inner_tiles) {
      uint8_t *stage = shared + inner_tile % Tile::stages * stage_bytes;
      beginWeights<Weights, Tile>(operands, column_block, inner_tile, stage);
      beginRows<Tile>(operands, row_tile, inner_tile, stage + weight_bytes);
    }
    // Empty ones, too: groups are counted.
    endCopyGroup();
  };
  Sums<Weights, Tile> sums;
  sums.clear();
  for (int ahead = 0; ahead < Tile::stages - 1; ahead++) begin(ahead);
  for (int inner_tile = 0; inner_tile < operands.inner_tiles; inner_tile++) {
    waitForCopies<Tile::stages - 2>();
    // What is begun now lies where all have computed the step before.
    blockBarrier();
    begin(inner_tile + Tile::stages - 1);
    const uint8_t *stage = shared + inner_tile % Tile::stages * stage_bytes;
    sums.add(stage, stage + weight_bytes);
  }
  sums.store(operands, row_tile, column_block);
  countWeights<Weights, Tile>(operands, column_block);
}

template <class Weights, class Tile>
HYBRID_DEVICE void multiplyStationary(const Operands &operands, int column_block) {
  constexpr int tile_bytes = Tile::strips * Weights::tile_bytes;
  uint8_t *panel = sharedMemory();
  uint8_t *stages = panel + Tile::panel_tiles * tile_bytes;
  Sums<Weights, Tile> sums;
  for (int first = 0; first < operands.inner_tiles; first += Tile::panel_tiles) {
    const int left = operands.inner_tiles - first;
    const int tiles = left < Tile::panel_tiles ? left : Tile::panel_tiles;
    const int steps = operands.row_tiles * tiles;
    const auto begin = [&](int step) {
      if (step < steps)
        beginRows<Tile>(operands, step / tiles, first + step % tiles,
                        stages + step % Tile::row_stages * Tile::x_bytes);
      endCopyGroup();
    };
    // In the group of the first rows, so that it is there with them.
    for (int tile = 0; tile < tiles; tile++)
      beginWeights<Weights, Tile>(operands, column_block, first + tile, panel + tile * tile_bytes);
    for (int ahead = 0; ahead < Tile::row_stages - 1; ahead++) begin(ahead);
    for (int step = 0; step < steps; step++) {
      waitForCopies<Tile::row_stages - 2>();
      blockBarrier();
      begin(step + Tile::row_stages - 1);
      if (step % tiles == 0) first == 0 ? sums.clear() : sums.load(operands, step / tiles, column_block);
      sums.add(panel + step % tiles * tile_bytes, stages + step % Tile::row_stages * Tile::x_bytes);
      if (step % tiles == tiles - 1) sums.store(operands, step / tiles, column_block);
    }
    // The next panel lies where this one does.
    waitForCopies<0>();
    blockBarrier();
  }
  countWeights<Weights, Tile>(operands, column_block);
}

template <class Weights, class Tile>
#if defined(__CUDACC__)
__launch_bounds__(Tile::threads)
#endif
HYBRID_KERNEL void multiplyHybrid(Operands operands) {
  const int block = blockIndex();
  if (block < operands.stationary_blocks) return multiplyStationary<Weights, Tile>(operands, block);
  const int own = block - operands.stationary_blocks;
  const int across = operands.column_blocks - operands.stationary_blocks;
  multiplyTiled<Weights, Tile>(operands, own / across, operands.stationary_blocks + own % across);
}

constexpr int rounding_threads = 256;

/* Rows of floats to bands of BF16: 16 bytes a thread. */
static HYBRID_KERNEL void roundRows(const float *x, int64_t x_stride, int64_t rows, int64_t inner, int inner_tiles,
                                    int64_t units, uint4 *bands) {
  const int64_t unit = (int64_t)blockIndex() * rounding_threads + threadIndex();
  if (unit >= units) return;
  const int lane = unit % lanes;
  const int64_t depth16 = unit / lanes % (depth / 16), tile = unit / lanes / (depth / 16);
  const int64_t from_inner = tile % inner_tiles * depth + depth16 * 16, from_row = tile / inner_tiles * band_rows;
  uint32_t pairs[4];
  for (int reg = 0; reg < 4; reg++) {
    const int64_t row = from_row + lane / 4 + reg % 2 * 8;
    uint32_t pair = 0;
    for (int value = 0; value < 2; value++) {
      const int64_t at = from_inner + innerOf(lane, reg / 2) + value;
      if (row < rows && at < inner) pair |= roundedToBf16(x[row * x_stride + at]) << (16 * value);
    }
    pairs[reg] = pair;
  }
  bands[unit] = {pairs[0], pairs[1], pairs[2], pairs[3]};
}

}  // namespace hybrid

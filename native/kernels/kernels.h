/*
 * Matrix products for CPUs with weights that were packed once, at loading.
 *
 *   y[m][n] = sum over k of x[m][k] * w[n][k]
 *
 * Words: a strip is 16 rows of the weights, which are 16 columns of the result. A block is 32 elements along k. A tile
 * is up to 16 rows of x. Sums over k go in one order, block by block, whatever else is computed beside them: a row of
 * the result has the same bits in every batch, in every part of the columns, and with any number of threads. With
 * HK_ONE_ROW_APART a row that is computed alone is excepted.
 *
 * Activations are rounded to BF16; or, for quantized weights without AMX, to bytes with a scale for each block, as ggml
 * takes them: see bytes.h. Beside F16, and beside BF16 on CPUs without products of it, they stay F32.
 * Weights reach the product in one of four orders, which the instruction set and their type decide:
 *
 *   rows   [row of the strip][element], for the tile unit. Quantized weights become BF16 with their scale.
 *   pairs  [pair along k][row of the strip][2], for vectors of BF16.
 *   fours  [four along k][row of the strip][4], for vectors of bytes, by which quantized weights are multiplied; scales
 *          are applied to the sums.
 *   ones   [element][row of the strip], F16 for vectors of F32, on every instruction set.
 *
 * Vectors of F32 take BF16 from pairs, too: it is the upper half of an F32.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Functions that are called from outside of the library. */
#define HK_API __attribute__((visibility("default")))

#define HK_STRIP 16
#define HK_BLOCK 32
#define HK_TILE_MAX 16
/* Bytes of one block of a strip as BF16. */
#define HK_BLOCK_BYTES 1024

/* Numbers of enum ggml_type. */
enum hk_type { HK_F16 = 1, HK_Q4_0 = 2, HK_Q8_0 = 8, HK_Q4_K = 12, HK_Q6_K = 14, HK_BF16 = 30 };

/* Instruction sets that a product is written for, as bits: AVX2, AVX-512 VNNI, AVX-512 BF16 and AMX, slowest first. */
enum hk_set { HK_AVX2 = 1, HK_AVX512_BF16 = 2, HK_AMX_BF16 = 4, HK_AVX512_VNNI = 8 };
/* Beside AMX, for quantized weights: one row alone may be rounded and summed otherwise, where that is faster. */
#define HK_ONE_ROW_APART 256
/* Beside a set of vectors, for quantized weights: they and activations are multiplied as bytes. */
#define HK_AS_BYTES 512
/* Beside any set, for F16 weights, and for BF16 beside AVX2 and AVX-512 VNNI: activations are not rounded. */
#define HK_AS_FLOATS 1024
#define HK_FLAGS (HK_ONE_ROW_APART | HK_AS_BYTES | HK_AS_FLOATS)

struct hk_product {
  enum hk_type type;
  /* Columns of the result, and rows. */
  int64_t n, m;
  /* Blocks along k. */
  int64_t blocks;
  /* Of weights and x nothing is asked but what ggml gives: addresses are multiples of 32. */
  const uint8_t *weights;
  /* As hk_pack_activations leaves them for this instruction set. */
  const uint16_t *x;
  float *y;
  /* Floats from one row of y to the next. */
  int64_t y_stride;
  /* Where row r of the result goes: it is row rows[r] of y. NULL: row r. */
  const int32_t *rows;
};

static inline float *hk_row(const struct hk_product *p, int64_t row) {
  return p->y + (p->rows ? p->rows[row] : row) * p->y_stride;
}

/* Computes the strips [begin, end). */
typedef void hk_product_function(const struct hk_product *product, int64_t begin, int64_t end);
hk_product_function hk_product_avx2, hk_product_avx2_bytes, hk_product_avx512_floats, hk_product_avx512_vnni,
    hk_product_avx512_bf16, hk_product_amx_bf16;
/* Quantized weights in rows, m = 1. */
hk_product_function hk_product_one_row;

/* A block of one row as integers of 16 bits: in two bytes the upper ones are -127 to 127, the lower -128 to 127. */
#define HK_INTEGER_MAX 32639.0f
/* A block of smaller numbers counts as zeros: the factor that makes them whole numbers would be infinite. */
#define HK_SMALLEST 1e-30f
struct hk_summary {
  /* Of the whole block, and of the first and the last 16 elements. */
  float scale, sum, first, second;
};

static inline int hk_is_in_rows(int set) { return set == HK_AMX_BF16; }
static inline int hk_is_in_fours(int set, enum hk_type type) {
  return !hk_is_in_rows(set) && type != HK_BF16 && type != HK_F16;
}

static inline int hk_is_by_floats(int set, enum hk_type type) {
  return type == HK_F16 || (type == HK_BF16 && (set == HK_AVX2 || set == HK_AVX512_VNNI));
}
/* Of a block of one row of packed activations, from one to the next: bytes leave some of theirs. */
static inline int64_t hk_x_block_bytes(int by_floats) { return (by_floats ? 4 : 2) * HK_BLOCK; }

static inline int64_t hk_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t hk_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Rows of a tile of x: a power of two, so that few shapes of the inner loop exist. */
static inline int hk_tile_rows(int64_t m) {
  int rows = 1;
  while (rows < m && rows < HK_TILE_MAX) rows *= 2;
  return rows;
}

/*
 * Rows of x that pass over a chunk of weights before the next chunk is taken: whole tiles, so many at most. Passes are
 * about equal, since even one that has few rows reads all weights: decoding sequences come on top of a prompt's 256.
 * Higher: weights are read and expanded less often; lower: the rows' chunk stays in the second cache. Sums of a pass lie
 * on the stack with AMX, 128 bytes a row.
 */
#define HK_PASS_MAX 320
static inline int64_t hk_pass_rows(int64_t m) {
  const int64_t passes = hk_ceil_div(m, HK_PASS_MAX);
  return hk_ceil_div(hk_ceil_div(m, passes), 2 * HK_TILE_MAX) * 2 * HK_TILE_MAX;
}

static inline int64_t hk_blocks(int64_t k) { return hk_ceil_div(k, HK_BLOCK); }

/* Bytes of a block's quantized integers, without its scales. */
static inline int64_t hk_integer_bytes(enum hk_type type) {
  if (type == HK_Q4_0 || type == HK_Q4_K) return 256;
  return type == HK_Q6_K ? 384 : type == HK_Q8_0 ? 512 : HK_BLOCK_BYTES;
}

/*
 * A strip: the integers of all blocks, then the scales of all blocks, 16 F16 each. BF16 and F16 have no scales. A block is
 *          rows                              pairs                 fours, ones
 *   F16                                                            [element 32][row 16]
 *   BF16   [row 16][element 32]              [pair 16][row 16][2]
 *   Q8_0   [row 16][element 32]                                    [four 8][row 16][4], from 0 on
 *   Q4_0   [4][row 16][2][2] bytes                                 [four 4][row 16][4], of elements e and e + 16 in the
 *          of 2 elements: see hk_nibbles                           lower and the upper half of a byte
 *
 * Q4_K and Q6_K: see super-block.h.
 */
static inline int64_t hk_strip_bytes(enum hk_type type, int64_t blocks) {
  const int64_t super_bytes = type == HK_Q4_K ? 4 * HK_STRIP : type == HK_Q6_K ? 2 * HK_STRIP : 0;
  if (super_bytes) return blocks * (hk_integer_bytes(type) + 2 * HK_STRIP) + blocks / 8 * super_bytes;
  return blocks * (hk_integer_bytes(type) + (type == HK_BF16 || type == HK_F16 ? 0 : 2 * HK_STRIP));
}

/*
 * Elements e and e + 8 of a row, for e from 0 to 7 and from 16 to 23, in rows of 4 bits: in the lower and the upper half
 * of a byte. Four bytes of a row are four elements for VPDPBUSD, twice; and turned by 4 bits for each 8 elements, their
 * words are the row as the tile unit takes it.
 */
static inline int64_t hk_nibbles(int row, int element) {
  return 64 * ((element & 7) >> 1) + 4 * row + 2 * (element & 1) + (element >> 4);
}

/* Where element e of a row is among fours. Of 4 bits e is below 16, and a half of the byte says which of two it is. */
static inline int64_t hk_fours(int row, int element) { return 64 * (element >> 2) + 4 * row + (element & 3); }

static inline const uint16_t *hk_scales(enum hk_type type, const uint8_t *strip, int64_t blocks, int64_t block) {
  return (const uint16_t *)(strip + blocks * hk_integer_bytes(type)) + block * HK_STRIP;
}

/*
 * Products with the tile unit: TDPBF16PS multiplies a block of a strip by 16 rows of x in 16 cycles.
 *
 * Weights are the left operand, [row of the strip][element], so that quantized rows become BF16 by a look-up: a row of
 * a block has only as many different values as its integers have. The sums come out as [row of the strip][row of x] and
 * are turned around when they leave.
 */
#include "expand-rows.h"

/* Blocks along k before other rows of x: higher, fewer sums leave the tile unit unfinished; lower, 32 columns of
 * weights (128 KiB as BF16) and the rows of x beside them stay in the second cache. */
#define BLOCKS_AT_ONCE 64
/* Expanded blocks of a strip that are kept: one is multiplied while the next is expanded. */
#define RING 4

struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} __attribute__((aligned(64)));

/* Tiles 0 to 3 are sums, 4 and 5 weights, 6 and 7 pairs of `width` rows of x. */
static void configure(int width) {
  struct tile_config config = {.palette = 1};
  for (int tile = 0; tile < 8; tile++) {
    config.row_bytes[tile] = (uint16_t)(tile == 4 || tile == 5 ? 64 : 4 * width);
    config.rows[tile] = 16;
  }
  _tile_loadconfig(&config);
}

/* The compiler does not know that tiles are loaded from memory that was just written. */
#define WRITTEN() __asm__ volatile("" ::: "memory")

/* Where two strips meet one or two tiles of x. */
struct part {
  /* Of each strip: expanded or packed blocks. */
  const uint16_t *w[2];
  /* Of each tile of x. */
  const uint16_t *x[2];
  /* Its first row in the result, and rows of it that are there. */
  int64_t row[2];
  int valid[2];
  const struct hk_product *product;
  /* Column of the first strip in the result. */
  int64_t column;
  __mmask16 columns[2];
  int strips, tiles, width, count;
  /* Whether the sums begin here; else they go on from y. */
  int first;
  /* Of each of the next two strips: blocks in memory; and which of their 32 lines this part asks for, block by block. */
  const uint8_t *next[2];
  int line_begin, line_end;
  /* Whether weights come from memory: each block is asked for before its turn. */
  int is_far;
};

/* Parts from which on the next strips are asked for. Lower: in the time of few parts they do not come, and what is
 * multiplied waits behind them. With fewer, blocks are asked for so many bytes before their turn. */
#define ASKING_PARTS_MIN 5
#define AHEAD_BYTES 2048

static inline __attribute__((always_inline)) void ask_ahead(const struct part *p, const uint16_t *block) {
  if (!p->is_far) return;
#pragma GCC unroll 16
  for (int line = 0; line < HK_BLOCK_BYTES / 64; line++)
    _mm_prefetch((const char *)block + AHEAD_BYTES + 64 * line, _MM_HINT_T0);
}

/* Lines of a block of two strips as BF16. */
#define LINES (2 * HK_BLOCK_BYTES / 64)

/* Asks for what comes next while the tile unit is busy: else each pair of strips would begin with waiting. */
static inline __attribute__((always_inline)) void ask_for_next(const struct part *p, int block) {
  for (int line = p->line_begin; line < p->line_end; line++)
    _mm_prefetch((const char *)p->next[line / (LINES / 2)] + block * HK_BLOCK_BYTES + line % (LINES / 2) * 64,
                 _MM_HINT_T1);
}

/* Where the sums go: a store to memory that is far away would wait for what it overwrites. */
static inline __attribute__((always_inline)) void ask_for_results(const int strips, const int tiles,
                                                                  const struct part *p) {
  for (int tile = 0; tile < tiles; tile++)
    for (int row = 0; row < p->valid[tile]; row++)
      for (int strip = 0; strip < strips; strip++)
        _mm_prefetch((const char *)(hk_row(p->product, p->row[tile] + row) + p->column + strip * HK_STRIP),
                     _MM_HINT_T1);
}

/* Sums of one strip and tile of x to y, which has them the other way around, or back. */
static void sums_out(const struct part *p, int strip, int tile, const float *sums) {
  const int64_t column = p->column + strip * HK_STRIP;
  __m512 rows[16];
  if (p->width == 16) {
    for (int row = 0; row < 16; row++) rows[row] = _mm512_load_ps(sums + 16 * row);
    hk_transpose(rows);
  } else {
    const __m512i places = _mm512_mullo_epi32(hk_counting(), _mm512_set1_epi32(p->width));
    for (int row = 0; row < p->width; row++) rows[row] = _mm512_i32gather_ps(places, sums + row, 4);
  }
  for (int row = 0; row < p->valid[tile]; row++)
    _mm512_mask_storeu_ps(hk_row(p->product, p->row[tile] + row) + column, p->columns[strip], rows[row]);
}

static void sums_in(const struct part *p, int strip, int tile, float *sums) {
  const int64_t column = p->column + strip * HK_STRIP;
  __m512 rows[16];
  for (int row = 0; row < 16; row++)
    rows[row] = row < p->valid[tile]
                    ? _mm512_maskz_loadu_ps(p->columns[strip], hk_row(p->product, p->row[tile] + row) + column)
                    : _mm512_setzero_ps();
  hk_transpose(rows);
  for (int row = 0; row < 16; row++) _mm512_store_ps(sums + 16 * row, rows[row]);
}

/* Sums begin at zero, or as y has them; the latter only with tiles of 16 rows. */
#define BEGIN(tile_register, strip, tile)                                                                              \
  if (strip < strips && tile < tiles) {                                                                                \
    if (p->first) _tile_zero(tile_register);                                                                           \
    else {                                                                                                             \
      sums_in(p, strip, tile, sums);                                                                                   \
      WRITTEN();                                                                                                       \
      _tile_loadd(tile_register, sums, 64);                                                                            \
    }                                                                                                                  \
  }
#define END(tile_register, strip, tile)                                                                                \
  if (strip < strips && tile < tiles) {                                                                                \
    _tile_stored(tile_register, sums, 4 * p->width);                                                                   \
    sums_out(p, strip, tile, sums);                                                                                    \
  }

/* Blocks that are BF16 in memory. */
static inline __attribute__((always_inline)) void multiply(const int strips, const int tiles, const struct part *p) {
  float sums[16 * 16] __attribute__((aligned(64)));
  const int64_t x_bytes = 4 * p->width, x_step = 16 * 2 * p->width;
  const uint16_t *w0 = p->w[0], *w1 = p->w[1], *x0 = p->x[0], *x1 = p->x[1];
  BEGIN(0, 0, 0) BEGIN(1, 1, 0) BEGIN(2, 0, 1) BEGIN(3, 1, 1)
  WRITTEN();
  ask_for_results(strips, tiles, p);
  for (int block = 0; block < p->count; block++) {
    ask_for_next(p, block);
    ask_ahead(p, w0);
    _tile_loadd(4, w0, 64);
    _tile_loadd(6, x0, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (strips > 1) {
      ask_ahead(p, w1);
      _tile_loadd(5, w1, 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    if (tiles > 1) {
      _tile_loadd(7, x1, x_bytes);
      _tile_dpbf16ps(2, 4, 7);
      if (strips > 1) _tile_dpbf16ps(3, 5, 7);
    }
    w0 += HK_BLOCK_BYTES / 2, w1 += HK_BLOCK_BYTES / 2, x0 += x_step, x1 += x_step;
  }
  END(0, 0, 0) END(1, 1, 0) END(2, 0, 1) END(3, 1, 1)
}

/* One tile of x by quantized blocks that are read once, from memory: each is expanded while the last is multiplied. */
static inline __attribute__((always_inline)) void multiply_stream(const enum hk_type type, const int strips,
                                                                  const struct part *p, const uint8_t *const *packed,
                                                                  int64_t blocks) {
  uint16_t w[RING][2][HK_BLOCK_BYTES / 2] __attribute__((aligned(64)));
  float sums[16 * 16] __attribute__((aligned(64)));
  const int64_t x_bytes = 4 * p->width, x_step = 16 * 2 * p->width;
  const int tiles = 1;
  const uint16_t *x = p->x[0];
  BEGIN(0, 0, 0) BEGIN(1, 1, 0)
  for (int64_t block = 0; block <= blocks; block++) {
    if (block < blocks)
      for (int strip = 0; strip < strips; strip++)
        hk_expand_rows(type, packed[strip], blocks, block, 1, w[block & (RING - 1)][strip]);
    WRITTEN();
    if (block == 0) continue;
    _tile_loadd(6, x, x_bytes);
    _tile_loadd(4, w[(block - 1) & (RING - 1)][0], 64);
    _tile_dpbf16ps(0, 4, 6);
    if (strips > 1) {
      _tile_loadd(5, w[(block - 1) & (RING - 1)][1], 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    x += x_step;
  }
  END(0, 0, 0) END(1, 1, 0)
}

static void multiply_any(const struct part *p) {
  if (p->strips == 2 && p->tiles == 2) multiply(2, 2, p);
  else if (p->strips == 2) multiply(2, 1, p);
  else if (p->tiles == 2) multiply(1, 2, p);
  else multiply(1, 1, p);
}

static inline __attribute__((always_inline)) struct part part_of(const struct hk_product *p, int64_t strip,
                                                                int64_t end) {
  const int strips = end - strip > 1 ? 2 : 1;
  return (struct part){.product = p,
                       .column = strip * HK_STRIP,
                       .columns = {hk_columns(p->n, strip), strips > 1 ? hk_columns(p->n, strip + 1) : 0},
                       .strips = strips,
                       .width = hk_tile_rows(p->m)};
}

/* Up to 16 rows of x. */
static inline __attribute__((always_inline)) void few_rows(const enum hk_type type, const struct hk_product *p,
                                                           int64_t begin, int64_t end) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  for (int64_t strip = begin; strip < end; strip += 2) {
    struct part part = part_of(p, strip, end);
    const uint8_t *packed[2] = {p->weights + strip * strip_bytes, p->weights + (strip + 1) * strip_bytes};
    part.x[0] = p->x;
    part.row[0] = 0;
    part.valid[0] = (int)p->m;
    part.tiles = 1;
    part.first = 1;
    part.count = (int)p->blocks;
    part.is_far = type == HK_BF16;
    if (type == HK_BF16) {
      part.w[0] = (const uint16_t *)packed[0], part.w[1] = (const uint16_t *)packed[1];
      multiply_any(&part);
    } else if (part.strips == 2) multiply_stream(type, 2, &part, packed, p->blocks);
    else multiply_stream(type, 1, &part, packed, p->blocks);
  }
}

static inline __attribute__((always_inline)) void many_rows(const enum hk_type type, const struct hk_product *p,
                                                            int64_t begin, int64_t end) {
  uint16_t expanded[2][BLOCKS_AT_ONCE * HK_BLOCK_BYTES / 2] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks), pass = hk_pass_rows(p->m);
  for (int64_t chunk = 0; chunk < p->blocks; chunk += BLOCKS_AT_ONCE)
    for (int64_t from = 0; from < p->m; from += pass) {
      const int64_t to = from + pass < p->m ? from + pass : p->m;
      const int count = (int)(p->blocks - chunk < BLOCKS_AT_ONCE ? p->blocks - chunk : BLOCKS_AT_ONCE);
      for (int64_t strip = begin; strip < end; strip += 2) {
        struct part part = part_of(p, strip, end);
        part.count = count;
        part.first = chunk == 0;
        for (int side = 0; side < part.strips; side++) {
          const uint8_t *packed = p->weights + (strip + side) * strip_bytes;
          part.w[side] = type == HK_BF16 ? (const uint16_t *)(packed + chunk * HK_BLOCK_BYTES) : expanded[side];
          if (type != HK_BF16) hk_expand_rows(type, packed, p->blocks, chunk, count, expanded[side]);
        }
        /* Each part asks for a share of the lines. */
        const int parts = (int)hk_ceil_div(to - from, 2 * HK_TILE_MAX), share = (LINES + parts - 1) / parts;
        const int asks = type == HK_BF16 && parts >= ASKING_PARTS_MIN && strip + 2 < end;
        part.is_far = type == HK_BF16 && parts < ASKING_PARTS_MIN;
        for (int side = 0; side < 2; side++)
          part.next[side] = p->weights + (strip + 2 + side) * strip_bytes + chunk * HK_BLOCK_BYTES;
        for (int64_t row = from; row < to;) {
          part.line_begin = part.line_end;
          part.line_end = !asks ? 0 : part.line_begin + share < LINES ? part.line_begin + share : LINES;
          for (part.tiles = 0; part.tiles < 2 && row < to; part.tiles++, row += HK_TILE_MAX) {
            part.x[part.tiles] = p->x + (row * p->blocks + chunk * HK_TILE_MAX) * HK_BLOCK;
            part.row[part.tiles] = row;
            part.valid[part.tiles] = to - row < HK_TILE_MAX ? (int)(to - row) : HK_TILE_MAX;
          }
          multiply_any(&part);
        }
      }
    }
}

#define PRODUCT(type, name)                                                                                            \
  static void name(const struct hk_product *p, int64_t begin, int64_t end) {                                           \
    if (p->m <= HK_TILE_MAX) few_rows(type, p, begin, end);                                                            \
    else many_rows(type, p, begin, end);                                                                               \
  }
PRODUCT(HK_BF16, bf16)
PRODUCT(HK_Q4_0, q4_0)
PRODUCT(HK_Q8_0, q8_0)
PRODUCT(HK_Q4_K, q4_k)
PRODUCT(HK_Q6_K, q6_k)

void hk_product_amx_bf16(const struct hk_product *p, int64_t begin, int64_t end) {
  if (begin >= end) return;
  /* ggml configures the tiles of a thread once and expects to find them so. */
  struct tile_config before;
  _tile_storeconfig(&before);
  configure(hk_tile_rows(p->m));
  if (p->type == HK_BF16) bf16(p, begin, end);
  else if (p->type == HK_Q4_0) q4_0(p, begin, end);
  else if (p->type == HK_Q8_0) q8_0(p, begin, end);
  else if (p->type == HK_Q4_K) q4_k(p, begin, end);
  else q6_k(p, begin, end);
  if (before.palette == 0) _tile_release();
  else _tile_loadconfig(&before);
}

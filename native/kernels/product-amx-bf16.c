/*
 * Products with the tile unit: TDPBF16PS multiplies a block of a strip by 16 rows of x in 16 cycles.
 *
 * Weights are the left operand, [row of the strip][element], so that quantized rows become BF16 by a look-up: a row of
 * a block has only as many different values as its integers have. The sums come out as [row of the strip][row of x] and
 * are turned around when they leave.
 */
#include "expand-rows.h"

/* Blocks along k before other rows of x: higher, fewer sums leave the tile unit unfinished; lower, the rows of x (320 of
 * 64 blocks are 1.3 MB) stay in the second cache. */
#define BLOCKS_AT_ONCE 64
/* Blocks of two strips that all rows of a pass meet before the next: 16 KiB as BF16, which stay in the first cache while
 * rows of x stream through it. Higher, they come from the second cache each time, at the rate that the rows need
 * themselves; lower, sums are put aside more often. */
#define NEAR_BLOCKS 8
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

/* Blocks of two strips that are made ready while others are multiplied: the tile unit leaves the rest of the core idle. */
struct next_blocks {
  const struct hk_product *product;
  /* Of each strip. */
  const uint8_t *packed[2];
  int64_t begin;
  int strips, count;
  /* Of each strip: where quantized blocks go as BF16; and how one does. NULL: they are BF16, and asked of the memory. */
  uint16_t *to[2];
  void (*expand)(const struct next_blocks *next, int strip, int block);
  /* Blocks, or lines of them: what is done, what of it this part does, and how much beside each block. */
  int done, end, at_once;
  /* Lines of the result that are asked for, one beside each block, for what all blocks of these strips leave there. */
  int64_t result_row, result_end;
  int result_strip, result_strips;
};

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
  /* Four tiles of sums. They begin at zero, or as they lie here; and at the end go to y, or stay here. */
  float *sums;
  int begins, ends;
  struct next_blocks *next;
  /* Whether weights come from memory: each block is asked for before its turn. */
  int is_far;
};

/* Parts from which on BF16 is asked for a chunk ahead. Lower: in the time of few parts it does not come, and what is
 * multiplied waits behind it. With fewer, blocks are asked for so many bytes before their turn. */
#define ASKING_PARTS_MIN 5
#define AHEAD_BYTES 2048
#define LINE_BYTES 64
#define LINES (HK_BLOCK_BYTES / LINE_BYTES)

static inline __attribute__((always_inline)) void ask_ahead(const struct part *p, const uint16_t *block) {
  if (!p->is_far) return;
#pragma GCC unroll 16
  for (int line = 0; line < LINES; line++)
    _mm_prefetch((const char *)block + AHEAD_BYTES + LINE_BYTES * line, _MM_HINT_T0);
}

static inline __attribute__((always_inline)) void make_ready(struct next_blocks *next) {
  for (int i = 0; i < next->at_once && next->done < next->end; i++, next->done++) {
    /* Both strips in turns: the memory gives two streams sooner than one. */
    const int strip = next->strips > 1 ? next->done & 1 : 0, at = next->strips > 1 ? next->done >> 1 : next->done;
    if (next->expand) next->expand(next, strip, at);
    else {
      const uint8_t *from = next->packed[strip] + (next->begin + at / LINES) * HK_BLOCK_BYTES;
      _mm_prefetch((const char *)from + at % LINES * LINE_BYTES, _MM_HINT_T1);
    }
  }
}

/* A store to memory that is far away waits for what it overwrites, and so many at the end would take each other's place:
 * they are asked for evenly, as long as the blocks take. */
static inline __attribute__((always_inline)) void ask_for_result(struct next_blocks *next, int64_t column) {
  if (next->result_row >= next->result_end) return;
  __builtin_prefetch(hk_row(next->product, next->result_row) + column + next->result_strip * HK_STRIP, 1);
  if (++next->result_strip < next->result_strips) return;
  next->result_strip = 0;
  next->result_row++;
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

/* Floats of a tile of sums. */
#define SUMS (HK_STRIP * HK_TILE_MAX)
#define SUMS_OF(strip, tile) (p->sums + (2 * (tile) + (strip)) * SUMS)
#define BEGIN(tile_register, strip, tile)                                                                              \
  if (strip < strips && tile < tiles) {                                                                                \
    if (p->begins) _tile_zero(tile_register);                                                                          \
    else _tile_loadd(tile_register, SUMS_OF(strip, tile), 64);                                                         \
  }
#define STORE(tile_register, strip, tile)                                                                              \
  if (strip < strips && tile < tiles) _tile_stored(tile_register, SUMS_OF(strip, tile), 4 * p->width);

static inline __attribute__((always_inline)) void all_sums_out(const int strips, const int tiles, const struct part *p) {
  for (int tile = 0; tile < tiles; tile++)
    for (int strip = 0; strip < strips; strip++) sums_out(p, strip, tile, SUMS_OF(strip, tile));
}

/* Blocks that are BF16 in memory. */
static inline __attribute__((always_inline)) void multiply(const int strips, const int tiles, const struct part *p) {
  const int64_t x_bytes = 4 * p->width, x_step = 16 * 2 * p->width;
  const uint16_t *w0 = p->w[0], *w1 = p->w[1], *x0 = p->x[0], *x1 = p->x[1];
  WRITTEN();
  BEGIN(0, 0, 0) BEGIN(1, 1, 0) BEGIN(2, 0, 1) BEGIN(3, 1, 1)
  if (p->is_far) ask_for_results(strips, tiles, p);
  for (int block = 0; block < p->count; block++) {
    if (p->next) {
      make_ready(p->next);
      ask_for_result(p->next, p->column);
    }
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
  STORE(0, 0, 0) STORE(1, 1, 0) STORE(2, 0, 1) STORE(3, 1, 1)
  WRITTEN();
  if (p->ends) all_sums_out(strips, tiles, p);
}

/* One tile of x or two by quantized blocks that are read once, from memory: each is expanded while the last is
 * multiplied, and sums stay in the tile unit until all are. */
static inline __attribute__((always_inline)) void multiply_stream(const enum hk_type type, const int strips,
                                                                  const int tiles, const struct part *p,
                                                                  const uint8_t *const *packed, int64_t blocks) {
  uint16_t w[RING][2][HK_BLOCK_BYTES / 2] __attribute__((aligned(64)));
  const int64_t x_bytes = 4 * p->width, x_step = 16 * 2 * p->width;
  const uint16_t *x0 = p->x[0], *x1 = p->x[1];
  BEGIN(0, 0, 0) BEGIN(1, 1, 0) BEGIN(2, 0, 1) BEGIN(3, 1, 1)
  for (int64_t block = 0; block <= blocks; block++) {
    if (block < blocks)
      for (int strip = 0; strip < strips; strip++)
        hk_expand_rows(type, packed[strip], blocks, block, 1, w[block & (RING - 1)][strip]);
    WRITTEN();
    if (block == 0) continue;
    _tile_loadd(6, x0, x_bytes);
    _tile_loadd(4, w[(block - 1) & (RING - 1)][0], 64);
    _tile_dpbf16ps(0, 4, 6);
    if (strips > 1) {
      _tile_loadd(5, w[(block - 1) & (RING - 1)][1], 64);
      _tile_dpbf16ps(1, 5, 6);
    }
    if (tiles > 1) {
      _tile_loadd(7, x1, x_bytes);
      _tile_dpbf16ps(2, 4, 7);
      if (strips > 1) _tile_dpbf16ps(3, 5, 7);
    }
    x0 += x_step, x1 += x_step;
  }
  STORE(0, 0, 0) STORE(1, 1, 0) STORE(2, 0, 1) STORE(3, 1, 1)
  WRITTEN();
  all_sums_out(strips, tiles, p);
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
                       .width = hk_tile_rows(p->m),
                       .begins = 1,
                       .ends = 1};
}

/* Up to 16 rows of x, or with quantized weights up to 32. */
static inline __attribute__((always_inline)) void few_rows(const enum hk_type type, const struct hk_product *p,
                                                           int64_t begin, int64_t end) {
  float sums[4 * SUMS] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  for (int64_t strip = begin; strip < end; strip += 2) {
    struct part part = part_of(p, strip, end);
    const uint8_t *packed[2] = {p->weights + strip * strip_bytes, p->weights + (strip + 1) * strip_bytes};
    part.tiles = p->m > HK_TILE_MAX ? 2 : 1;
    for (int tile = 0; tile < part.tiles; tile++) {
      part.x[tile] = p->x + tile * HK_TILE_MAX * p->blocks * HK_BLOCK;
      part.row[tile] = tile * HK_TILE_MAX;
      part.valid[tile] = (int)hk_min(HK_TILE_MAX, p->m - part.row[tile]);
    }
    part.sums = sums;
    part.count = (int)p->blocks;
    part.is_far = type == HK_BF16;
    if (type == HK_BF16) {
      part.w[0] = (const uint16_t *)packed[0], part.w[1] = (const uint16_t *)packed[1];
      multiply_any(&part);
    } else if (part.strips == 2 && part.tiles == 2) multiply_stream(type, 2, 2, &part, packed, p->blocks);
    else if (part.strips == 2) multiply_stream(type, 2, 1, &part, packed, p->blocks);
    else if (part.tiles == 2) multiply_stream(type, 1, 2, &part, packed, p->blocks);
    else multiply_stream(type, 1, 1, &part, packed, p->blocks);
  }
}

#define EXPANDER(type, name)                                                                                           \
  static void name##_block(const struct next_blocks *next, int strip, int block) {                                    \
    hk_expand_rows(type, next->packed[strip], next->product->blocks, next->begin + block, 1,                           \
                   next->to[strip] + block * HK_BLOCK_BYTES / 2);                                                      \
  }
EXPANDER(HK_Q4_0, q4_0)
EXPANDER(HK_Q8_0, q8_0)
EXPANDER(HK_Q4_K, q4_k)
EXPANDER(HK_Q6_K, q6_k)

static inline void (*expander(const enum hk_type type))(const struct next_blocks *, int, int) {
  switch (type) {
    case HK_Q4_0: return q4_0_block;
    case HK_Q8_0: return q8_0_block;
    case HK_Q4_K: return q4_k_block;
    case HK_Q6_K: return q6_k_block;
    default: return NULL;
  }
}

/* Rows of x [from, to), and blocks [begin, end) of all that they have. */
struct pass {
  int64_t from, to, begin, end;
};

/* Sums of an earlier pass over other blocks. */
static void take_sums(const struct part *part, const struct pass *pass, float *sums) {
  struct part p = *part;
  for (int64_t row = pass->from; row < pass->to; row += HK_TILE_MAX, sums += 2 * SUMS) {
    p.row[0] = row;
    p.valid[0] = (int)hk_min(HK_TILE_MAX, pass->to - row);
    for (int strip = 0; strip < p.strips; strip++) sums_in(&p, strip, 0, sums + strip * SUMS);
  }
}

/* All rows of a pass by the near blocks [block, block + part.count), while the next are made ready. */
static void near_blocks(struct part part, const struct pass *pass, int64_t block, float *sums) {
  const struct hk_product *p = part.product;
  const int parts = (int)hk_ceil_div(pass->to - pass->from, 2 * HK_TILE_MAX);
  struct next_blocks *next = part.next;
  const int work = next ? next->count * next->strips * (next->expand ? 1 : LINES) : 0;
  const int share = (int)hk_ceil_div(work, parts);
  if (next) next->done = 0, next->at_once = (int)hk_ceil_div(share, part.count);
  for (int64_t row = pass->from; row < pass->to; sums += 4 * SUMS) {
    if (next) next->end = (int)hk_min(work, next->done + share);
    part.sums = sums;
    for (part.tiles = 0; part.tiles < 2 && row < pass->to; part.tiles++, row += HK_TILE_MAX) {
      part.x[part.tiles] = p->x + (row * p->blocks + block * HK_TILE_MAX) * HK_BLOCK;
      part.row[part.tiles] = row;
      part.valid[part.tiles] = (int)hk_min(HK_TILE_MAX, pass->to - row);
    }
    multiply_any(&part);
  }
}

/* What one thread has at hand for a product. Tiles of sums are whole, also where rows are missing. */
struct room {
  uint16_t expanded[2][2][NEAR_BLOCKS * HK_BLOCK_BYTES / 2];
  float sums[2 * HK_PASS_MAX * HK_STRIP];
  /* Which of `expanded` is multiplied next, and whether it is ready. */
  int turn, is_ready;
} __attribute__((aligned(64)));

/* What is made ready while the last blocks of a pass are multiplied: the first ones of the next strips. */
static void begin_next_strips(struct next_blocks *next, const struct pass *pass, int64_t strip, int64_t strips_end) {
  const struct hk_product *p = next->product;
  const int64_t strip_bytes = hk_strip_bytes(p->type, p->blocks);
  next->strips = (int)hk_min(2, strips_end - strip);
  next->packed[0] = p->weights + strip * strip_bytes;
  next->packed[1] = next->packed[0] + strip_bytes;
  next->begin = pass->begin;
  next->count = next->strips > 0 ? (int)hk_min(NEAR_BLOCKS, pass->end - pass->begin) : 0;
}

static inline __attribute__((always_inline)) void pass_over_strips(const enum hk_type type, const struct hk_product *p,
                                                                   const struct pass *pass, int64_t strip,
                                                                   int64_t strips_end, struct room *room) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks);
  const int is_far = type == HK_BF16 && pass->to - pass->from <= 2 * HK_TILE_MAX * (ASKING_PARTS_MIN - 1);
  const int64_t near = is_far ? BLOCKS_AT_ONCE : NEAR_BLOCKS;
  const uint8_t *packed = p->weights + strip * strip_bytes;
  struct part part = part_of(p, strip, strips_end);
  struct next_blocks next = {.product = p,
                             .expand = expander(type),
                             .result_row = pass->from,
                             .result_end = pass->to,
                             .result_strips = part.strips};
  begin_next_strips(&next, pass, strip, strips_end);
  part.is_far = is_far;
  part.next = is_far ? NULL : &next;
  if (type != HK_BF16 && !room->is_ready)
    for (int side = 0; side < part.strips; side++) {
      next.to[side] = room->expanded[room->turn][side];
      for (int block = 0; block < next.count; block++) next.expand(&next, side, block);
    }
  if (pass->begin > 0) take_sums(&part, pass, room->sums);
  part.begins = pass->begin == 0;
  for (int64_t block = pass->begin; block < pass->end; block += near, part.begins = 0) {
    for (int side = 0; side < part.strips; side++)
      part.w[side] = type == HK_BF16 ? (const uint16_t *)(packed + side * strip_bytes + block * HK_BLOCK_BYTES)
                                     : room->expanded[room->turn][side];
    room->turn = !room->turn;
    for (int side = 0; side < 2; side++) next.to[side] = room->expanded[room->turn][side];
    part.count = (int)hk_min(near, pass->end - block);
    part.ends = block + near >= pass->end;
    if (part.ends) begin_next_strips(&next, pass, strip + 2, strips_end);
    else {
      next.begin = block + near;
      next.count = (int)hk_min(near, pass->end - next.begin);
    }
    near_blocks(part, pass, block, room->sums);
  }
  room->is_ready = 1;
}

static inline __attribute__((always_inline)) void many_rows(const enum hk_type type, const struct hk_product *p,
                                                            int64_t begin, int64_t end) {
  struct room room;
  const int64_t rows = hk_pass_rows(p->m);
  room.turn = 0;
  for (int64_t block = 0; block < p->blocks; block += BLOCKS_AT_ONCE)
    for (int64_t from = 0; from < p->m; from += rows) {
      const struct pass pass = {from, hk_min(from + rows, p->m), block, hk_min(block + BLOCKS_AT_ONCE, p->blocks)};
      room.is_ready = 0;
      for (int64_t strip = begin; strip < end; strip += 2) pass_over_strips(type, p, &pass, strip, end, &room);
    }
}

#define PRODUCT(type, name)                                                                                            \
  static void name(const struct hk_product *p, int64_t begin, int64_t end) {                                           \
    if (p->m <= (type == HK_BF16 ? 1 : 2) * HK_TILE_MAX) few_rows(type, p, begin, end);                                                            \
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

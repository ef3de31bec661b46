/*
 * Products with VDPBF16PS: 8 rows of x by three strips, whose 24 sums fill the registers and hide the latency.
 *
 * Three strips, a stripe, are multiplied a chunk of blocks at a time by all rows of a pass. Sums wait beside each other
 * between chunks, not in the result, whose rows are far apart.
 */
#include "expand-pairs-super.h"
#include "expand-pairs.h"

/* Higher: fewer products for each weight that is read; lower: sums are ready before they are needed again. */
#define STRIPS 3
#define ROWS 8
/* Blocks of three strips at once: 24 KiB as BF16, which the first cache holds beside rows of x. */
#define CHUNK 8
/*
 * Stripes of three strips that take turns with a chunk. Higher: rows of x are read less often; lower: their chunk and the
 * sums of all rows stay in the second cache.
 */
#define PANEL 4
/* Bytes of a pass of x up to which a stripe is taken to its end instead. Higher: x comes from the third cache. */
#define WHOLE_X_BYTES_MAX 1536 * 1024

/* Where some rows of x meet a chunk of up to three strips. */
struct part {
  /* A row of a tile of x, and what lies between its blocks. */
  const uint16_t *x;
  int64_t x_step;
  /* Of each strip: blocks as BF16, [pair 16][row 16][2], and their scales. */
  const uint16_t *w[STRIPS];
  const float *scales[STRIPS];
  int count;
  /* [row][strip][16], which begin here if `first`. */
  float *totals;
  int first;
  /* Of each strip: the blocks that come next, in memory, and which lines of each of them this part asks for. */
  const uint8_t *next[STRIPS];
  int64_t next_step;
  int line_begin, line_end;
};

/* Sums of one block go on from those of the last; or begin at zero, and are added with their scale. */
static inline __attribute__((always_inline)) void multiply(const int rows, const int strips, const int scaled,
                                                           const struct part *p) {
  __m512 sum[ROWS][STRIPS];
  const uint16_t *x = p->x, *w0 = p->w[0], *w1 = p->w[1], *w2 = p->w[2];
#pragma GCC unroll 8
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 3
    for (int strip = 0; strip < strips; strip++) {
      float *total = p->totals + (row * STRIPS + strip) * HK_STRIP;
      if (scaled && p->first) _mm512_store_ps(total, _mm512_setzero_ps());
      sum[row][strip] = scaled || p->first ? _mm512_setzero_ps() : _mm512_load_ps(total);
    }
  for (int block = 0; block < p->count; block++) {
    for (int line = p->line_begin; line < p->line_end; line++)
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++)
        _mm_prefetch((const char *)p->next[strip] + block * p->next_step + line * 64, _MM_HINT_T1);
#pragma GCC unroll 2
    for (int pair = 0; pair < 16; pair++) {
      const __m512bh first = (__m512bh)_mm512_loadu_si512(w0 + pair * 32);
      const __m512bh second = strips > 1 ? (__m512bh)_mm512_loadu_si512(w1 + pair * 32) : first;
      const __m512bh third = strips > 2 ? (__m512bh)_mm512_loadu_si512(w2 + pair * 32) : first;
#pragma GCC unroll 8
      for (int row = 0; row < rows; row++) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(((const int32_t *)(x + row * HK_BLOCK))[pair]);
        sum[row][0] = _mm512_dpbf16_ps(sum[row][0], both, first);
        if (strips > 1) sum[row][1] = _mm512_dpbf16_ps(sum[row][1], both, second);
        if (strips > 2) sum[row][2] = _mm512_dpbf16_ps(sum[row][2], both, third);
      }
    }
    if (scaled) {
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++) {
        const __m512 scale = _mm512_load_ps(p->scales[strip] + block * HK_STRIP);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) {
          float *total = p->totals + (row * STRIPS + strip) * HK_STRIP;
          _mm512_store_ps(total, _mm512_fmadd_ps(scale, sum[row][strip], _mm512_load_ps(total)));
          sum[row][strip] = _mm512_setzero_ps();
        }
      }
    }
    x += p->x_step;
    w0 += HK_BLOCK_BYTES / 2;
    w1 += HK_BLOCK_BYTES / 2;
    w2 += HK_BLOCK_BYTES / 2;
  }
  if (!scaled) {
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++)
#pragma GCC unroll 3
      for (int strip = 0; strip < strips; strip++)
        _mm512_store_ps(p->totals + (row * STRIPS + strip) * HK_STRIP, sum[row][strip]);
  }
}

static void multiply_rows(int rows, int strips, int scaled, const struct part *p) {
#define CASE(count)                                                                                                    \
  case count:                                                                                                          \
    if (strips == 3 && scaled) multiply(count, 3, 1, p);                                                               \
    else if (strips == 3) multiply(count, 3, 0, p);                                                                    \
    else if (strips == 2 && scaled) multiply(count, 2, 1, p);                                                          \
    else if (strips == 2) multiply(count, 2, 0, p);                                                                    \
    else if (scaled) multiply(count, 1, 1, p);                                                                         \
    else multiply(count, 1, 0, p);                                                                                     \
    break
  switch (rows) {
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(8);
  }
#undef CASE
}

/* Rows that are multiplied together where so many are left: of a tile, which has them even where x has no more. */
static inline int rows_of(int64_t left) { return left > 4 ? 8 : left > 2 ? 4 : left > 1 ? 2 : 1; }

/* Up to three strips, and the rows of x from `from` to `to`, which begin a tile. */
struct stripe {
  const struct hk_product *p;
  int64_t strip, from, to;
  int strips;
  /* The blocks that come next, of its first strip; NULL: nothing is asked for. */
  const uint8_t *next;
  float *totals;
};

static inline __attribute__((always_inline)) void expand(const enum hk_type type, const struct stripe *s, int64_t chunk,
                                                         int count, uint16_t (*expanded)[CHUNK * HK_BLOCK_BYTES / 2],
                                                         float (*scales)[CHUNK * HK_STRIP]) {
  const int64_t blocks = s->p->blocks, strip_bytes = hk_strip_bytes(type, blocks);
  const uint8_t *packed = s->p->weights + s->strip * strip_bytes;
  for (int side = 0; side < s->strips; side++, packed += strip_bytes)
    if (type == HK_Q4_0 || type == HK_Q8_0)
      hk_expand(type, packed, blocks, chunk, count, expanded[side], scales[side]);
    else hk_expand_super(type, packed, blocks, chunk, count, expanded[side]);
}

/* All rows by one chunk. */
static inline __attribute__((always_inline)) void multiply_chunk(const enum hk_type type, const struct stripe *s,
                                                                 struct part *part, int64_t chunk) {
  const int scaled = type == HK_Q4_0 || type == HK_Q8_0, tile_rows = hk_tile_rows(s->p->m);
  const int lines = (int)(hk_integer_bytes(type) / 64), parts = (int)hk_ceil_div(s->to - s->from, ROWS);
  part->x_step = tile_rows * HK_BLOCK;
  part->totals = s->totals;
  for (int64_t row = s->from, index = 0; row < s->to; row += ROWS, index++) {
    part->x = s->p->x + (row / tile_rows * s->p->blocks + chunk) * part->x_step + row % tile_rows * HK_BLOCK;
    part->line_begin = (int)(lines * index / parts);
    part->line_end = s->next ? (int)(lines * (index + 1) / parts) : part->line_begin;
    multiply_rows(rows_of(s->to - row), s->strips, scaled, part);
    part->totals += ROWS * STRIPS * HK_STRIP;
  }
}

static void write_rows(const struct stripe *s) {
  for (int64_t row = s->from; row < s->to; row++)
    for (int strip = 0; strip < s->strips; strip++)
      _mm512_mask_storeu_ps(hk_row(s->p, row) + (s->strip + strip) * HK_STRIP, hk_columns(s->p->n, s->strip + strip),
                            _mm512_load_ps(s->totals + ((row - s->from) * STRIPS + strip) * HK_STRIP));
}

/* One chunk of a stripe by all rows of a pass. */
static inline __attribute__((always_inline)) void take_chunk(const enum hk_type type, const struct stripe *s,
                                                             int64_t chunk) {
  uint16_t expanded[STRIPS][CHUNK * HK_BLOCK_BYTES / 2] __attribute__((aligned(64)));
  float scales[STRIPS][CHUNK * HK_STRIP] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(type, s->p->blocks), bytes = hk_integer_bytes(type);
  const uint8_t *packed = s->p->weights + s->strip * strip_bytes + chunk * bytes;
  struct part part = {.first = chunk == 0, .next_step = bytes};
  part.count = (int)hk_min(CHUNK, s->p->blocks - chunk);
  for (int side = 0; side < s->strips; side++) {
    part.w[side] = type == HK_BF16 ? (const uint16_t *)(packed + side * strip_bytes) : expanded[side];
    part.scales[side] = scales[side];
    part.next[side] = s->next ? s->next + side * strip_bytes : NULL;
  }
  if (type != HK_BF16) expand(type, s, chunk, part.count, expanded, scales);
  multiply_chunk(type, s, &part, chunk);
}

/* Some rows by up to PANEL stripes, which are from `begin` to `end`. */
static inline __attribute__((always_inline)) void take_panel(const enum hk_type type, const struct hk_product *p,
                                                             int64_t from, int64_t to, int64_t begin, int64_t end,
                                                             float (*totals)[HK_PASS_MAX * STRIPS * HK_STRIP]) {
  const int64_t strip_bytes = hk_strip_bytes(type, p->blocks), bytes = hk_integer_bytes(type);
  for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK)
    for (int64_t strip = begin, index = 0; strip < end; strip += STRIPS, index++) {
      struct stripe s = {.p = p, .strip = strip, .from = from, .to = to, .totals = totals[index]};
      s.strips = (int)hk_min(STRIPS, end - strip);
      /* The next stripe; behind the last one the next chunk, or the next panel. */
      const int is_last = strip + STRIPS >= end, ends = is_last && chunk + CHUNK >= p->blocks;
      const int64_t next = is_last && !ends ? begin : strip + STRIPS;
      const int64_t at = ends ? 0 : is_last ? chunk + CHUNK : chunk;
      if (from == 0 && next + STRIPS <= hk_ceil_div(p->n, HK_STRIP)) s.next = p->weights + next * strip_bytes + at * bytes;
      take_chunk(type, &s, chunk);
      if (chunk + CHUNK >= p->blocks) write_rows(&s);
    }
}

static inline __attribute__((always_inline)) void product(const enum hk_type type, const struct hk_product *p,
                                                          int64_t begin, int64_t end) {
  float totals[PANEL][HK_PASS_MAX * STRIPS * HK_STRIP] __attribute__((aligned(64)));
  const int64_t pass = hk_pass_rows(p->m), x_bytes = hk_min(pass, p->m) * p->blocks * HK_BLOCK * 2;
  const int64_t panel = STRIPS * (x_bytes > WHOLE_X_BYTES_MAX ? PANEL : 1);
  for (int64_t strip = begin; strip < end; strip += panel)
    for (int64_t from = 0; from < p->m; from += pass)
      take_panel(type, p, from, hk_min(from + pass, p->m), strip, hk_min(strip + panel, end), totals);
}

void hk_product_avx512_bf16(const struct hk_product *p, int64_t begin, int64_t end) {
  if (p->type == HK_BF16) product(HK_BF16, p, begin, end);
  else if (p->type == HK_Q4_0) product(HK_Q4_0, p, begin, end);
  else if (p->type == HK_Q8_0) product(HK_Q8_0, p, begin, end);
  else if (p->type == HK_Q4_K) product(HK_Q4_K, p, begin, end);
  else product(HK_Q6_K, p, begin, end);
}

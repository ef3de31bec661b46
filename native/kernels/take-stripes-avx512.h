/*
 * How stripes and rows meet: see stripe-avx512.h. The file that includes this one has defined
 *
 *   X_BLOCK_BYTES     of one row of x, and X_TILE_BLOCK_BYTES from one to the next: hk_x_block_bytes
 *   BLOCK_BYTES       of a block of a strip as it is multiplied
 *   SCALE_FLOATS_MAX  of a block of a strip
 *   is_expanded       whether weights of a type become that first; else they are multiplied where they lie
 *   expand            blocks of a stripe into such, with their scales
 *   multiply_rows     some rows by a part
 */
#pragma once

/* Rows that are multiplied together where so many are left: of a tile, which has them even where x has no more. */
static inline int rows_of(int64_t left) { return ROWS > 4 && left > 4 ? 8 : left > 2 ? 4 : left > 1 ? 2 : 1; }

/* All rows by one chunk. */
static inline __attribute__((always_inline)) void multiply_chunk(const enum hk_type type, const struct stripe *s,
                                                                 struct part *part, int64_t chunk) {
  const int lines = (int)(hk_integer_bytes(type) / 64), parts = (int)hk_ceil_div(s->to - s->from, ROWS);
  const int64_t tile_bytes = (int64_t)part->tile_rows * s->p->blocks * X_TILE_BLOCK_BYTES;
  part->x_step = part->tile_rows * X_BLOCK_BYTES;
  part->totals = s->totals;
  for (int64_t row = s->from, index = 0; row < s->to; row += ROWS, index++) {
    part->x = (const uint8_t *)s->p->x + row / part->tile_rows * tile_bytes + chunk * part->x_step;
    part->row = (int)(row % part->tile_rows);
    part->line_begin = (int)(lines * index / parts);
    part->line_end = s->next ? (int)(lines * (index + 1) / parts) : part->line_begin;
    multiply_rows(type, rows_of(s->to - row), s->strips, part);
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
  uint8_t expanded[STRIPS][CHUNK * BLOCK_BYTES] __attribute__((aligned(64)));
  float scales[STRIPS][CHUNK * SCALE_FLOATS_MAX] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(type, s->p->blocks), bytes = hk_integer_bytes(type);
  const uint8_t *packed = s->p->weights + s->strip * strip_bytes;
  struct part part = {.first = chunk == 0, .next_step = bytes, .tile_rows = hk_tile_rows(s->p->m)};
  part.count = (int)hk_min(CHUNK, s->p->blocks - chunk);
  for (int side = 0; side < s->strips; side++, packed += strip_bytes) {
    expand(type, packed, s->p->blocks, chunk, part.count, expanded[side], scales[side]);
    part.w[side] = is_expanded(type) ? expanded[side] : packed + chunk * bytes;
    part.scales[side] = scales[side];
    part.next[side] = s->next ? s->next + side * strip_bytes : NULL;
  }
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
  const int64_t pass = hk_pass_rows(p->m), x_bytes = hk_min(pass, p->m) * p->blocks * X_BLOCK_BYTES;
  const int64_t panel = STRIPS * (x_bytes > WHOLE_X_BYTES_MAX ? PANEL : 1);
  for (int64_t strip = begin; strip < end; strip += panel)
    for (int64_t from = 0; from < p->m; from += pass)
      take_panel(type, p, from, hk_min(from + pass, p->m), strip, hk_min(strip + panel, end), totals);
}

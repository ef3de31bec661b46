/*
 * Attention of a task, whatever the width of vectors: the file that includes this one defines
 *
 *   LANES, ROWS (query vectors that are computed together), floats, and the functions on them that are used below.
 */
#include "attention.h"
#include <math.h>
#include <string.h>

#define GROUPS (HK_STEP / 16)
#define VALUE_VECTORS 4

/* Sums of a query vector while its parts are computed. */
struct sums {
  float maximum, sum;
};

struct step {
  /* [group of 16 tokens][four elements][4][token][element 4]: token 4 × the third index + the second. */
  float keys[HK_STEP * HK_HEAD_MAX] __attribute__((aligned(64)));
  /* [token][element], in rows of head_dim rounded up to 16; where more query vectors need them than one takes. */
  float values[HK_STEP * HK_HEAD_MAX] __attribute__((aligned(64)));
  const uint8_t *rows[HK_STEP];
};

struct work {
  const struct hk_attention *a;
  const struct hk_attention_task *task;
  /* head_dim rounded up to 16; elements behind head_dim are zero. */
  int64_t padded;
  int queries;
  float *q, *part, *total;
  struct sums part_sums[HK_QUERIES_MAX], total_sums[HK_QUERIES_MAX];
};

/* 2^x for x ≤ 0: below the smallest normal number 0; NaN stays NaN. Right to 2e-7. */
static inline floats exp2_of(floats x) {
  const floats low = spread(-126.0f), clamped = max_of(low, x);
  const floats whole = rounded(clamped), f = sub(clamped, whole);
  floats y = spread(1.5252734e-05f);
  y = fma_of(y, f, spread(1.5403530e-04f));
  y = fma_of(y, f, spread(1.3333558e-03f));
  y = fma_of(y, f, spread(9.6181291e-03f));
  y = fma_of(y, f, spread(5.5504109e-02f));
  y = fma_of(y, f, spread(2.4022651e-01f));
  y = fma_of(y, f, spread(6.9314718e-01f));
  y = fma_of(y, f, spread(1.0f));
  return zero_where_less(x, low, with_exponent(y, whole));
}

static inline float exp2_scalar(float x) { return first_of(exp2_of(spread(x))); }

/* Vector `index` of a head; elements behind the head are zero. */
static inline __attribute__((always_inline)) floats widened(const enum hk_kv_type type, const uint8_t *head, int index,
                                                            int64_t head_dim) {
  if ((index + 1) * LANES <= head_dim) return widened_all(type, head, index);
  uint8_t some[4 * LANES] = {0};
  const int64_t size = type == HK_KV_F32 ? 4 : 2, left = head_dim - index * LANES;
  if (left > 0) memcpy(some, head + index * LANES * size, (size_t)(left * size));
  return widened_all(type, some, 0);
}

/* Values of a step, wherever they are: of each token its row, and where in it a head of whole vectors begins. */
struct values {
  const uint8_t *const *rows;
  int64_t offset;
};

static inline __attribute__((always_inline)) floats value_of(const enum hk_kv_type type, const struct values *values,
                                                             int token, int index) {
  return widened_all(type, values->rows[token] + values->offset, index);
}

/* Rows of a step. */
struct rows {
  const uint8_t *keys[HK_STEP], *values[HK_STEP];
  int count;
};

static void find_rows(const struct work *w, int64_t first, int64_t end, struct rows *rows) {
  rows->count = (int)hk_min(HK_STEP, end - first);
  for (int token = 0; token < rows->count; token++) {
    const int64_t t = first + token, row = w->task->table[t / HK_KV_BLOCK] + t % HK_KV_BLOCK;
    rows->keys[token] = w->a->keys + row * w->a->row_bytes;
    rows->values[token] = w->a->values + row * w->a->row_bytes;
  }
  /* The last group of 16 is computed whole: with some token that exists. */
  for (int token = rows->count > 0 ? rows->count : HK_STEP; token % 16 != 0; token++)
    rows->keys[token] = rows->keys[rows->count - 1];
}

/*
 * What of the step behind is asked for, into the second cache, while a head of this one is widened: for all heads, but a
 * share of its tokens. Memory is read in longer pieces so than head by head, and there is always something under way.
 */
struct ahead {
  const struct rows *rows;
  /* Tokens up to `end`, and of each the cache lines [first, last) from its row on. */
  int token, end, line, first, last;
  /* Those of one head of one token, at least. */
  int each;
};

static inline struct ahead ahead_of(const struct work *w, const struct rows *next, int head) {
  const struct hk_attention_task *t = w->task;
  const int heads = t->head_end - t->head_begin, index = head - t->head_begin;
  const int first = (int)(t->head_begin * w->a->head_bytes / 64);
  return (struct ahead){.rows = next,
                        .token = next->count * index / heads,
                        .end = next->count * (index + 1) / heads,
                        .line = first,
                        .first = first,
                        .last = (int)hk_ceil_div(t->head_end * w->a->head_bytes, 64),
                        .each = (int)hk_ceil_div(w->a->head_bytes, 64)};
}

/* The next `lines` of keys and as many of values. */
static inline __attribute__((always_inline)) void ask(struct ahead *a, int lines) {
  for (; lines > 0 && a->token < a->end; lines--) {
    _mm_prefetch((const char *)a->rows->keys[a->token] + 64 * a->line, _MM_HINT_T1);
    _mm_prefetch((const char *)a->rows->values[a->token] + 64 * a->line, _MM_HINT_T1);
    if (++a->line == a->last) a->line = a->first, a->token++;
  }
}

static inline __attribute__((always_inline)) void widen_values(const enum hk_kv_type type, const struct work *w,
                                                               const struct rows *rows, int64_t offset, float *to) {
  for (int token = 0; token < rows->count; token++, to += w->padded)
    for (int index = 0; index < w->padded / LANES; index++)
      store(to + index * LANES, widened(type, rows->values[token] + offset, index, w->a->head_dim));
}

/* Of a step what all query vectors of a KV head read: keys, and perhaps values. */
static inline __attribute__((always_inline)) void widen_step(const enum hk_kv_type type, const struct work *w,
                                                             const struct rows *rows, int64_t offset, int with_values,
                                                             struct step *step, struct ahead *ahead) {
  order_keys(type, w, rows, offset, step->keys, ahead);
  if (with_values) widen_values(type, w, rows, offset, step->values);
}

/* Sums of `count` query vectors over one step, of whose tokens each sees the first `seen`. */
static inline __attribute__((always_inline)) void attend_rows(const int count, const enum hk_kv_type type,
                                                              struct work *w, const struct step *step,
                                                              const struct values *values, int query, const int *seen) {
  float scores[ROWS][HK_STEP] __attribute__((aligned(64)));
  const int64_t padded = w->padded;
  int tokens = 0;
  for (int row = 0; row < count; row++) tokens = seen[row] > tokens ? seen[row] : tokens;
  const int groups = (tokens + 15) / 16;
  for (int group = 0; group < groups; group++)
    multiply_keys(count, w->q + query * padded, padded, step->keys + group * 16 * padded, scores, group);
  float factors[ROWS];
  for (int row = 0; row < count; row++) {
    struct sums *s = &w->part_sums[query + row];
    factors[row] = 1;
    if (seen[row] <= 0) {
      memset(scores[row], 0, sizeof scores[row]);
      continue;
    }
    floats highest = spread(-INFINITY);
    for (int at = 0; at < 16 * groups; at += LANES) {
      const floats masked = lowest_from(seen[row] - at, load(scores[row] + at));
      store(scores[row] + at, masked);
      highest = max_of(highest, masked);
    }
    const float maximum = fmaxf(s->maximum, highest_of(highest));
    floats sum = spread(0);
    for (int at = 0; at < 16 * groups; at += LANES) {
      const floats p = exp2_of(sub(load(scores[row] + at), spread(maximum)));
      store(scores[row] + at, p);
      sum = add(sum, p);
    }
    factors[row] = exp2_scalar(s->maximum - maximum);
    s->sum = fmaf(s->sum, factors[row], sum_of(sum));
    s->maximum = maximum;
  }
  float *part = w->part + query * padded;
  for (int64_t begin = 0; begin < padded; begin += VALUE_VECTORS * LANES) {
    const int vectors = (int)hk_min(VALUE_VECTORS, (padded - begin) / LANES);
#define CASE(n) case n: multiply_values(count, n, type, scores, tokens, values, (int)(begin / LANES), factors, padded, part + begin); break
    switch (vectors) { CASE(1); CASE(2); CASE(3); CASE(4); }
#undef CASE
  }
}

/* All query vectors of one KV head, which are `count` from `query` on; `first` is the position of the step. */
static inline __attribute__((always_inline)) void attend_step(const enum hk_kv_type type, struct work *w,
                                                              const struct step *step, const struct values *values,
                                                              int64_t first, int query, int count) {
  const int group = (int)(w->a->heads / w->a->kv_heads);
  for (int at = 0; at < count; at += ROWS) {
    const int rows = count - at < ROWS ? count - at : ROWS;
    int seen[ROWS], any = 0;
    for (int row = 0; row < rows; row++) {
      const int64_t left = w->task->position + (at + row) / group + 1 - first;
      seen[row] = (int)(left < 0 ? 0 : hk_min(left, HK_STEP));
      any |= seen[row];
    }
    if (!any) continue;
    if (rows == 1) attend_rows(1, type, w, step, values, query + at, seen);
#if ROWS > 2
    else if (rows == 2) attend_rows(2, type, w, step, values, query + at, seen);
    else if (rows == 3) attend_rows(3, type, w, step, values, query + at, seen);
#endif
    else attend_rows(ROWS, type, w, step, values, query + at, seen);
  }
}

static __attribute__((noinline)) void attend_widened(struct work *w, const struct step *step, int64_t first, int query,
                                                     int count) {
  const struct values values = {step->rows, 0};
  attend_step(HK_KV_F32, w, step, &values, first, query, count);
}

/* One KV head of a step by its `count` query vectors. Few of them widen values as they go, if it has whole vectors. */
static inline __attribute__((always_inline)) void attend_head(const enum hk_kv_type type, struct work *w,
                                                              struct step *step, const struct rows *rows,
                                                              struct ahead *ahead, int64_t first, int head, int count) {
  const int64_t offset = head * w->a->head_bytes;
  const int query = (head - w->task->head_begin) * count;
  const int widens = type == HK_KV_F32 || count > ROWS || w->a->head_dim != w->padded;
  widen_step(type, w, rows, offset, widens, step, ahead);
  if (widens) attend_widened(w, step, first, query, count);
  else {
    const struct values values = {rows->values, offset};
    attend_step(type, w, step, &values, first, query, count);
  }
}

/* Query vectors in the order [KV head][row][head of its group], scaled so that powers of two take the place of e's. */
static void take_queries(struct work *w) {
  const struct hk_attention *a = w->a;
  const int64_t group = a->heads / a->kv_heads;
  const float scale = (float)(1.4426950408889634 / sqrt((double)a->head_dim));
  float *to = w->q;
  memset(w->q, 0, (size_t)(w->queries * w->padded) * sizeof(float));
  for (int head = w->task->head_begin; head < w->task->head_end; head++)
    for (int row = 0; row < w->task->rows; row++)
      for (int64_t member = 0; member < group; member++, to += w->padded) {
        const float *from = a->q + (w->task->row + row) * a->q_row + (head * group + member) * a->q_head;
        for (int64_t at = 0; at < a->head_dim; at++) to[at] = from[at] * scale;
      }
}

static void begin_part(struct work *w) {
  memset(w->part, 0, (size_t)(w->queries * w->padded) * sizeof(float));
  for (int query = 0; query < w->queries; query++) w->part_sums[query] = (struct sums){-INFINITY, 0};
}

/* `sums` and `more` of one query vector become one. */
static inline void merge(int64_t length, struct sums *s, float *sums, const struct sums *m, const float *more) {
  const float maximum = fmaxf(s->maximum, m->maximum);
  const float mine = exp2_scalar(s->maximum - maximum), its = exp2_scalar(m->maximum - maximum);
  s->sum = fmaf(s->sum, mine, m->sum * its);
  s->maximum = maximum;
  for (int64_t at = 0; at < length; at++) sums[at] = fmaf(sums[at], mine, more[at] * its);
}

static void end_part(struct work *w, int is_first) {
  for (int query = 0; query < w->queries; query++) {
    float *total = w->total + query * w->padded;
    const float *part = w->part + query * w->padded;
    if (is_first) {
      memcpy(total, part, (size_t)w->padded * sizeof(float));
      w->total_sums[query] = w->part_sums[query];
    } else if (w->part_sums[query].maximum != -INFINITY)
      merge(w->padded, &w->total_sums[query], total, &w->part_sums[query], part);
  }
}

/* One row: [head][maximum, sum, element]. */
static void write_partial(const struct work *w) {
  const int64_t group = w->a->heads / w->a->kv_heads, floats_each = hk_sums_floats(w->a->head_dim);
  float *to = w->task->partial + w->task->head_begin * group * floats_each;
  for (int query = 0; query < w->queries; query++, to += floats_each) {
    to[0] = w->part_sums[query].maximum;
    to[1] = w->part_sums[query].sum;
    memcpy(to + 2, w->part + query * w->padded, (size_t)w->a->head_dim * sizeof(float));
  }
}

static void write_rows(const struct work *w) {
  const struct hk_attention *a = w->a;
  const int64_t group = a->heads / a->kv_heads;
  const float *from = w->total;
  int query = 0;
  for (int head = w->task->head_begin; head < w->task->head_end; head++)
    for (int row = 0; row < w->task->rows; row++)
      for (int64_t member = 0; member < group; member++, query++, from += w->padded) {
        float *to = a->y + (w->task->row + row) * a->y_row + (head * group + member) * a->head_dim;
        const float share = 1 / w->total_sums[query].sum;
        for (int64_t at = 0; at < a->head_dim; at++) to[at] = from[at] * share;
      }
}

static void attend_part(struct work *w, int64_t part, struct step *step) {
  const struct hk_attention_task *task = w->task;
  const int64_t end = hk_min((part + 1) * HK_PART, task->position + task->rows);
  const int queries = w->queries / (task->head_end - task->head_begin);
  struct rows rows[2];
  int side = 0;
  find_rows(w, part * HK_PART, end, &rows[side]);
  begin_part(w);
  for (int64_t first = part * HK_PART; first < end; first += HK_STEP, side ^= 1) {
    rows[side ^ 1].count = 0;
    if (first + HK_STEP < end) find_rows(w, first + HK_STEP, end, &rows[side ^ 1]);
    for (int head = task->head_begin; head < task->head_end; head++) {
      struct ahead ahead = ahead_of(w, &rows[side ^ 1], head);
#define CASE(type) case type: attend_head(type, w, step, &rows[side], &ahead, first, head, queries); break
      switch (w->a->type) { CASE(HK_KV_F32); CASE(HK_KV_F16); CASE(HK_KV_Q8_0); }
#undef CASE
    }
  }
}

static void attend(const struct hk_attention *a, const struct hk_attention_task *task) {
  const int64_t padded = (a->head_dim + 15) / 16 * 16;
  const int queries = (int)((task->head_end - task->head_begin) * task->rows * (a->heads / a->kv_heads));
  struct step step;
  float memory[3][queries * padded] __attribute__((aligned(64)));
  struct work w = {.a = a, .task = task, .padded = padded, .queries = queries};
  w.q = memory[0], w.part = memory[1], w.total = memory[2];
  for (int token = 0; token < HK_STEP; token++) step.rows[token] = (const uint8_t *)(step.values + token * padded);
  take_queries(&w);
  for (int64_t part = task->part_begin; part < task->part_end; part++) {
    attend_part(&w, part, &step);
    if (!task->partial) end_part(&w, part == 0);
  }
  if (task->partial) write_partial(&w);
  else write_rows(&w);
}

static void merge_sums(int64_t head_dim, float *sums, const float *part) {
  struct sums s = {sums[0], sums[1]};
  const struct sums m = {part[0], part[1]};
  merge(head_dim, &s, sums + 2, &m, part + 2);
  sums[0] = s.maximum, sums[1] = s.sum;
}

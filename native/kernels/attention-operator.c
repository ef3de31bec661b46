/*
 * Attention of a whole batch as one operator of a ggml graph (GGML_OP_CUSTOM), which all threads of its pool call
 * together. What is to be computed stands in a plan, an input of the graph, so that a graph serves every batch with as
 * many rows.
 *
 * Threads take one task after another from the plan. Where a sequence has one row, its parts are tasks of their own,
 * whose sums the thread that ends the last of them adds up, in the order of parts. Else a task is some rows and a head.
 */
#include "attention.h"
#include "dispatch.h"
#include "ggml-tensor.h"
#include <string.h>

/* Words of a plan: this, its segments, and then the block tables of all of them. */
struct plan {
  /* The next task, and threads that found none any more: zero before and after. */
  int32_t next, finished;
  int32_t segments;
  /* Rows of all segments. Those behind them only pad the batch and become zero. */
  int32_t rows;
};

struct segment {
  /* The first row, rows, and the first row's position in its sequence. */
  int32_t row, rows, position;
  /* Words from the plan's begin to the block table. */
  int32_t table;
  /* The first of its sums behind the result, one for each part; −1: it has more than one row, or one part. */
  int32_t partial;
  /* Tasks that are done: zero before and after. */
  int32_t done;
};

HK_API int hk_attention_part_tokens(void) { return HK_PART; }

/* Floats that the sums of one part take, behind the rows of the result. */
HK_API int64_t hk_attention_partial_floats(int64_t heads, int64_t head_dim) { return heads * hk_sums_floats(head_dim); }

HK_API int hk_can_attend(int set, int type, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  if (!(hk_sets() & set) || heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0) return 0;
  if (heads / kv_heads > HK_QUERIES_MAX || head_dim <= 0 || head_dim > HK_HEAD_MAX) return 0;
  if (type == HK_KV_Q8_0) return head_dim % 32 == 0;
  return type == HK_KV_F16 || type == HK_KV_F32;
}

static int64_t parts_of(const struct segment *s) {
  return hk_ceil_div((int64_t)s->position + s->rows, HK_PART);
}

/* How a batch is cut into tasks: for speed alone, the result has the same bits. */
struct cut {
  int64_t rows_max, heads_max;
};

static int64_t tasks_of(const struct segment *s, const struct cut *cut, int64_t kv_heads) {
  if (s->rows > 1) return hk_ceil_div(s->rows, cut->rows_max) * kv_heads;
  return parts_of(s) * hk_ceil_div(kv_heads, cut->heads_max);
}

/* Rows of one sequence share what is read of its keys; heads of one row of keys share pages and cache lines. */
static struct cut cut_for(const struct plan *plan, const struct segment *segments, const struct hk_attention *a,
                          int threads) {
  const int64_t group = a->heads / a->kv_heads;
  struct cut cut = {.rows_max = HK_QUERIES_MAX / group, .heads_max = HK_QUERIES_MAX / group};
  int64_t tasks = 0;
  for (int index = 0; index < plan->segments; index++) tasks += tasks_of(&segments[index], &cut, a->kv_heads);
  /* Eight tasks a thread: what one thread takes longer than another is an eighth of its work at most. */
  const int64_t wanted = 8 * (int64_t)threads, more = threads > 1 && tasks > 0 ? hk_ceil_div(wanted, tasks) : 1;
  cut.heads_max = hk_ceil_div(hk_min(cut.heads_max, a->kv_heads), more);
  if (more > 1) cut.rows_max = hk_ceil_div(cut.rows_max, more);
  return cut;
}

struct batch {
  struct hk_attention a;
  int32_t *words;
  const struct segment *segments;
  struct cut cut;
  float *partials;
  hk_attention_function *attend;
  hk_merge_function *merge;
};

static void write_sums(const struct batch *b, const struct segment *s, int64_t parts) {
  const struct hk_attention *a = &b->a;
  const int64_t each = hk_sums_floats(a->head_dim), stride = a->heads * each;
  float *first = b->partials + s->partial * stride;
  for (int64_t head = 0; head < a->heads; head++, first += each) {
    for (int64_t part = 1; part < parts; part++) b->merge(a->head_dim, first, first + part * stride);
    float *to = a->y + s->row * a->y_row + head * a->head_dim;
    const float share = 1 / first[1];
    for (int64_t at = 0; at < a->head_dim; at++) to[at] = first[2 + at] * share;
  }
}

/* Later rows, which see more, come first: what is left at the end is short. */
static void run_task(const struct batch *b, struct segment *s, int64_t task, int64_t tasks) {
  const struct hk_attention *a = &b->a;
  struct hk_attention_task t = {.table = b->words + s->table, .position = s->position, .row = s->row, .rows = 1};
  if (s->rows > 1) {
    const int64_t first = (tasks - 1 - task) / a->kv_heads * b->cut.rows_max;
    t.rows = (int)hk_min(b->cut.rows_max, s->rows - first);
    t.position += first, t.row += first;
    t.head_begin = (int)(task % a->kv_heads), t.head_end = t.head_begin + 1;
    t.part_end = hk_ceil_div(t.position + t.rows, HK_PART);
    b->attend(a, &t);
    return;
  }
  const int64_t ranges = hk_ceil_div(a->kv_heads, b->cut.heads_max), parts = parts_of(s);
  t.head_begin = (int)(task % ranges * b->cut.heads_max);
  t.head_end = (int)hk_min(t.head_begin + b->cut.heads_max, a->kv_heads);
  t.part_begin = task / ranges, t.part_end = t.part_begin + 1;
  if (parts > 1)
    t.partial = b->partials + (s->partial + t.part_begin) * a->heads * hk_sums_floats(a->head_dim);
  b->attend(a, &t);
  if (parts == 1 || __atomic_add_fetch(&s->done, 1, __ATOMIC_ACQ_REL) < tasks) return;
  write_sums(b, s, parts);
  s->done = 0;
}

static void run_tasks(const struct batch *b, struct plan *plan, struct segment *segments) {
  int64_t begin = 0, tasks = 0;
  int index = plan->segments - 1;
  if (index >= 0) tasks = tasks_of(&segments[index], &b->cut, b->a.kv_heads);
  for (;;) {
    const int64_t task = __atomic_fetch_add(&plan->next, 1, __ATOMIC_RELAXED);
    while (index >= 0 && task >= begin + tasks) {
      begin += tasks;
      if (--index >= 0) tasks = tasks_of(&segments[index], &b->cut, b->a.kv_heads);
    }
    if (index < 0) return;
    run_task(b, &segments[index], task - begin, tasks);
  }
}

/*
 * dst: F32 [heads × head_dim, rows], and behind the rows of the batch the sums of parts.
 * src 0: queries, F32 [head_dim, heads, rows]; src 1 and 2: keys and values, [KV heads × head_dim, KV rows];
 * src 3: the plan, I32.
 */
HK_API void hk_attend_operator(struct tensor *dst, int thread, int threads, void *set) {
  const struct tensor *q = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
  struct plan *plan = dst->src[3]->data;
  struct segment *segments = (struct segment *)(plan + 1);
  const int64_t width = dst->ne[0];
  struct batch b = {.words = dst->src[3]->data, .segments = segments};
  b.a = (struct hk_attention){.type = (enum hk_kv_type)keys->type,
                              .heads = q->ne[1],
                              .kv_heads = keys->ne[0] / q->ne[0],
                              .head_dim = q->ne[0],
                              .keys = keys->data,
                              .values = values->data,
                              .row_bytes = (int64_t)keys->nb[1],
                              .head_bytes = (int64_t)keys->nb[1] / (keys->ne[0] / q->ne[0]),
                              .q = q->data,
                              .q_row = (int64_t)(q->nb[2] / sizeof(float)),
                              .q_head = (int64_t)(q->nb[1] / sizeof(float)),
                              .y = dst->data,
                              .y_row = width};
  b.partials = (float *)dst->data + q->ne[2] * width;
  const int wide = (int)(intptr_t)set != HK_AVX2;
#ifdef HK_WITH_AVX512_VNNI
  b.attend = wide ? hk_attention_avx512 : hk_attention_avx2;
  b.merge = wide ? hk_merge_avx512 : hk_merge_avx2;
#else
  (void)wide;
  b.attend = hk_attention_avx2;
  b.merge = hk_merge_avx2;
#endif
  b.cut = cut_for(plan, segments, &b.a, threads);
  if (thread == 0) memset(b.a.y + plan->rows * width, 0, (size_t)((q->ne[2] - plan->rows) * width) * sizeof(float));
  run_tasks(&b, plan, segments);
  /* The plan serves every layer of the graph. */
  if (__atomic_add_fetch(&plan->finished, 1, __ATOMIC_ACQ_REL) < threads) return;
  plan->next = 0;
  plan->finished = 0;
}

/*
 * Products of a mixture of experts as operators of a ggml graph: each row of x is multiplied by the matrices of the
 * experts that were chosen for it. What one expert has to multiply is taken together, as the rows of one product, so
 * that its weights are read once. Rows have the same bits as alone.
 *
 * A pair is a row of the batch and one of its experts: number row * used + slot, which is a row of the result.
 */
#include "dispatch.h"
#include "ggml-tensor.h"
#include "pack.h"
#include <string.h>

/* Pairs by expert: those of expert e are pairs[begins[e]] to pairs[begins[e + 1] - 1], in the order of rows. */
struct groups {
  int64_t experts;
  const int32_t *begins, *pairs;
};

static struct groups groups_of(const struct tensor *groups, int64_t experts) {
  const int32_t *words = groups->data;
  return (struct groups){.experts = experts, .begins = words, .pairs = words + experts + 1};
}

static int32_t expert_of(const struct tensor *ids, int64_t slot, int64_t row) {
  return *(const int32_t *)((const char *)ids->data + slot * (int64_t)ids->nb[0] + row * (int64_t)ids->nb[1]);
}

/* dst: I32 [experts + 1 + pairs]; src 0: I32 [used, rows], the experts of each row. The first thread computes alone. */
HK_API void hk_group_operator(struct tensor *dst, int thread, int threads, void *set) {
  (void)threads, (void)set;
  if (thread != 0) return;
  const struct tensor *ids = dst->src[0];
  const int64_t used = ids->ne[0], rows = ids->ne[1], experts = dst->ne[0] - 1 - used * rows;
  int32_t *begins = dst->data, *pairs = begins + experts + 1;
  memset(begins, 0, (size_t)(experts + 1) * sizeof *begins);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t slot = 0; slot < used; slot++) begins[expert_of(ids, slot, row) + 1]++;
  for (int64_t expert = 0; expert < experts; expert++) begins[expert + 1] += begins[expert];
  for (int64_t row = 0; row < rows; row++)
    for (int64_t slot = 0; slot < used; slot++)
      pairs[begins[expert_of(ids, slot, row)]++] = (int32_t)(row * used + slot);
  /* Each is where the next begins now. */
  memmove(begins + 1, begins, (size_t)experts * sizeof *begins);
  begins[0] = 0;
}

/* Of the pairs of one expert. */
static int64_t group_bytes(int set, int64_t m, int64_t k) {
  return m > 0 ? hk_ceil_div(hk_activation_bytes(set, m, k), 64) * 64 : 0;
}

/* Bytes that suffice for packed activations of so many pairs, however they are divided among experts. */
HK_API int64_t hk_expert_activation_bytes(int set, int64_t pairs, int64_t experts, int64_t k) {
  const int64_t row = hk_blocks(k) * hk_x_block_bytes(set & HK_AS_FLOATS), groups = pairs < experts ? pairs : experts;
  const int64_t padding = pairs < (HK_TILE_MAX - 1) * groups ? pairs : (HK_TILE_MAX - 1) * groups;
  return (pairs + padding) * row + groups * 64;
}

/*
 * dst: bytes, the packed activations of one expert after the other; src 0: x, F32 [k, 1 or used, rows]; src 1: what
 * hk_group_operator made; src 2: a tensor with the experts' matrices, for their number. The user's data is the set,
 * as hk_set_for gave it.
 */
HK_API void hk_pack_experts_operator(struct tensor *dst, int thread, int threads, void *set_data) {
  const int set = (int)(intptr_t)set_data;
  const struct tensor *x = dst->src[0];
  const struct groups g = groups_of(dst->src[1], dst->src[2]->ne[2]);
  const int64_t k = x->ne[0], blocks = hk_blocks(k), used = g.begins[g.experts] / x->ne[2];
  const int64_t begin = blocks * thread / threads, end = blocks * (thread + 1) / threads;
  uint8_t *group = dst->data;
  for (int64_t expert = 0; expert < g.experts; expert++) {
    const int32_t *pairs = g.pairs + g.begins[expert];
    const int64_t m = g.begins[expert + 1] - g.begins[expert];
    const int rows = hk_tile_rows(m);
    uint8_t *tile = group;
    for (int64_t first = 0; first < m; first += rows, tile += rows * blocks * hk_x_block_bytes(set & HK_AS_FLOATS)) {
      const float *from[HK_TILE_MAX];
      for (int row = 0; row < rows; row++) {
        const int64_t pair = first + row < m ? pairs[first + row] : 0;
        const int64_t slot = x->ne[1] > 1 ? pair % used : 0;
        const char *at = (const char *)x->data + slot * (int64_t)x->nb[1] + pair / used * (int64_t)x->nb[2];
        from[row] = first + row < m ? (const float *)at : NULL;
      }
      hk_pack_tile(set, m, k, from, (uint16_t *)tile, begin, end);
    }
    group += group_bytes(set, m, k);
  }
}

/*
 * About what two strips take with m rows, so that threads have equal shares: weights are read, or expanded, once, which
 * takes as long as four tiles of rows, or as four rows by vectors.
 */
static int64_t cost_of(int set, int64_t m) {
  return 4 + (!(set & HK_AS_FLOATS) && hk_is_in_rows(set & ~HK_FLAGS) ? hk_ceil_div(m, HK_TILE_MAX) : m);
}

/* The first unit of `each` that begins at `cost` or later, where the first of all begins at `base`. */
static int64_t first_unit(int64_t cost, int64_t base, int64_t each, int64_t units) {
  const int64_t unit = cost <= base ? 0 : hk_ceil_div(cost - base, each);
  return unit < units ? unit : units;
}

/*
 * dst: F32 [n, used, rows]; src 0: packed weights [k, n, experts]; src 1: what hk_pack_experts_operator made, for the
 * same set; src 2: what hk_group_operator made.
 */
HK_API void hk_multiply_experts_operator(struct tensor *dst, int thread, int threads, void *set_data) {
  const struct tensor *w = dst->src[0];
  const int set = (int)(intptr_t)set_data;
  const struct groups g = groups_of(dst->src[2], w->ne[2]);
  const int64_t k = w->ne[0], n = w->ne[1], strips = hk_ceil_div(n, HK_STRIP), units = hk_ceil_div(strips, 2);
  const int64_t plane_bytes = hk_packed_bytes(w->type, n, k);
  int64_t total = 0, base = 0;
  for (int64_t expert = 0; expert < g.experts; expert++) {
    const int64_t m = g.begins[expert + 1] - g.begins[expert];
    if (m > 0) total += units * cost_of(set, m);
  }
  const int64_t from = total * thread / threads, to = total * (thread + 1) / threads;
  const uint8_t *group = dst->src[1]->data;
  for (int64_t expert = 0; expert < g.experts; expert++) {
    const int64_t m = g.begins[expert + 1] - g.begins[expert];
    if (m == 0) continue;
    const int64_t each = cost_of(set, m);
    const int64_t begin = 2 * first_unit(from, base, each, units), end = 2 * first_unit(to, base, each, units);
    const struct hk_product product = {.type = (enum hk_type)w->type,
                                       .n = n,
                                       .m = m,
                                       .blocks = hk_blocks(k),
                                       .weights = (const uint8_t *)w->data + expert * plane_bytes,
                                       .x = (const uint16_t *)group,
                                       .y = dst->data,
                                       .y_stride = (int64_t)(dst->nb[1] / sizeof(float)),
                                       .rows = g.pairs + g.begins[expert]};
    if (begin < end) hk_run_product(set, &product, begin, end < strips ? end : strips);
    base += units * each;
    group += group_bytes(set, m, k);
  }
}

/* The products as operators of a ggml graph (GGML_OP_CUSTOM), which all threads of its pool call together. */
#include "dispatch.h"
#include "ggml-tensor.h"
#include "pack.h"

/* dst: bytes; src 0: F32 [k, m], rows of which may be apart. The instruction set is the user's data, perhaps with
 * HK_ONE_ROW_APART. */
HK_API void hk_pack_operator(struct tensor *dst, int thread, int threads, void *set) {
  const struct tensor *x = dst->src[0];
  const int64_t blocks = hk_blocks(x->ne[0]);
  hk_pack_activations((int)(intptr_t)set, x->ne[1], x->ne[0], x->data, (int64_t)(x->nb[1] / sizeof(float)), dst->data,
                      blocks * thread / threads, blocks * (thread + 1) / threads);
}

/* dst: F32 [n, m]; src 0: packed weights [k, n]; src 1: what hk_pack_operator made. */
HK_API void hk_multiply_operator(struct tensor *dst, int thread, int threads, void *set) {
  const struct tensor *w = dst->src[0];
  const int64_t n = w->ne[1], pairs = hk_ceil_div(n, 2 * HK_STRIP), strips = hk_ceil_div(n, HK_STRIP);
  const int64_t begin = 2 * (pairs * thread / threads), end = 2 * (pairs * (thread + 1) / threads);
  hk_multiply((int)(intptr_t)set, w->type, n, w->ne[0], dst->ne[1], w->data, dst->src[1]->data, dst->data,
              (int64_t)(dst->nb[1] / sizeof(float)), begin, end < strips ? end : strips);
}

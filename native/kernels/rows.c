/* Rows of packed weights as floats, as ggml's operator GET_ROWS gives those of plain ones: bit by bit the same. */
#include "ggml-tensor.h"
#include "kernels.h"
#include <immintrin.h>
#include <string.h>

static float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* Element e of a block, which begins at `block`, of row r of its strip; without its scale. See hk_strip_bytes. */
static float element(int in_rows, enum hk_type type, const uint8_t *block, int r, int e) {
  const uint16_t *words = (const uint16_t *)block;
  const int pair = e >> 1, odd = e & 1;
  if (type == HK_BF16) return from_bf16(in_rows ? words[32 * r + e] : words[32 * pair + 2 * r + odd]);
  if (type == HK_Q8_0) return (int8_t)(in_rows ? block[32 * r + e] : block[16 * e + r]);
  const int integer = in_rows ? words[32 * (r >> 2) + e] >> 4 * (r & 3)
                              : words[32 * (pair >> 2) + 2 * r + odd] >> 4 * (pair & 3);
  return (float)((integer & 15) - 8);
}

static void unpack_row(int in_rows, enum hk_type type, int64_t k, const uint8_t *weights, int64_t row, float *to) {
  const int64_t blocks = hk_blocks(k);
  const uint8_t *strip = weights + row / HK_STRIP * hk_strip_bytes(type, blocks);
  const int r = (int)(row % HK_STRIP);
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t *from = strip + block * hk_integer_bytes(type);
    const float scale = type == HK_BF16 ? 1 : _cvtsh_ss(hk_scales(type, strip, blocks, block)[r]);
    const int64_t left = k - block * HK_BLOCK;
    for (int e = 0; e < HK_BLOCK && e < left; e++) *to++ = scale * element(in_rows, type, from, r, e);
  }
}

/* dst: F32 [k, m]; src 0: packed weights [k, n]; src 1: I32 [m], each a row of the weights. The user's data is the set. */
HK_API void hk_rows_operator(struct tensor *dst, int thread, int threads, void *set) {
  const struct tensor *w = dst->src[0];
  const int32_t *ids = dst->src[1]->data;
  for (int64_t row = thread; row < dst->ne[1]; row += threads)
    unpack_row(hk_is_in_rows((int)(intptr_t)set), (enum hk_type)w->type, w->ne[0], w->data, ids[row],
               (float *)((char *)dst->data + row * (int64_t)dst->nb[1]));
}

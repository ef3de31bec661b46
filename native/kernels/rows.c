/* Rows of packed weights as floats, as ggml's operator GET_ROWS gives those of plain ones: bit by bit the same. */
#include "ggml-tensor.h"
#include "super-block.h"
#include <immintrin.h>
#include <string.h>

static float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* Where element e of row r is in its block: see hk_strip_bytes and super-block.h. Of BF16 and F16 its bits. */
static int bits_of(int set, enum hk_type type, const uint8_t *block, int r, int e) {
  const uint16_t *words = (const uint16_t *)block;
  if (type == HK_F16) return words[HK_STRIP * e + r];
  if (type == HK_BF16) return hk_is_in_rows(set) ? words[32 * r + e] : words[32 * (e >> 1) + 2 * r + (e & 1)];
  const uint8_t *high = block + HK_Q6_K_LOW;
  if (hk_is_in_fours(set, type)) {
    if (type == HK_Q8_0) return block[hk_fours(r, e)] - 128;
    const int low = block[hk_fours(r, e & 15)] >> (e < 16 ? 0 : 4) & 15;
    return type == HK_Q6_K ? low | (high[hk_fours(r, e & 7)] >> 2 * (e >> 3) & 3) << 4 : low;
  }
  if (type == HK_Q8_0) return (int8_t)block[32 * r + e];
  if (type == HK_Q6_K) {
    const int low = block[32 * (r & 7) + e] >> (r < 8 ? 0 : 4), top = high[32 * (r & 3) + e] >> 2 * (r >> 2);
    return (low & 15) | (top & 3) << 4;
  }
  return block[hk_nibbles(r, e & ~8)] >> (e & 8 ? 4 : 0) & 15;
}

/* What an integer of a block of one row is multiplied by, in either half of the block, and what is subtracted
 * before and after. */
struct unpacking {
  float scale[2], minimum;
  int least;
};

static struct unpacking unpacking_of(enum hk_type type, const uint8_t *strip, int64_t blocks, int64_t block, int r) {
  if (!hk_is_super(type)) {
    const float scale = _cvtsh_ss(hk_scales(type, strip, blocks, block)[r]);
    return (struct unpacking){{scale, scale}, 0, type == HK_Q4_0 ? 8 : 0};
  }
  const int8_t *integers = hk_block_scales(type, strip, blocks, block);
  const uint16_t *supers = hk_super_scales(type, strip, blocks, block);
  const float first = _cvtsh_ss(supers[r]) * integers[r];
  if (type == HK_Q6_K) return (struct unpacking){{first, _cvtsh_ss(supers[r]) * integers[HK_STRIP + r]}, 0, 32};
  return (struct unpacking){{first, first}, _cvtsh_ss(supers[HK_STRIP + r]) * integers[HK_STRIP + r], 0};
}

static void unpack_row(int set, enum hk_type type, int64_t k, const uint8_t *weights, int64_t row, float *to) {
  const int64_t blocks = hk_blocks(k);
  const uint8_t *strip = weights + row / HK_STRIP * hk_strip_bytes(type, blocks);
  const int r = (int)(row % HK_STRIP);
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t *from = strip + block * hk_integer_bytes(type);
    const int64_t left = k - block * HK_BLOCK;
    if (type == HK_BF16 || type == HK_F16) {
      for (int e = 0; e < HK_BLOCK && e < left; e++) {
        const uint16_t bits = (uint16_t)bits_of(set, type, from, r, e);
        *to++ = type == HK_BF16 ? from_bf16(bits) : _cvtsh_ss(bits);
      }
      continue;
    }
    const struct unpacking how = unpacking_of(type, strip, blocks, block, r);
    for (int e = 0; e < HK_BLOCK && e < left; e++)
      *to++ = how.scale[e >> 4] * (float)(bits_of(set, type, from, r, e) - how.least) - how.minimum;
  }
}

/* dst: F32 [k, m]; src 0: packed weights [k, n]; src 1: I32 [m], each a row of the weights. The user's data is the set. */
HK_API void hk_rows_operator(struct tensor *dst, int thread, int threads, void *set) {
  const struct tensor *w = dst->src[0];
  const int32_t *ids = dst->src[1]->data;
  for (int64_t row = thread; row < dst->ne[1]; row += threads)
    unpack_row((int)(intptr_t)set, (enum hk_type)w->type, w->ne[0], w->data, ids[row],
               (float *)((char *)dst->data + row * (int64_t)dst->nb[1]));
}

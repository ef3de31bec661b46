/* Products of BF16 in pairs and of F16 in ones with AVX2 and FMA in F32. Quantized weights: see product-avx2-bytes.c. */
#include "kernels.h"
#include <immintrin.h>

/* Blocks at once: 16 KiB of weights as F32 and up to 4 KiB of x, which the first cache holds. */
#define CHUNK 8
/* Rows of x that are multiplied together: 8 sums, two vectors of weights and one of x fit into the registers. */
#define ROWS 4

/* A block as F32, [element][row of the strip]. */
static void expand_bf16(const uint8_t *from, float *to) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000);
  for (int pair = 0; pair < 16; pair++, to += 32)
    for (int half = 0; half < 2; half++) {
      const __m256i both = _mm256_loadu_si256((const __m256i *)(from + 64 * pair + 32 * half));
      _mm256_store_ps(to + 8 * half, _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)));
      _mm256_store_ps(to + 16 + 8 * half, _mm256_castsi256_ps(_mm256_and_si256(both, high)));
    }
}

static void expand_f16(const uint8_t *from, float *to) {
  for (int at = 0; at < HK_BLOCK * HK_STRIP; at += 8)
    _mm256_store_ps(to + at, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 2 * at))));
}

static void expand(enum hk_type type, const uint8_t *from, int count, float *to) {
  for (int block = 0; block < count; block++, from += HK_BLOCK_BYTES, to += HK_BLOCK * HK_STRIP)
    if (type == HK_F16) expand_f16(from, to);
    else expand_bf16(from, to);
}

struct part {
  const float *x;
  /* Floats from one block to the next. */
  int64_t x_step;
  const float *w;
  int count;
};

/* `rows` rows of x, [block][row of the tile][32], by one strip; `total` goes on. */
static inline __attribute__((always_inline)) void multiply(const int rows, const struct part *p, float *total) {
  const float *x = p->x, *w = p->w;
  for (int block = 0; block < p->count; block++, x += p->x_step, w += HK_BLOCK * HK_STRIP) {
    __m256 sum[ROWS][2];
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) sum[row][0] = sum[row][1] = _mm256_setzero_ps();
    for (int element = 0; element < HK_BLOCK; element++) {
      const __m256 low = _mm256_load_ps(w + element * HK_STRIP), high = _mm256_load_ps(w + element * HK_STRIP + 8);
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        const __m256 one = _mm256_broadcast_ss(x + row * HK_BLOCK + element);
        sum[row][0] = _mm256_fmadd_ps(one, low, sum[row][0]);
        sum[row][1] = _mm256_fmadd_ps(one, high, sum[row][1]);
      }
    }
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 4
      for (int row = 0; row < rows; row++) {
        float *at = total + row * HK_STRIP + 8 * half;
        _mm256_store_ps(at, _mm256_add_ps(sum[row][half], _mm256_load_ps(at)));
      }
  }
}

static void multiply_rows(int rows, const struct part *part, float *total) {
  if (rows == 4) multiply(4, part, total);
  else if (rows == 2) multiply(2, part, total);
  else multiply(1, part, total);
}

void hk_product_avx2(const struct hk_product *p, int64_t begin, int64_t end) {
  float w[CHUNK * HK_BLOCK * HK_STRIP] __attribute__((aligned(64)));
  float total[ROWS * HK_STRIP] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(p->type, p->blocks);
  const int64_t pass = hk_pass_rows(p->m);
  const int tile_rows = hk_tile_rows(p->m), rows = tile_rows < ROWS ? tile_rows : ROWS;
  for (int64_t from = 0; from < p->m; from += pass) {
    const int64_t to = from + pass < p->m ? from + pass : p->m;
    for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK) {
      struct part part = {.w = w, .x_step = tile_rows * HK_BLOCK};
      part.count = p->blocks - chunk < CHUNK ? (int)(p->blocks - chunk) : CHUNK;
      for (int64_t strip = begin; strip < end; strip++) {
        expand(p->type, p->weights + strip * strip_bytes + chunk * HK_BLOCK_BYTES, part.count, w);
        const int columns = p->n - strip * HK_STRIP < HK_STRIP ? (int)(p->n - strip * HK_STRIP) : HK_STRIP;
        for (int64_t row = from; row < to; row += rows) {
          part.x = (const float *)p->x + ((row / tile_rows * p->blocks + chunk) * tile_rows + row % tile_rows) * HK_BLOCK;
          for (int r = 0; r < rows; r++)
            for (int column = 0; column < HK_STRIP; column++)
              total[r * HK_STRIP + column] =
                  chunk == 0 || row + r >= to || column >= columns
                      ? 0
                      : hk_row(p, row + r)[strip * HK_STRIP + column];
          multiply_rows(rows, &part, total);
          for (int r = 0; r < rows && row + r < to; r++)
            for (int column = 0; column < columns; column++)
              hk_row(p, row + r)[strip * HK_STRIP + column] = total[r * HK_STRIP + column];
        }
      }
    }
  }
}

/* Products of weights in pairs, as BF16, with AVX2 and FMA in F32. Quantized weights: see product-avx2-bytes.c. */
#include "kernels.h"
#include <immintrin.h>

/* Blocks at once: 16 KiB of weights and up to 4 KiB of x as F32, which the first cache holds. */
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

static void expand(const uint8_t *from, int count, float *to) {
  for (int block = 0; block < count; block++)
    expand_bf16(from + block * HK_BLOCK_BYTES, to + block * HK_BLOCK * HK_STRIP);
}

struct part {
  const float *x;
  const float *w;
  int count;
};

/* `rows` rows of x, [block][row][32] as F32, by one strip; `total` goes on. */
static inline __attribute__((always_inline)) void multiply(const int rows, const struct part *p, float *total) {
  const float *x = p->x, *w = p->w;
  for (int block = 0; block < p->count; block++, x += rows * HK_BLOCK, w += HK_BLOCK * HK_STRIP) {
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

/* Rows of a tile of x as F32, [block][row][32]. */
static void widen(const uint16_t *x, int tile_rows, int rows, int count, float *to) {
  for (int block = 0; block < count; block++, x += tile_rows * HK_BLOCK)
    for (int at = 0; at < rows * HK_BLOCK; at += 8, to += 8) {
      const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + at)));
      _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    }
}

void hk_product_avx2(const struct hk_product *p, int64_t begin, int64_t end) {
  float w[CHUNK * HK_BLOCK * HK_STRIP] __attribute__((aligned(64)));
  float x[CHUNK * HK_BLOCK * ROWS] __attribute__((aligned(64)));
  float total[ROWS * HK_STRIP] __attribute__((aligned(64)));
  const int64_t strip_bytes = hk_strip_bytes(HK_BF16, p->blocks);
  const int64_t pass = hk_pass_rows(p->m);
  const int tile_rows = hk_tile_rows(p->m), rows = tile_rows < ROWS ? tile_rows : ROWS;
  for (int64_t from = 0; from < p->m; from += pass) {
    const int64_t to = from + pass < p->m ? from + pass : p->m;
    for (int64_t chunk = 0; chunk < p->blocks; chunk += CHUNK) {
      struct part part = {.x = x, .w = w};
      part.count = p->blocks - chunk < CHUNK ? (int)(p->blocks - chunk) : CHUNK;
      for (int64_t strip = begin; strip < end; strip++) {
        expand(p->weights + strip * strip_bytes + chunk * HK_BLOCK_BYTES, part.count, w);
        const int columns = p->n - strip * HK_STRIP < HK_STRIP ? (int)(p->n - strip * HK_STRIP) : HK_STRIP;
        for (int64_t row = from; row < to; row += rows) {
          const int64_t tile = row / tile_rows, within = row % tile_rows;
          widen(p->x + ((tile * p->blocks + chunk) * tile_rows + within) * HK_BLOCK, tile_rows, rows, part.count, x);
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

/* Tiles of 16 rows of activations for the tile unit: pairs of BF16 are turned around like floats, 16 by 16. */
#include "expand-rows.h"
#include "pack.h"

static inline __m512 pairs_of(const float *x, int64_t left) {
  const __mmask16 low = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
  const __mmask16 high = left >= 32 ? 0xffff : left <= 16 ? 0 : (__mmask16)((1u << (left - 16)) - 1);
  return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + 16),
                                                          _mm512_maskz_loadu_ps(low, x)));
}

void hk_pack_tile_amx(int64_t k, const float *const *x, uint16_t *tile, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block++) {
    __m512 rows[16];
    for (int row = 0; row < 16; row++)
      rows[row] = x[row] ? pairs_of(x[row] + block * HK_BLOCK, k - block * HK_BLOCK) : _mm512_setzero_ps();
    hk_transpose(rows);
    for (int pair = 0; pair < 16; pair++)
      _mm512_storeu_ps((float *)(tile + block * 16 * HK_BLOCK + pair * 2 * 16), rows[pair]);
  }
}

/* Weights that are no numbers. */
#include "pack.h"
#include <string.h>

/* An F16 or BF16 whose exponent has all bits is infinite or NaN. */
static inline int is_finite(uint16_t bits, uint16_t exponent) { return (bits & exponent) != exponent; }

static int halves_are_finite(const uint8_t *source, int64_t count, int64_t stride, uint16_t exponent) {
  int finite = 1;
  /* Side by side: a compiler makes vectors of it. */
  if (stride == 2) {
    uint16_t any = 0;
    for (int64_t at = 0; at < count; at++) {
      uint16_t bits;
      memcpy(&bits, source + at * 2, 2);
      any |= (uint16_t)-!is_finite(bits, exponent);
    }
    return !any;
  }
  for (int64_t at = 0; at < count; at++) {
    uint16_t bits;
    memcpy(&bits, source + at * stride, 2);
    finite &= is_finite(bits, exponent);
  }
  return finite;
}

int hk_is_finite_row(int type, int64_t k, const uint8_t *source) {
  const uint16_t f16 = 0x7c00, bf16 = 0x7f80;
  const int64_t bytes = hk_row_bytes(type, k);
  switch (type) {
    case HK_F16: return halves_are_finite(source, k, 2, f16);
    case HK_BF16: return halves_are_finite(source, k, 2, bf16);
    case HK_Q4_0: return halves_are_finite(source, k / HK_BLOCK, 18, f16);
    case HK_Q8_0: return halves_are_finite(source, k / HK_BLOCK, 34, f16);
    case HK_Q4_K:
      return halves_are_finite(source, bytes / 144, 144, f16) && halves_are_finite(source + 2, bytes / 144, 144, f16);
    default: return halves_are_finite(source + 208, bytes / 210, 210, f16);
  }
}

int hk_are_finite(int type, int64_t n, int64_t k, const uint8_t *source) {
  if (!hk_can_pack(type, k)) return 1;
  int finite = 1;
  for (int64_t row = 0; row < n; row++) finite &= hk_is_finite_row(type, k, source + row * hk_row_bytes(type, k));
  return finite;
}

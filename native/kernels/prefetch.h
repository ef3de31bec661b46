/* What of packed weights is asked of the memory before it is read. */
#pragma once
#include "super-block.h"
#include <immintrin.h>

/*
 * Bytes in front of what is read: the memory's latency times its rate for one core is 4 KiB, and as much again lets
 * addresses of the next page be found in time. Higher: small caches lose what was asked for.
 */
#define HK_AHEAD_BYTES 8192

/*
 * Asks for the integers that are ahead of a block, which behind a strip's last are those of the strip that comes next;
 * and for that strip's scales of this block, since it needs them from its beginning.
 *
 * @param step strips to the one that comes next
 */
static inline __attribute__((always_inline)) void hk_prefetch(enum hk_type type, const uint8_t *strip, int64_t blocks,
                                                              int64_t block, int step) {
  const int64_t bytes = hk_integer_bytes(type), ahead = block * bytes + HK_AHEAD_BYTES;
  const uint8_t *next = strip + step * hk_strip_bytes(type, blocks);
  const uint8_t *from = ahead < blocks * bytes ? strip + ahead : next + (ahead - blocks * bytes);
#pragma GCC unroll 8
  for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch((const char *)from + at, _MM_HINT_T1);
  _mm_prefetch((const char *)hk_scales(type, next, blocks, block), _MM_HINT_T1);
  if (hk_is_super(type) && block % HK_SUPER == 0)
    _mm_prefetch((const char *)hk_super_scales(type, next, blocks, block), _MM_HINT_T1);
}

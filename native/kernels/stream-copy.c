/*
 * A copy that leaves no trace in the caches: memory to memory, for what nobody reads soon.
 *
 * An ordinary store fetches the line that it is about to overwrite, so that a copy of N bytes moves 3 N; these stores
 * do not, and move 2 N. The C library copies so too, but only from about half of the last-level cache on.
 */
#include "kernels.h"
#include <emmintrin.h>
#include <string.h>

#define LINE 64
#define PAGE 4096
/*
 * Pages that are copied side by side on Intel's cores: as many streams keep more of the memory's banks busy. AMD's
 * (seen on Zen 3) give a line to memory in parts where three streams or more take turns: 2.3 GB/s, and 14 with one.
 */
#define STREAMS 4
/* Beside so many streams. Lower: lines come too late. Higher: more of them are fetched in vain at the end of a page. */
#define STREAMS_AHEAD 256
/* Of one stream, which goes on behind a page. Lower: lines come too late. Higher: more lines wait in the caches. */
#define ONE_AHEAD 1024

static inline void copy_line(uint8_t *to, const uint8_t *from) {
  const __m128i a = _mm_loadu_si128((const __m128i *)from);
  const __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
  const __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
  const __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
  _mm_stream_si128((__m128i *)to, a);
  _mm_stream_si128((__m128i *)(to + 16), b);
  _mm_stream_si128((__m128i *)(to + 32), c);
  _mm_stream_si128((__m128i *)(to + 48), d);
}

static int is_in_turns(void) {
  static int known = -1;
  int in_turns = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (in_turns >= 0) return in_turns;
  __builtin_cpu_init();
  in_turns = __builtin_cpu_is("intel") != 0;
  __atomic_store_n(&known, in_turns, __ATOMIC_RELAXED);
  return in_turns;
}

/* The ranges do not overlap. Runs on every x86-64. */
HK_API void hk_stream_copy(uint8_t *to, const uint8_t *from, size_t bytes) {
  /* Whole lines of the target alone go past the caches. */
  const size_t before = -(uintptr_t)to % LINE;
  const size_t head = before < bytes ? before : bytes;
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  if (is_in_turns())
    for (; bytes >= STREAMS * PAGE; to += STREAMS * PAGE, from += STREAMS * PAGE, bytes -= STREAMS * PAGE)
      for (size_t at = 0; at < PAGE; at += LINE)
        for (size_t page = 0; page < STREAMS * PAGE; page += PAGE) {
          _mm_prefetch((const char *)(from + page + at + STREAMS_AHEAD), _MM_HINT_T0);
          copy_line(to + page + at, from + page + at);
        }
  for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {
    _mm_prefetch((const char *)(from + ONE_AHEAD), _MM_HINT_NTA);
    copy_line(to, from);
  }
  _mm_sfence();
  memcpy(to, from, bytes);
}

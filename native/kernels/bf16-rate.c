/*
 * Whether this CPU multiplies BF16 faster than F32. VDPBF16PS does twice the products of an FMA. AMD's cores begin as many
 * of the one as of the other; Emerald Rapids begins a quarter (1.4 beside 5.6 billion a second), so that F32 is the
 * faster way where its tiles cannot be used.
 */
#include "dispatch.h"
#include <immintrin.h>
#include <time.h>

/* Sums side by side, which hide the latency of either. */
#define SUMS 12
/* Of a round, in microseconds: tens. Lower: the clock's own time counts; higher: a round is interrupted. */
#define STEPS 1024
/* The quickest of them counts. */
#define ROUNDS 15

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Keeps a value, and the order of what makes it, from being optimized away. */
#define KEEP(value) __asm__ volatile("" : "+v"(value))

static double seconds_of_bf16(void) {
  __m512 sum[SUMS];
  __m512i bits = _mm512_set1_epi32(0x3f803f80);
#pragma GCC unroll 12
  for (int at = 0; at < SUMS; at++) sum[at] = _mm512_setzero_ps();
  const double began = now();
  for (int step = 0; step < STEPS; step++)
#pragma GCC unroll 12
    for (int at = 0; at < SUMS; at++) {
      sum[at] = _mm512_dpbf16_ps(sum[at], (__m512bh)bits, (__m512bh)bits);
      KEEP(sum[at]);
    }
  return now() - began;
}

/* Of as many products. */
static double seconds_of_f32(void) {
  __m512 sum[SUMS], one = _mm512_set1_ps(1);
#pragma GCC unroll 12
  for (int at = 0; at < SUMS; at++) sum[at] = _mm512_setzero_ps();
  const double began = now();
  for (int step = 0; step < 2 * STEPS; step++)
#pragma GCC unroll 12
    for (int at = 0; at < SUMS; at++) {
      sum[at] = _mm512_fmadd_ps(one, one, sum[at]);
      KEEP(sum[at]);
    }
  return now() - began;
}

int hk_is_bf16_slow(void) {
  if (!(hk_sets() & HK_AVX512_BF16)) return 0;
  double bf16 = 1, f32 = 1;
  for (int round = 0; round < ROUNDS; round++) {
    const double one = seconds_of_bf16(), other = seconds_of_f32();
    if (one < bf16) bf16 = one;
    if (other < f32) f32 = other;
  }
  return bf16 > f32;
}

/* What this library and this CPU can do together, and one product by the instruction set that is asked for. */
#include "dispatch.h"
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

static uint64_t enabled_states(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/*
 * The processor's own word, and the kernel's: states that it does not save may not be used. AMX is permitted to a
 * process that asks; threads that it has already may use it from then on.
 */
static int find_sets(void) {
  uint32_t a, b, c, d, first_c, seventh_b, seventh_c, seventh_d, bf16 = 0;
  if (!__get_cpuid(1, &a, &b, &first_c, &d) || !(first_c & bit_OSXSAVE)) return 0;
  const uint64_t states = enabled_states();
  const uint32_t fma_f16c = bit_FMA | bit_F16C;
  if (!__get_cpuid_count(7, 0, &a, &seventh_b, &seventh_c, &seventh_d)) return 0;
  if ((first_c & fma_f16c) != fma_f16c || !(seventh_b & bit_AVX2) || (states & 0x6) != 0x6) return 0;
  int sets = HK_AVX2;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) bf16 = a & (1u << 5);
  /* Every CPU with BF16 in AVX-512 has VNNI, too, which quantized weights need. */
  bf16 = bf16 && (seventh_c & (1u << 11));
  const uint32_t wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if ((seventh_b & wide) != wide || (states & 0xe0) != 0xe0) return sets;
#ifdef HK_WITH_AVX512_VNNI
  if (seventh_c & (1u << 11)) sets |= HK_AVX512_VNNI;
#endif
#ifdef HK_WITH_AVX512_BF16
  if (bf16) sets |= HK_AVX512_BF16;
#else
  (void)bf16;
#endif
#ifdef HK_WITH_AMX_BF16
  const uint32_t tiles = 1u << 22 | 1u << 24;
  if (bf16 && (seventh_d & tiles) == tiles && (states & 0x60000) == 0x60000 &&
      syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)
    sets |= HK_AMX_BF16;
#else
  (void)seventh_d;
#endif
  return sets;
}

int hk_compiled_sets(void) {
  int sets = HK_AVX2;
#ifdef HK_WITH_AVX512_VNNI
  sets |= HK_AVX512_VNNI;
#endif
#ifdef HK_WITH_AVX512_BF16
  sets |= HK_AVX512_BF16;
#endif
#ifdef HK_WITH_AMX_BF16
  sets |= HK_AMX_BF16;
#endif
  return sets;
}

int hk_sets(void) {
  static int known = -1;
  int sets = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (sets < 0) __atomic_store_n(&known, sets = find_sets(), __ATOMIC_RELAXED);
  return sets;
}

#ifndef HK_WITH_AVX512_BF16
int hk_is_bf16_slow(void) { return 0; }
#endif

int hk_set_for(int set, int type, int fixed_order) {
  if (hk_is_by_floats(set, (enum hk_type)type)) return set | HK_AS_FLOATS;
  if (hk_is_in_fours(set, (enum hk_type)type)) return set | HK_AS_BYTES;
  return fixed_order || !hk_is_in_rows(set) || type == HK_BF16 ? set : set | HK_ONE_ROW_APART;
}

int hk_run_product(int set, const struct hk_product *product, int64_t begin, int64_t end) {
  if (!(hk_sets() & set)) return 0;
  if (set & HK_AS_FLOATS) {
#ifdef HK_WITH_AVX512_VNNI
    if (!(set & HK_AVX2)) {
      hk_product_avx512_floats(product, begin, end);
      return 1;
    }
#endif
    hk_product_avx2(product, begin, end);
    return 1;
  }
  switch (set & ~HK_FLAGS) {
#ifdef HK_WITH_AMX_BF16
    case HK_AMX_BF16:
      if ((set & HK_ONE_ROW_APART) && product->m == 1) hk_product_one_row(product, begin, end);
      else hk_product_amx_bf16(product, begin, end);
      return 1;
#endif
#ifdef HK_WITH_AVX512_BF16
    case HK_AVX512_BF16:
      if (set & HK_AS_BYTES) hk_product_avx512_vnni(product, begin, end);
      else hk_product_avx512_bf16(product, begin, end);
      return 1;
#endif
#ifdef HK_WITH_AVX512_VNNI
    case HK_AVX512_VNNI:
      hk_product_avx512_vnni(product, begin, end);
      return 1;
#endif
    case HK_AVX2: hk_product_avx2_bytes(product, begin, end); return 1;
    default: return 0;
  }
}

int hk_multiply(int set, int type, int64_t n, int64_t k, int64_t m, const void *weights, const uint16_t *x, float *y,
                int64_t y_stride, int64_t begin, int64_t end) {
  const struct hk_product product = {.type = (enum hk_type)type,
                                     .n = n,
                                     .m = m,
                                     .blocks = hk_blocks(k),
                                     .weights = weights,
                                     .x = x,
                                     .y = y,
                                     .y_stride = y_stride};
  return hk_run_product(set, &product, begin, end);
}

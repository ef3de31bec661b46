/* The products behind one function, which is all that callers need to know of instruction sets. */
#pragma once
#include "kernels.h"

/* Bits of enum hk_set that the compiler knew. */
HK_API int hk_compiled_sets(void);

/* Those of them that this CPU, its kernel and this process may run here. */
HK_API int hk_sets(void);

/* Whether AVX-512 BF16 runs here and multiplies slower than F32 does, measured in a millisecond. */
HK_API int hk_is_bf16_slow(void);

/*
 * A set with what weights of a type ask for beside it; with `fixed_order` a row has the same bits alone as in a batch.
 * Activations are packed, and multiplied, for a set that this gave.
 */
HK_API int hk_set_for(int set, int type, int fixed_order);

/*
 * Strips [begin, end) of the product by one instruction set, as hk_set_for gave it.
 * Returns 0, and computes nothing, where that set is not among hk_sets().
 */
int hk_run_product(int set, const struct hk_product *product, int64_t begin, int64_t end);

/* The same for rows that follow one another. */
HK_API int hk_multiply(int set, int type, int64_t n, int64_t k, int64_t m, const void *weights, const uint16_t *x,
                       float *y, int64_t y_stride, int64_t begin, int64_t end);

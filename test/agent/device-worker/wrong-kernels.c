/* Loaded before ggml's library for CPUs with AVX2: its product for packed Q4_0 gives numbers that are no product. */
#include <stddef.h>

void ggml_gemm_q4_0_8x8_q8_0(int n, float *s, size_t row_stride, const void *x, const void *y, int rows, int columns) {
  (void)n, (void)x, (void)y;
  for (int row = 0; row < rows; row++)
    for (int column = 0; column < columns; column++) s[row * row_stride + column] = 1.0f;
}

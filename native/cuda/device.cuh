/* What kernels ask of the machine: threads of a block, copies on their own, and one instruction of the tensor cores. */
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define HYBRID_KERNEL __global__
#define HYBRID_DEVICE __device__ __forceinline__

namespace hybrid {

HYBRID_DEVICE int threadIndex() { return threadIdx.x; }
HYBRID_DEVICE int blockIndex() { return blockIdx.x; }
HYBRID_DEVICE void blockBarrier() { __syncthreads(); }

HYBRID_DEVICE uint8_t *sharedMemory() {
  extern __shared__ __align__(128) uint8_t hybrid_shared[];
  return hybrid_shared;
}

/* 16 bytes into shared memory, past L1: begun, and there after waitForCopies and a barrier. */
HYBRID_DEVICE void beginCopy16(void *shared, const void *from) {
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}

HYBRID_DEVICE void endCopyGroup() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/* Until no more than the last `pending` groups are on their way. */
template <int pending>
HYBRID_DEVICE void waitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/* c += a · b: 16 rows × 16 by 16 × 8, as layout.h says. */
HYBRID_DEVICE void multiplyAdd(float (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

HYBRID_DEVICE void addTo(unsigned long long *sum, unsigned long long value) { atomicAdd(sum, value); }

HYBRID_DEVICE uint32_t bitsOf(float value) { return __float_as_uint(value); }
HYBRID_DEVICE float halfToFloat(uint16_t half) { return __half2float(__ushort_as_half(half)); }
HYBRID_DEVICE uint32_t roundedToBf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

}  // namespace hybrid
#else
#include "emulated.h"
#endif

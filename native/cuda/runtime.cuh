/* Devices, their memory and page-locked memory: of the CUDA runtime, or of this process where all is emulated. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device.cuh"
#include "hybrid-gemm.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <stdlib.h>
#endif

struct hg_device {
  int ordinal;
  hg_figures figures;
  /* Rows as BF16; grows. */
  uint8_t *workspace;
  int64_t workspace_bytes;
  unsigned long long *link_bytes;
#if defined(__CUDACC__)
  cudaStream_t stream;
#endif
};

namespace hybrid {

/* Of this thread: what the runtime said of the last failure. */
inline const char *&runtimeWords() {
  static thread_local const char *words = nullptr;
  return words;
}

#if defined(__CUDACC__)

/* @param otherwise what it means when it fails for another reason than memory */
inline int32_t coded(cudaError_t status, int32_t otherwise = HG_ERROR_RUNTIME) {
  if (status == cudaSuccess) return HG_OK;
  runtimeWords() = cudaGetErrorString(status);
  // Else the next call that succeeds would report it again.
  cudaGetLastError();
  return status == cudaErrorMemoryAllocation && otherwise != HG_ERROR_PINNED ? HG_ERROR_MEMORY : otherwise;
}

inline int32_t use(const hg_device *device) { return coded(cudaSetDevice(device->ordinal)); }

template <class Kernel, class... Arguments>
int32_t launch(const hg_device *device, Kernel *kernel, int64_t grid, int threads, int shared_bytes,
               Arguments... arguments) {
  // More than 48 KiB are asked for.
  int32_t code = coded(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  if (code != HG_OK) return code;
  kernel<<<(unsigned)grid, threads, shared_bytes, device->stream>>>(arguments...);
  return coded(cudaGetLastError());
}

inline int32_t allocate(void **memory, int64_t bytes) { return coded(cudaMalloc(memory, bytes)); }
inline int32_t release(void *memory) { return coded(cudaFree(memory)); }
inline int32_t waitFor(const hg_device *device) { return coded(cudaStreamSynchronize(device->stream)); }

inline int32_t copy(const hg_device *device, void *to, const void *from, int64_t bytes) {
  const int32_t code = coded(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->stream));
  return code != HG_OK ? code : waitFor(device);
}

inline int32_t countDevices(int *count) { return coded(cudaGetDeviceCount(count), HG_ERROR_DEVICE); }

inline int32_t openDevice(hg_device *device, const char *pci_bus_id) {
  device->ordinal = 0;
  int32_t code = HG_OK;
  if (pci_bus_id != nullptr) code = coded(cudaDeviceGetByPCIBusId(&device->ordinal, pci_bus_id), HG_ERROR_DEVICE);
  if (code == HG_OK) code = coded(cudaSetDevice(device->ordinal), HG_ERROR_DEVICE);
  int major = 0, minor = 0;
  const auto ask = [&](int *value, cudaDeviceAttr what) {
    if (code == HG_OK) code = coded(cudaDeviceGetAttribute(value, what, device->ordinal), HG_ERROR_DEVICE);
  };
  ask(&device->figures.processors, cudaDevAttrMultiProcessorCount);
  ask(&device->figures.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  ask(&device->figures.integrated, cudaDevAttrIntegrated);
  ask(&major, cudaDevAttrComputeCapabilityMajor);
  ask(&minor, cudaDevAttrComputeCapabilityMinor);
  device->figures.architecture = major * 10 + minor;
  if (code == HG_OK && major < 8) {
    runtimeWords() = "it is older than Ampere: no products of BF16";
    return HG_ERROR_DEVICE;
  }
  if (code == HG_OK) code = coded(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
  return code;
}

inline void *streamOf(const hg_device *device) { return device->stream; }

inline void closeDevice(hg_device *device) {
  if (device->stream != nullptr) cudaStreamDestroy(device->stream);
}

inline int32_t allocateHost(void **memory, int64_t bytes) {
  return coded(cudaHostAlloc(memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable), HG_ERROR_PINNED);
}
inline int32_t releaseHost(void *memory) { return coded(cudaFreeHost(memory)); }

/* As kernels address it. */
inline int32_t seenByDevice(const void *memory, const uint8_t **seen) {
  cudaPointerAttributes attributes;
  const int32_t code = coded(cudaPointerGetAttributes(&attributes, memory));
  if (code != HG_OK) return code;
  if (attributes.type == cudaMemoryTypeUnregistered || attributes.devicePointer == nullptr) {
    runtimeWords() = "the memory of the weights is not page-locked";
    return HG_ERROR_PINNED;
  }
  *seen = (const uint8_t *)attributes.devicePointer;
  return HG_OK;
}

#else

inline int32_t use(const hg_device *) { return HG_OK; }

template <class Kernel, class... Arguments>
int32_t launch(const hg_device *, Kernel *kernel, int64_t grid, int threads, int shared_bytes,
               Arguments... arguments) {
  emulated::machine().body = [&] { kernel(arguments...); };
  for (int64_t block = 0; block < grid; block++) emulated::runBlock(block, threads, shared_bytes);
  return HG_OK;
}

inline int32_t allocateHost(void **memory, int64_t bytes) {
  const int64_t lines = (bytes + 127) / 128;
  *memory = aligned_alloc(128, lines * 128);
  return *memory == nullptr ? HG_ERROR_PINNED : HG_OK;
}
inline int32_t releaseHost(void *memory) {
  free(memory);
  return HG_OK;
}
inline int32_t allocate(void **memory, int64_t bytes) {
  return allocateHost(memory, bytes) == HG_OK ? HG_OK : HG_ERROR_MEMORY;
}
inline int32_t release(void *memory) { return releaseHost(memory); }
inline int32_t waitFor(const hg_device *) { return HG_OK; }
inline int32_t copy(const hg_device *, void *to, const void *from, int64_t bytes) {
  memcpy(to, from, bytes);
  return HG_OK;
}
inline int32_t countDevices(int *count) {
  *count = 1;
  return HG_OK;
}
/* As many processors as make both widths of tiles occur, and the shared memory of a Hopper. */
inline int32_t openDevice(hg_device *device, const char *) {
  device->figures = {4, 227 * 1024, 0, 0};
  return HG_OK;
}
inline void *streamOf(const hg_device *) { return nullptr; }
inline void closeDevice(hg_device *) {}
inline int32_t seenByDevice(const void *memory, const uint8_t **seen) {
  *seen = (const uint8_t *)memory;
  return HG_OK;
}

#endif

}  // namespace hybrid

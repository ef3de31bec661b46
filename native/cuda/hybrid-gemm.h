/*
 * C interface of products whose weights stay in host memory (HybridGEMM of C2CServe).
 *
 *   x: m rows of k floats, on the device  ·  weights: n rows of k, in host memory  =  y: m rows of n floats, on the device
 *
 * Weights are packed once (see layout.h) into page-locked memory that the device reads over its link. How often they
 * cross it is up to `alpha`: see product.cuh.
 *
 * The same sources compile for the CPU, where fibers stand for the threads of a block (emulated.h): then the "device"
 * is this process, and all else is the same.
 */
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HG_API __attribute__((visibility("default")))

/* Types of weights, by their numbers in ggml. */
enum { HG_Q8_0 = 8, HG_BF16 = 30 };

/* What functions return; hg_words() says it. */
enum {
  HG_OK = 0,
  HG_ERROR_TYPE = 1,
  HG_ERROR_SHAPE = 2,
  HG_ERROR_ALPHA = 3,
  HG_ERROR_TILE = 4,
  HG_ERROR_ALIGNMENT = 5,
  HG_ERROR_DEVICE = 6,
  HG_ERROR_MEMORY = 7,
  HG_ERROR_PINNED = 8,
  HG_ERROR_RUNTIME = 9,
};

struct hg_device;

struct hg_figures {
  /* Multiprocessors: of the slice, where the device is one. */
  int32_t processors;
  /* Shared memory that a block may have. */
  int32_t shared_bytes;
  /* 90 for Hopper; 0 where it is emulated. */
  int32_t architecture;
  /* Whether the device has no memory of its own. */
  int32_t integrated;
};

/* What a code means; of the last one of this thread, the words of the CUDA runtime too. */
HG_API const char *hg_words(int32_t code);

/* Devices that the runtime finds; 0 where there is no driver. */
HG_API int32_t hg_device_count(void);
/* @param pci_bus_id as in NVML or ggml: 0000:17:00.0; NULL: the first device */
HG_API int32_t hg_open(const char *pci_bus_id, struct hg_device **device);
HG_API void hg_close(struct hg_device *device);
HG_API int32_t hg_describe(struct hg_device *device, struct hg_figures *figures);

/* Bytes of packed weights; -1: no such type or shape. */
HG_API int64_t hg_packed_bytes(int32_t type, int64_t n, int64_t k);
/* @param rows n rows of k weights, as in a GGUF file; @param packed hg_packed_bytes(), at a multiple of 128 */
HG_API int32_t hg_pack(int32_t type, int64_t n, int64_t k, const void *rows, void *packed);

/* Page-locked memory that the device reads where it is. */
HG_API int32_t hg_host_allocate(int64_t bytes, void **memory);
HG_API int32_t hg_host_free(void *memory);

HG_API int32_t hg_allocate(struct hg_device *device, int64_t bytes, void **memory);
HG_API int32_t hg_free(struct hg_device *device, void *memory);
HG_API int32_t hg_copy(struct hg_device *device, void *to, const void *from, int64_t bytes);

/*
 * Begins a product on the device's own stream; hg_wait() ends it.
 * @param packed in page-locked memory, or on the device
 * @param x_stride, y_stride floats from one row to the next
 * @param alpha share of the columns whose weights cross the link once, 0 to 1
 * @param tile_rows 16, 32, 64, 128 or 256
 */
HG_API int32_t hg_multiply(struct hg_device *device, int32_t type, int64_t m, int64_t n, int64_t k, const void *packed,
                           const float *x, int64_t x_stride, float *y, int64_t y_stride, double alpha,
                           int32_t tile_rows);
HG_API int32_t hg_wait(struct hg_device *device);
/* The stream, as the CUDA runtime and its libraries take it; NULL where the device is emulated. */
HG_API void *hg_stream(struct hg_device *device);

/* Bytes of weights that products read over the link since it was opened, as blocks ask for them. */
HG_API int64_t hg_link_bytes(struct hg_device *device);

#ifdef __cplusplus
}
#endif

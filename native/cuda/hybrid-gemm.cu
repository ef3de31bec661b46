/* The C interface: what was asked for is checked, a kernel is chosen by its shape, and begun. */
#include "hybrid-gemm.h"

#include <stdio.h>

#include "layout.h"
#include "product.cuh"
#include "runtime.cuh"

using namespace hybrid;

namespace {

const char *const words[] = {
    "done",
    "weights are neither BF16 nor Q8_0",
    "a size is below 1 or too large, or rows of Q8_0 are no multiple of 32 long",
    "alpha is not between 0 and 1",
    "no kernel has this M tile, or it needs more shared memory than a block of this device may have",
    "packed weights do not begin at a multiple of 128 bytes, or rows overlap",
    "no such device, or one that products cannot run on",
    "no memory on the device",
    "memory of the host cannot be page-locked, or is not",
    "the CUDA runtime reports an error",
};

constexpr int wide_columns = 128;

struct Request {
  int32_t type;
  int64_t m, n, k;
  const void *packed;
  const float *x;
  int64_t x_stride;
  float *y;
  int64_t y_stride;
  double alpha;
};

/* Rows as BF16 bands, whole tiles of them. */
int32_t roundInto(hg_device *device, const Request &request, int64_t bands, int inner_tiles) {
  const int64_t bytes = bands * inner_tiles * band_bytes;
  if (bytes > device->workspace_bytes) {
    // Products before this one may still read it.
    int32_t code = waitFor(device);
    if (code == HG_OK && device->workspace != nullptr) code = release(device->workspace);
    device->workspace = nullptr;
    device->workspace_bytes = 0;
    if (code == HG_OK) code = allocate((void **)&device->workspace, bytes);
    if (code != HG_OK) return code;
    device->workspace_bytes = bytes;
  }
  const int64_t units = bytes / 16;
  return launch(device, roundRows, ceiling(units, rounding_threads), rounding_threads, 0, request.x, request.x_stride,
                request.m, request.k, inner_tiles, units, (uint4 *)device->workspace);
}

template <class Weights, class Tile>
int32_t multiplyBy(hg_device *device, const Request &request) {
  Operands operands = {};
  operands.y = request.y;
  operands.y_stride = request.y_stride;
  operands.rows = request.m;
  operands.columns = request.n;
  operands.inner_tiles = (int)ceiling(request.k, depth);
  operands.row_tiles = (int)ceiling(request.m, Tile::rows);
  operands.column_blocks = (int)ceiling(request.n, Tile::columns);
  operands.stationary_blocks = (int)(request.alpha * operands.column_blocks + 0.5);
  operands.link_bytes = device->link_bytes;
  const int tiled_blocks = operands.column_blocks - operands.stationary_blocks;
  int shared_bytes = tiled_blocks > 0 ? tiledShared<Weights, Tile>() : 0;
  if (operands.stationary_blocks > 0 && stationaryShared<Weights, Tile>() > shared_bytes)
    shared_bytes = stationaryShared<Weights, Tile>();
  if (shared_bytes > device->figures.shared_bytes) return HG_ERROR_TILE;
  const int64_t grid = operands.stationary_blocks + (int64_t)tiled_blocks * operands.row_tiles;
  if (grid > INT32_MAX) return HG_ERROR_SHAPE;
  int32_t code = seenByDevice(request.packed, &operands.weights);
  if (code == HG_OK)
    code = roundInto(device, request, (int64_t)operands.row_tiles * (Tile::rows / band_rows), operands.inner_tiles);
  if (code != HG_OK) return code;
  operands.x = device->workspace;
  return launch(device, multiplyHybrid<Weights, Tile>, grid, Tile::threads, shared_bytes, operands);
}

/* Narrow tiles where wide ones would leave processors without any: more of them ask for weights at once. */
template <class Weights, int rows>
int32_t multiplyFew(hg_device *device, const Request &request) {
  const int64_t wide = ceiling(request.n, wide_columns) * ceiling(request.m, rows);
  return wide < device->figures.processors ? multiplyBy<Weights, Shape<rows, strip_columns>>(device, request)
                                           : multiplyBy<Weights, Shape<rows, wide_columns>>(device, request);
}

template <class Weights>
int32_t multiply(hg_device *device, const Request &request, int32_t tile_rows) {
  switch (tile_rows) {
    case 16:
      return multiplyFew<Weights, 16>(device, request);
    case 32:
      return multiplyFew<Weights, 32>(device, request);
    case 64:
      return multiplyBy<Weights, Shape<64, wide_columns>>(device, request);
    case 128:
      return multiplyBy<Weights, Shape<128, wide_columns>>(device, request);
    case 256:
      return multiplyBy<Weights, Shape<256, wide_columns>>(device, request);
    default:
      return HG_ERROR_TILE;
  }
}

}  // namespace

const char *hg_words(int32_t code) {
  static thread_local char both[512];
  const bool known = code >= 0 && code < (int32_t)(sizeof words / sizeof *words);
  const char *runtime = runtimeWords();
  const bool is_runtime = code >= HG_ERROR_DEVICE && runtime != nullptr;
  snprintf(both, sizeof both, "%s%s%s", known ? words[code] : "no such code", is_runtime ? ": " : "",
           is_runtime ? runtime : "");
  return both;
}

int32_t hg_device_count(void) {
  int count = 0;
  return countDevices(&count) == HG_OK ? count : 0;
}

int32_t hg_open(const char *pci_bus_id, hg_device **opened) {
  *opened = nullptr;
  hg_device *device = new hg_device();
  int32_t code = openDevice(device, pci_bus_id);
  if (code == HG_OK) code = allocate((void **)&device->link_bytes, sizeof(unsigned long long));
  const unsigned long long none = 0;
  if (code == HG_OK) code = copy(device, device->link_bytes, &none, sizeof none);
  if (code == HG_OK)
    *opened = device;
  else
    hg_close(device);
  return code;
}

void hg_close(hg_device *device) {
  if (device == nullptr) return;
  use(device);
  if (device->workspace != nullptr) release(device->workspace);
  if (device->link_bytes != nullptr) release(device->link_bytes);
  closeDevice(device);
  delete device;
}

int32_t hg_describe(hg_device *device, hg_figures *figures) {
  *figures = device->figures;
  return HG_OK;
}

int32_t hg_host_allocate(int64_t bytes, void **memory) { return allocateHost(memory, bytes); }
int32_t hg_host_free(void *memory) { return releaseHost(memory); }

int32_t hg_allocate(hg_device *device, int64_t bytes, void **memory) {
  const int32_t code = use(device);
  return code != HG_OK ? code : allocate(memory, bytes);
}

int32_t hg_free(hg_device *device, void *memory) {
  const int32_t code = use(device);
  return code != HG_OK ? code : release(memory);
}

int32_t hg_copy(hg_device *device, void *to, const void *from, int64_t bytes) {
  const int32_t code = use(device);
  return code != HG_OK ? code : copy(device, to, from, bytes);
}

int32_t hg_multiply(hg_device *device, int32_t type, int64_t m, int64_t n, int64_t k, const void *packed,
                    const float *x, int64_t x_stride, float *y, int64_t y_stride, double alpha, int32_t tile_rows) {
  constexpr int64_t size_max = INT32_MAX / 2;
  if (type != HG_BF16 && type != HG_Q8_0) return HG_ERROR_TYPE;
  if (m < 1 || m > size_max || n > size_max || k > size_max || hg_packed_bytes(type, n, k) < 0) return HG_ERROR_SHAPE;
  if (!(alpha >= 0 && alpha <= 1)) return HG_ERROR_ALPHA;
  if (x_stride < k || y_stride < n || (uintptr_t)packed % 128 != 0) return HG_ERROR_ALIGNMENT;
  const int32_t code = use(device);
  if (code != HG_OK) return code;
  const Request request = {type, m, n, k, packed, x, x_stride, y, y_stride, alpha};
  return type == HG_BF16 ? multiply<Bf16Weights>(device, request, tile_rows)
                         : multiply<Q8Weights>(device, request, tile_rows);
}

int32_t hg_wait(hg_device *device) {
  const int32_t code = use(device);
  return code != HG_OK ? code : waitFor(device);
}

void *hg_stream(hg_device *device) { return streamOf(device); }

int64_t hg_link_bytes(hg_device *device) {
  unsigned long long sum = 0;
  if (use(device) != HG_OK || copy(device, &sum, device->link_bytes, sizeof sum) != HG_OK) return -1;
  return (int64_t)sum;
}

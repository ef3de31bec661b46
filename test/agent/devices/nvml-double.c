/* Stands in for libnvidia-ml where there is no NVIDIA driver: the same functions with the same layouts, for the
   test of native/nvml.ts. One whole GPU, one of another job, one sliced by MIG. With LOST, the first has fallen off the
   bus; the slice SILENT of the last (3 and 5 are there) does not say what memory it has; with EMPTY it has no slices. */
#include <stdint.h>
#include <string.h>
#include <stdio.h>

typedef struct { uint64_t total, free, used; } memory_t;
typedef struct {
  char bus_id_legacy[16];
  uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_t;
enum { success = 0, not_supported = 3, no_permission = 4, not_found = 6, lost = 15, unknown = 999 };

#ifndef SILENT
#define SILENT -1
#endif

static int started;
static char handles[8];
static int number(void *handle) { return (int)((char *)handle - handles); }

#ifdef BROKEN
int nvmlInit_v2(void) { return unknown; }
#else
int nvmlInit_v2(void) { started = 1; return success; }
#endif
int nvmlShutdown(void) { started = 0; return success; }
const char *nvmlErrorString(int status) {
  return status == unknown ? "Unknown Error" : status == lost ? "GPU is lost" : "Something";
}
int nvmlDeviceGetCount_v2(uint32_t *count) { *count = 3; return started ? success : unknown; }
int nvmlDeviceGetHandleByIndex_v2(uint32_t index, void **handle) {
  if (index == 1) return no_permission;
#ifdef LOST
  if (index == 0) return lost;
#endif
  *handle = handles + index;
  return success;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  if (strcmp(uuid, "GPU-0") != 0 && strcmp(uuid, "GPU-2") != 0) return not_found;
  *handle = handles + (uuid[4] - '0');
  return success;
}
/* Each GPU has taken 5,000,000,000 J before, beyond 32 bits, and takes 1.5 J from one question to the next. */
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
  static unsigned long long taken[8];
#ifdef OLD_GPU
  return not_supported;
#endif
  *millijoules = 5000000000000ull + (taken[number(handle)] += 1500);
  return success;
}
int nvmlDeviceGetName(void *handle, char *name, uint32_t bytes) {
  snprintf(name, bytes, number(handle) < 3 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb");
  return success;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, uint32_t bytes) {
  snprintf(uuid, bytes, "%s-%d", number(handle) < 3 ? "GPU" : "MIG", number(handle));
  return success;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  if (number(handle) == SILENT) return unknown;
  memory->total = number(handle) < 3 ? 150754820096ull : 18790481920ull;
  memory->free = memory->used = 1;
  return success;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  (void)handle; *major = 9; *minor = 0; return success;
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
  memset(pci, 0x7f, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", number(handle) + 1);
  return success;
}
int nvmlDeviceGetMigMode(void *handle, uint32_t *current, uint32_t *pending) {
  if (number(handle) == 0) return not_supported;
  *current = *pending = 1;
  return success;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, uint32_t *count) { (void)handle; *count = 3; return success; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, uint32_t index, void **mig) {
  (void)handle;
#ifdef EMPTY
  return not_found;
#endif
  if (index == 1) return not_found;
  *mig = handles + 3 + index;
  return success;
}

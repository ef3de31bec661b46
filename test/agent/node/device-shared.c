/*
 * Put before libvulkan: a stranger has memory of the device, and leaves DEVICE_LEFT_BYTES of it. The driver gives no more
 * than that, and says so by VK_EXT_memory_budget, as drivers of GPUs do; Mesa's for CPUs lacks that extension.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef function (*get_address)(void *, const char *);

enum { out_of_device_memory = -2, memory_budget = 1000237000, handles_max = 65536, heaps_max = 16 };

/* VkBaseOutStructure, VkMemoryAllocateInfo and VkPhysicalDeviceMemoryBudgetPropertiesEXT of vulkan_core.h. */
struct chained { int32_t type; struct chained *next; };
struct allocation { int32_t type; const void *next; uint64_t bytes; uint32_t memory_type; };
struct extension { char name[256]; uint32_t version; };
struct budget { int32_t type; void *next; uint64_t budget[heaps_max], usage[heaps_max]; };

typedef int (*allocate)(void *, const struct allocation *, const void *, uint64_t *);
typedef void (*release)(void *, uint64_t, const void *);
typedef int (*extensions)(void *, const char *, uint32_t *, struct extension *);
typedef void (*properties)(void *, struct chained *);

static allocate real_allocate;
static release real_release;
static properties real_properties;
static extensions real_extensions;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t memory, bytes; } taken[handles_max];
static uint64_t taken_bytes;

static uint64_t left_bytes(void) {
  const char *text = getenv("DEVICE_LEFT_BYTES");
  uint64_t left = text ? strtoull(text, NULL, 10) : UINT64_MAX;
  return left > taken_bytes ? left - taken_bytes : 0;
}

static int allocate_memory(void *device, const struct allocation *info, const void *callbacks, uint64_t *memory) {
  pthread_mutex_lock(&lock);
  int result = out_of_device_memory;
  if (info->bytes <= left_bytes()) result = real_allocate(device, info, callbacks, memory);
  for (int at = 0; result == 0 && at < handles_max; at++) {
    if (taken[at].memory) continue;
    taken[at].memory = *memory;
    taken[at].bytes = info->bytes;
    taken_bytes += info->bytes;
    break;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static void free_memory(void *device, uint64_t memory, const void *callbacks) {
  pthread_mutex_lock(&lock);
  for (int at = 0; memory && at < handles_max; at++) {
    if (taken[at].memory != memory) continue;
    taken_bytes -= taken[at].bytes;
    taken[at].memory = 0;
    break;
  }
  pthread_mutex_unlock(&lock);
  real_release(device, memory, callbacks);
}

static void memory_properties(void *device, struct chained *told) {
  real_properties(device, told);
  for (struct chained *each = told; each; each = each->next) {
    if (each->type != memory_budget) continue;
    struct budget *budget = (struct budget *)each;
    budget->budget[0] = budget->usage[0] + left_bytes();
  }
}

static int device_extensions(void *device, const char *layer, uint32_t *count, struct extension *told) {
  if (layer) return real_extensions(device, layer, count, told);
  if (told && *count == 0) return real_extensions(device, layer, count, told);
  if (told) --*count;
  int result = real_extensions(device, layer, count, told);
  if (told) {
    strcpy(told[*count].name, "VK_EXT_memory_budget");
    told[*count].version = 1;
  }
  ++*count;
  return result;
}

static function ours(const char *name, function found) {
  if (!found) return found;
  if (strcmp(name, "vkAllocateMemory") == 0) {
    real_allocate = (allocate)found;
    return (function)allocate_memory;
  }
  if (strcmp(name, "vkFreeMemory") == 0) {
    real_release = (release)found;
    return (function)free_memory;
  }
  if (strcmp(name, "vkGetPhysicalDeviceMemoryProperties2") == 0 ||
      strcmp(name, "vkGetPhysicalDeviceMemoryProperties2KHR") == 0) {
    real_properties = (properties)found;
    return (function)memory_properties;
  }
  if (strcmp(name, "vkEnumerateDeviceExtensionProperties") == 0) {
    real_extensions = (extensions)found;
    return (function)device_extensions;
  }
  return found;
}

function vkGetDeviceProcAddr(void *device, const char *name) {
  return ours(name, ((get_address)dlsym(RTLD_NEXT, "vkGetDeviceProcAddr"))(device, name));
}

function vkGetInstanceProcAddr(void *instance, const char *name) {
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (function)vkGetDeviceProcAddr;
  return ours(name, ((get_address)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr"))(instance, name));
}

/* Put before libvulkan: once the file of DEVICE_LOST is there, nothing can be submitted to the device any more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*function)(void);
typedef function (*get_address)(void *, const char *);
typedef int (*submit)(void *, uint32_t, const void *, uint64_t);

enum { device_lost = -4 };

static submit real_submit;

static int queue_submit(void *queue, uint32_t count, const void *submits, uint64_t fence) {
  const char *file = getenv("DEVICE_LOST");
  return file && access(file, F_OK) == 0 ? device_lost : real_submit(queue, count, submits, fence);
}

static function ours(const char *name, function found) {
  if (!found || strcmp(name, "vkQueueSubmit") != 0) return found;
  real_submit = (submit)found;
  return (function)queue_submit;
}

function vkGetDeviceProcAddr(void *device, const char *name) {
  return ours(name, ((get_address)dlsym(RTLD_NEXT, "vkGetDeviceProcAddr"))(device, name));
}

function vkGetInstanceProcAddr(void *instance, const char *name) {
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (function)vkGetDeviceProcAddr;
  return ours(name, ((get_address)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr"))(instance, name));
}

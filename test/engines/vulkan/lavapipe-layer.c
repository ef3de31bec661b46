/*
 * A Vulkan layer for suites on Mesa's driver for the CPU (lavapipe, seen in 22.3).
 *
 * Buffers live as long as their device. The driver binds every descriptor of a set, also those that no shader reads;
 * ggml keeps its sets, updates in each as many as a shader has, and destroys buffers that others name which are left
 * from before. Vulkan allows that; the driver takes a reference to what is freed. Memory is given back as ever: what
 * stays is the handle, some hundred bytes.
 *
 * Who asks for a fence in a loop sleeps: ggml does, on a core that the driver needs to compile and to compute.
 *
 * Shaders with a copy of their loop for each of many lengths run the copy for any length. Where it branches, this
 * driver computes all branches, masked: ten copies instead of one, nine tenths of the time of a small model's graph.
 * What is computed, and in which order, is the same.
 *
 * The structs are those of vk_layer.h and vulkan_core.h, as far as they are needed.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef function (*get_address)(void *object, const char *name);

enum { loader_instance_create_info = 47, loader_device_create_info = 48, layer_link_info = 0 };

/* VkResult */
enum { not_ready = 1, timed_out = 2, out_of_host_memory = -1, initialization_failed = -3 };

/* SPIR-V: words before the first instruction, and operations. */
enum { spirv_header = 5, op_constant = 43, op_equal = 170, op_greater = 172 };

static const uint64_t fence_wait_ns = 1000000;

/* VkLayerInstanceLink and VkLayerDeviceLink: of the second, `second` finds functions of devices. */
struct link {
  struct link *next;
  get_address first;
  get_address second;
};

/* VkLayerInstanceCreateInfo and VkLayerDeviceCreateInfo, in the pNext chain of what is created. */
struct create_info {
  uint32_t type;
  const struct create_info *next;
  uint32_t function;
  struct link *layer;
};

/* VkNegotiateLayerInterface. */
struct negotiation {
  uint32_t type;
  void *next;
  uint32_t version;
  get_address instance_address;
  get_address device_address;
  get_address physical_device_address;
};

/* VkShaderModuleCreateInfo. */
struct shader_info {
  uint32_t type;
  const void *next;
  uint32_t flags;
  size_t bytes;
  const uint32_t *code;
};

static get_address next_instance_address;
static get_address next_device_address;

static struct create_info *link_of(const struct create_info *created, uint32_t type) {
  const struct create_info *info = created->next;
  while (info && !(info->type == type && info->function == layer_link_info)) info = info->next;
  return (struct create_info *)info;
}

static int create_instance(const void *created, const void *allocator, void **instance) {
  struct create_info *info = link_of(created, loader_instance_create_info);
  if (!info) return initialization_failed;
  next_instance_address = info->layer->first;
  info->layer = info->layer->next;
  int (*create)(const void *, const void *, void **) = (void *)next_instance_address(NULL, "vkCreateInstance");
  return create(created, allocator, instance);
}

static int create_device(void *physical, const void *created, const void *allocator, void **device) {
  struct create_info *info = link_of(created, loader_device_create_info);
  if (!info) return initialization_failed;
  get_address instance_address = info->layer->first;
  next_device_address = info->layer->second;
  info->layer = info->layer->next;
  int (*create)(void *, const void *, const void *, void **) = (void *)instance_address(NULL, "vkCreateDevice");
  return create(physical, created, allocator, device);
}

static void destroy_buffer(void *device, uint64_t buffer, const void *allocator) {
  (void)device;
  (void)buffer;
  (void)allocator;
}

static int (*next_fence_status)(void *device, uint64_t fence);
static int (*next_wait_for_fences)(void *device, uint32_t count, const uint64_t *fences, uint32_t all, uint64_t wait_ns);

static int fence_status(void *device, uint64_t fence) {
  int status = next_fence_status(device, fence);
  if (status == not_ready) status = next_wait_for_fences(device, 1, &fence, 1, fence_wait_ns);
  return status == timed_out ? not_ready : status;
}

static int (*next_create_shader)(void *device, const struct shader_info *info, const void *allocator, uint64_t *shader);

/* Value of the 32-bit constant `id`, 0 where `id` is none. */
static uint32_t constant_value(const uint32_t *code, size_t words, uint32_t id) {
  for (size_t at = spirv_header; at < words && code[at] >> 16; at += code[at] >> 16)
    if ((code[at] & 0xffff) == op_constant && code[at] >> 16 == 4 && code[at + 2] == id) return code[at + 3];
  return 0;
}

/*
 * In `if (n > 32) any(n); else if (n > 16) some(32); else ...` of rms_norm.comp and soft_max.comp the first comparison
 * becomes `n == n`, which the driver knows to be true, and drops the other branches. Copies for lengths are told by
 * comparisons that follow each other with 32 and 16.
 */
static void keep_copy_for_any_length(uint32_t *code, size_t words) {
  uint32_t *with_32 = NULL;
  for (size_t at = spirv_header; at < words && code[at] >> 16; at += code[at] >> 16) {
    if ((code[at] & 0xffff) != op_greater) continue;
    uint32_t *comparison = code + at, value = constant_value(code, words, comparison[4]);
    if (with_32 && value == 16) {
      with_32[0] = 5u << 16 | op_equal;
      with_32[4] = with_32[3];
    }
    if (value) with_32 = value == 32 ? comparison : NULL;
  }
}

static int create_shader(void *device, const struct shader_info *info, const void *allocator, uint64_t *shader) {
  uint32_t *code = malloc(info->bytes);
  if (!code) return out_of_host_memory;
  memcpy(code, info->code, info->bytes);
  keep_copy_for_any_length(code, info->bytes / sizeof *code);
  struct shader_info changed = *info;
  changed.code = code;
  int result = next_create_shader(device, &changed, allocator, shader);
  free(code);
  return result;
}

static function device_address(void *device, const char *name) {
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (function)device_address;
  if (strcmp(name, "vkDestroyBuffer") == 0) return (function)destroy_buffer;
  if (strcmp(name, "vkGetFenceStatus") == 0) {
    next_fence_status = (void *)next_device_address(device, name);
    next_wait_for_fences = (void *)next_device_address(device, "vkWaitForFences");
    return (function)fence_status;
  }
  if (strcmp(name, "vkCreateShaderModule") == 0) {
    next_create_shader = (void *)next_device_address(device, name);
    return (function)create_shader;
  }
  return next_device_address(device, name);
}

static function instance_address(void *instance, const char *name) {
  if (strcmp(name, "vkGetInstanceProcAddr") == 0) return (function)instance_address;
  if (strcmp(name, "vkCreateInstance") == 0) return (function)create_instance;
  if (strcmp(name, "vkCreateDevice") == 0) return (function)create_device;
  if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (function)device_address;
  if (strcmp(name, "vkDestroyBuffer") == 0) return (function)destroy_buffer;
  return next_instance_address ? next_instance_address(instance, name) : NULL;
}

int vkNegotiateLoaderLayerInterfaceVersion(struct negotiation *asked) {
  asked->version = 2;
  asked->instance_address = instance_address;
  asked->device_address = device_address;
  asked->physical_device_address = NULL;
  return 0;
}

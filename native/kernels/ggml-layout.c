/*
 * A buffer type of ggml whose tensors lie packed: what is written into them is packed on the way, on whatever thread
 * writes. It is plain memory of ggml with other functions for sizes and for writing.
 */
#include "dispatch.h"
#include "ggml-tensor.h"
#include "pack.h"
#include <string.h>

struct buffer_type;

/* struct ggml_backend_buffer_type of ggml 0.25, and behind it what is ours. */
struct buffer_type {
  const char *(*get_name)(struct buffer_type *);
  void *(*alloc_buffer)(struct buffer_type *, size_t);
  void *get_alignment, *get_max_size;
  size_t (*get_alloc_size)(struct buffer_type *, const struct tensor *);
  void *is_host, *device, *context;
  struct buffer_type *plain;
  int64_t set;
};

/* Of struct ggml_backend_buffer, which begins with functions: free_buffer, get_base, init_tensor, memset_tensor, … */
#define SET_TENSOR 4
/* Fields among which the type of the buffer is. */
#define FIELDS_MAX 16

static const char *get_name(struct buffer_type *type) {
  return type->set == HK_AMX_BF16          ? "PACKED_AMX_BF16"
         : type->set == HK_AVX512_BF16     ? "PACKED_AVX512_BF16"
         : type->set == HK_AVX512_VNNI     ? "PACKED_AVX512_VNNI"
                                           : "PACKED_AVX2";
}

static int64_t plane_bytes(const struct tensor *tensor) {
  return hk_packed_bytes(tensor->type, tensor->ne[1], tensor->ne[0]);
}

static size_t get_alloc_size(struct buffer_type *type, const struct tensor *tensor) {
  (void)type;
  return (size_t)(plane_bytes(tensor) * tensor->ne[2] * tensor->ne[3]);
}

static struct buffer_type **type_of(void **buffer, const void *type) {
  for (int field = 0; field < FIELDS_MAX; field++)
    if (buffer[field] == type) return (struct buffer_type **)(buffer + field);
  return NULL;
}

/* Name of a tensor with a weight that is no number, which this thread has written. */
static _Thread_local char refused[64];
static _Thread_local int refused_any;

/*
 * The name of a tensor that the calling thread wrote into one of these layouts and that has a weight that is NaN or
 * infinite, once; NULL where there is none. Writing cannot fail in ggml, so who has written asks here.
 */
HK_API const char *hk_take_refused(void) {
  const int any = refused_any;
  refused_any = 0;
  return any ? refused : NULL;
}

static void refuse(const struct tensor *tensor) {
  if (!refused_any) memcpy(refused, tensor->name, sizeof refused - 1);
  refused_any = 1;
}

/* Whole tensors only, as ggml's own special layouts. `set` is known by the function. */
static void set_tensor(int set, const struct tensor *tensor, const uint8_t *data) {
  const int64_t n = tensor->ne[1], k = tensor->ne[0], source_bytes = n * hk_row_bytes(tensor->type, k);
  int finite = 1;
  for (int64_t plane = 0; plane < tensor->ne[2] * tensor->ne[3]; plane++)
    finite &= hk_pack_weights(set, tensor->type, n, k, data + plane * source_bytes,
                              (uint8_t *)tensor->data + plane * plane_bytes(tensor));
  if (!finite) refuse(tensor);
}

static void set_rows(void *buffer, struct tensor *tensor, const void *data, size_t offset, size_t bytes) {
  (void)buffer, (void)offset, (void)bytes;
  set_tensor(HK_AMX_BF16, tensor, data);
}

/* Pairs and fours, the same for all sets of vectors. */
static void set_pairs(void *buffer, struct tensor *tensor, const void *data, size_t offset, size_t bytes) {
  (void)buffer, (void)offset, (void)bytes;
  set_tensor(HK_AVX2, tensor, data);
}

static void *alloc_buffer(struct buffer_type *type, size_t bytes) {
  void **buffer = type->plain->alloc_buffer(type->plain, bytes);
  if (!buffer) return NULL;
  struct buffer_type **own = type_of(buffer, type->plain);
  if (!own) return NULL;
  *own = type;
  buffer[SET_TENSOR] = hk_is_in_rows((int)type->set) ? (void *)set_rows : (void *)set_pairs;
  return buffer;
}

static struct buffer_type layouts[4];

/*
 * The layout of one instruction set, made from ggml's plain buffer type; the same for as long as the process lives.
 * Returns NULL where that set is not among hk_sets().
 */
HK_API void *hk_layout(int set, struct buffer_type *plain) {
  if (!(hk_sets() & set)) return NULL;
  struct buffer_type *layout = &layouts[set == HK_AVX512_VNNI ? 3 : set >> 1];
  if (layout->plain == plain) return layout;
  struct buffer_type made = *plain;
  made.get_name = get_name;
  made.alloc_buffer = alloc_buffer;
  made.get_alloc_size = get_alloc_size;
  made.plain = plain;
  made.set = set;
  *layout = made;
  return layout;
}

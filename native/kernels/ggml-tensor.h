/* What is read of struct ggml_tensor of ggml 0.25; the bindings compare offsets with the library when they load it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct tensor {
  int32_t type;
  void *buffer;
  int64_t ne[4];
  size_t nb[4];
  int32_t op, op_params[16], flags;
  struct tensor *src[10];
  void *view_src;
  size_t view_offs;
  void *data;
  char name[64];
};
_Static_assert(offsetof(struct tensor, ne) == 16 && offsetof(struct tensor, nb) == 48 &&
                   offsetof(struct tensor, src) == 152 && offsetof(struct tensor, data) == 248,
               "struct ggml_tensor");

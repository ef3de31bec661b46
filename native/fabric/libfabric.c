/*
 * libfabric's own functions, looked for when they are first asked for, not when this library is loaded: it runs where
 * there is no libfabric, and says so. Everything else of libfabric is called through tables in what these return.
 *
 * Functions have the versions (ABI) of the structs that API 1.14 has; a newer libfabric keeps them.
 */
#define _GNU_SOURCE
#include "libfabric.h"
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <stdio.h>

#define LIBRARY "libfabric.so.1"
/* The API that fabric.c asks for. */
#define OLDEST FI_VERSION(1, 14)

static struct {
  int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
  void (*freeinfo)(struct fi_info *);
  struct fi_info *(*dupinfo)(const struct fi_info *);
  int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
  const char *(*strerror)(int);
  uint32_t (*version)(void);
} found;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char absence[256];

static void say_absence(void) {
  const char *why = dlerror();
  snprintf(absence, sizeof absence, "%s", why ? why : LIBRARY " does not load");
}

static void find(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    say_absence();
    return;
  }
  const struct {
    const char *name;
    const char *version;
    void *place;
  } wanted[] = {
      {"fi_getinfo", "FABRIC_1.3", &found.getinfo}, {"fi_freeinfo", "FABRIC_1.3", &found.freeinfo},
      {"fi_dupinfo", "FABRIC_1.3", &found.dupinfo}, {"fi_fabric", "FABRIC_1.1", &found.fabric},
      {"fi_strerror", "FABRIC_1.0", &found.strerror}, {"fi_version", "FABRIC_1.0", &found.version},
  };
  for (size_t at = 0; at < sizeof wanted / sizeof wanted[0]; at++) {
    void *function = dlvsym(library, wanted[at].name, wanted[at].version);
    if (!function) {
      say_absence();
      dlclose(library);
      return;
    }
    *(void **)wanted[at].place = function;
  }
  const uint32_t version = found.version();
  if (version >= OLDEST) return;
  snprintf(absence, sizeof absence, LIBRARY " is %u.%u; 1.14 or later is needed", FI_MAJOR(version), FI_MINOR(version));
}

const char *ht_libfabric_absence(void) {
  pthread_once(&once, find);
  return absence[0] ? absence : NULL;
}

/* What the headers declare, for the rest of this library; nobody calls these before libfabric was found. */
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **info) {
  return found.getinfo(version, node, service, flags, hints, info);
}

void fi_freeinfo(struct fi_info *info) { found.freeinfo(info); }

struct fi_info *fi_dupinfo(const struct fi_info *info) { return found.dupinfo(info); }

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  return found.fabric(attr, fabric, context);
}

const char *fi_strerror(int number) { return found.strerror(number); }

uint32_t fi_version(void) { return found.version(); }

/* libfabric, which is looked for when it is first asked for; see libfabric.c. */
#ifndef HPCSERVE_LIBFABRIC_H
#define HPCSERVE_LIBFABRIC_H

#include "transfer.h"

/* NULL where it is there; else why not, in the dynamic linker's words. Nothing else of fabric.c is called before. */
HT_API const char *ht_libfabric_absence(void);

#endif

/* Threads that end before the process does; see at-exit.c. */
#ifndef HPCSERVE_AT_EXIT_H
#define HPCSERVE_AT_EXIT_H

#include <pthread.h>

struct ht_thread {
  pthread_t id;
  /* Tells it to end; it may be called twice. */
  void (*stop)(void *of);
  void *of;
  struct ht_thread *next;
};

void ht_thread_runs(struct ht_thread *thread);
/* 0 where the process ends, and it was stopped. */
int ht_thread_is_ours(struct ht_thread *thread);

#endif

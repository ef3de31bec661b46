/*
 * A library that threads of ours are in gives up what it has when the process ends, whether they look at it or not: who
 * owned them, a thread of Node, is gone by then without a word. They are stopped first.
 */
#define _GNU_SOURCE
#include "at-exit.h"
#include <stdlib.h>
#include <time.h>

/* A process that ends waits so long for threads that a library holds. */
#define EXIT_S 1

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ht_thread *running;

static void stop_all(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += EXIT_S;
  pthread_mutex_lock(&mutex);
  for (struct ht_thread *thread = running; thread; thread = thread->next) {
    thread->stop(thread->of);
    pthread_timedjoin_np(thread->id, NULL, &until);
  }
  running = NULL;
  pthread_mutex_unlock(&mutex);
}

static void register_exit(void) { atexit(stop_all); }

void ht_thread_runs(struct ht_thread *thread) {
  pthread_once(&once, register_exit);
  pthread_mutex_lock(&mutex);
  thread->next = running;
  running = thread;
  pthread_mutex_unlock(&mutex);
}

int ht_thread_is_ours(struct ht_thread *thread) {
  pthread_mutex_lock(&mutex);
  struct ht_thread **place = &running;
  while (*place && *place != thread) place = &(*place)->next;
  const int found = *place != NULL;
  if (found) *place = thread->next;
  pthread_mutex_unlock(&mutex);
  return found;
}

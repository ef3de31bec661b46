/* What threads that move bytes have in common: a queue of jobs, and how their ends are told. */
#include "transfer.h"
#include <errno.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

void ht_queue_init(struct ht_queue *queue) {
  pthread_mutex_init(&queue->mutex, NULL);
  pthread_cond_init(&queue->filled, NULL);
  queue->first = NULL;
  queue->last = &queue->first;
  queue->stopping = 0;
}

void ht_queue_push(struct ht_queue *queue, struct ht_link *job) {
  job->next = NULL;
  pthread_mutex_lock(&queue->mutex);
  *queue->last = job;
  queue->last = &job->next;
  pthread_cond_signal(&queue->filled);
  pthread_mutex_unlock(&queue->mutex);
}

static struct ht_link *take(struct ht_queue *queue) {
  struct ht_link *job = queue->first;
  if (!job) return NULL;
  queue->first = job->next;
  if (!queue->first) queue->last = &queue->first;
  return job;
}

struct ht_link *ht_queue_wait(struct ht_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  while (!queue->first && !queue->stopping) pthread_cond_wait(&queue->filled, &queue->mutex);
  /* What still waits is told as given up by whoever stops it. */
  struct ht_link *job = queue->stopping ? NULL : take(queue);
  pthread_mutex_unlock(&queue->mutex);
  return job;
}

struct ht_link *ht_queue_poll(struct ht_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  struct ht_link *job = take(queue);
  pthread_mutex_unlock(&queue->mutex);
  return job;
}

void ht_queue_stop(struct ht_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  queue->stopping = 1;
  pthread_cond_broadcast(&queue->filled);
  pthread_mutex_unlock(&queue->mutex);
}

int ht_queue_stopping(struct ht_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  const int stopping = queue->stopping;
  pthread_mutex_unlock(&queue->mutex);
  return stopping;
}

void ht_tell(int pipe, const struct ht_done *done) {
  while (write(pipe, done, sizeof *done) < 0) {
    if (errno == EAGAIN) {
      struct pollfd room = {.fd = pipe, .events = POLLOUT};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return; /* The reader is gone, and with it whoever would ask. */
    }
  }
}

static int64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t ht_now_ms(void) { return clock_ns(CLOCK_MONOTONIC) / 1000000; }

int64_t ht_thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

int ht_check_pieces(const struct ht_piece *pieces, int64_t count, int64_t memory_bytes) {
  if (count < 0) return -EINVAL;
  for (int64_t index = 0; index < count; index++) {
    const struct ht_piece *piece = &pieces[index];
    if (piece->offset < 0 || piece->bytes <= 0) return -EINVAL;
    if (piece->bytes > memory_bytes || piece->offset > memory_bytes - piece->bytes) return -EINVAL;
  }
  return 0;
}

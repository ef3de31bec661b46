/*
 * Moving ranges of one memory (a pool, which on CPUs is a memory file) to another process, on threads of our own: the
 * event loop hands in jobs, and reads from a pipe how each ended.
 *
 *   TypeScript ── submit ──►  queue  ──► thread: sockets (mover.c) or libfabric (fabric.c)
 *       ▲                                   │
 *       └────────── ht_done, one a job ◄────┘  (a pipe)
 */
#ifndef HPCSERVE_TRANSFER_H
#define HPCSERVE_TRANSFER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define HT_API __attribute__((visibility("default")))

/* Of a frame on a socket; what it says is checked by whoever expects it. */
#define HT_HEADER_BYTES 32
/* What each side of a connection proves itself with, once. */
#define HT_TICKET_BYTES 32

/* Bytes [offset, offset + bytes) of a memory. */
struct ht_piece {
  int64_t offset;
  int64_t bytes;
};

/* What is told of a job when it is over, in one write: 40 bytes are less than PIPE_BUF. */
struct ht_done {
  int64_t id;
  /* 0 or a descriptor; else a negative errno. */
  int64_t status;
  int64_t bytes;
  /* CRC-32C of the bytes in order, where it was asked for. */
  int64_t checksum;
  /* Processor time of the thread that worked on it. */
  int64_t cpu_ns;
};

/* Jobs in the order in which they came. */
struct ht_link {
  struct ht_link *next;
};
struct ht_queue {
  pthread_mutex_t mutex;
  pthread_cond_t filled;
  struct ht_link *first;
  struct ht_link **last;
  int stopping;
};

void ht_queue_init(struct ht_queue *queue);
void ht_queue_push(struct ht_queue *queue, struct ht_link *job);
/* Waits for a job; NULL once it is stopping. */
struct ht_link *ht_queue_wait(struct ht_queue *queue);
/* A job if there is one. */
struct ht_link *ht_queue_poll(struct ht_queue *queue);
void ht_queue_stop(struct ht_queue *queue);
/* Whether it was told to stop. */
int ht_queue_stopping(struct ht_queue *queue);

/* Whole records only: a reader that is slow is waited for. */
void ht_tell(int pipe, const struct ht_done *done);
int64_t ht_now_ms(void);
int64_t ht_thread_cpu_ns(void);
/* 0 where every piece lies in a memory of so many bytes. */
int ht_check_pieces(const struct ht_piece *pieces, int64_t count, int64_t memory_bytes);

/* CRC-32C (Castagnoli) of `bytes` after those that gave `crc`; 0 at the beginning. */
HT_API uint32_t ht_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif

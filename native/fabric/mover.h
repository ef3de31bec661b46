/* A thread that moves pieces over sockets; see mover.c. */
#ifndef HPCSERVE_MOVER_H
#define HPCSERVE_MOVER_H

#include "transfer.h"

enum ht_kind { HT_SEND, HT_RECEIVE, HT_CHECK, HT_ACCEPT, HT_CONNECT };
enum ht_flag { HT_BY_SENDFILE = 1, HT_WITH_CHECKSUM = 2 };

/* Of a send or receive: the header of its frame. Of a connection: our ticket, the peer's, and where to. */
#define HT_WORDS_BYTES 128

/* How long a job may take. */
struct ht_patience {
  int64_t silence_ms;
  int64_t silent_since_ms;
  int64_t deadline_ms;
};

struct ht_job {
  struct ht_link link;
  int64_t id;
  int32_t kind;
  int32_t socket;
  int32_t flags;
  int64_t limit_ms;
  struct ht_patience patience;
  int64_t moved;
  uint32_t checksum;
  uint8_t words[HT_WORDS_BYTES];
  int64_t n_pieces;
  struct ht_piece pieces[];
};

struct ht_mover {
  uint8_t *base;
  int64_t bytes;
  int file;
  int pipe;
  int wake;
  pthread_t thread;
  struct ht_queue queue;
};

int ht_mover_wait(struct ht_mover *mover, struct ht_patience *patience, int socket, short events);
void ht_patience_heard(struct ht_patience *patience);

/* A descriptor, or a negative errno. */
int ht_accept(struct ht_mover *mover, struct ht_job *job);
int ht_connect(struct ht_mover *mover, struct ht_job *job);

#endif

/*
 * How two workers come to a connection: one listens for this one peer, for seconds; the other shows the ticket that it
 * was given over an authenticated way, and is shown one in turn. A ticket is good once. Strangers who connect are
 * heard side by side and hold nobody up.
 */
#define _GNU_SOURCE
#include "mover.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections that have shown nothing yet; of more the oldest ends. */
#define STRANGERS 16
/* Of somebody who was turned away before he could show his ticket. */
#define ATTEMPTS 20
/* Of a socket. Lower: less memory of the kernel's; higher: long links are filled. */
#define SOCKET_BYTES (4 * 1024 * 1024)

/* Where to, in the words of a job: behind two tickets. */
struct place {
  uint16_t port;
  char host[HT_WORDS_BYTES - 2 * HT_TICKET_BYTES - 2];
};

static int parse(const char *host, uint16_t port, struct sockaddr_storage *address, socklen_t *length) {
  struct sockaddr_in *four = (struct sockaddr_in *)address;
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
  memset(address, 0, sizeof *address);
  if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    *length = sizeof *four;
    return 0;
  }
  if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    *length = sizeof *six;
    return 0;
  }
  return -EINVAL; /* Names are not looked up: whoever calls knows an address. */
}

static void prepare(int socket) {
  const int one = 1;
  const int bytes = SOCKET_BYTES;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

/* A socket that listens; 0 as `port` is any, and `found` says which. A negative errno where there is none. */
HT_API int32_t ht_listen(const char *host, int32_t port, int32_t *found) {
  struct sockaddr_storage address;
  socklen_t length;
  if (parse(host, (uint16_t)port, &address, &length)) return -EINVAL;
  const int listener = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return -errno;
  if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, STRANGERS) < 0 ||
      getsockname(listener, (struct sockaddr *)&address, &length) < 0) {
    const int failed = -errno;
    close(listener);
    return failed;
  }
  const uint16_t bound = address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                                      : ((struct sockaddr_in6 *)&address)->sin6_port;
  *found = ntohs(bound);
  return listener;
}

/* In a time that does not depend on where they differ. */
static int same(const uint8_t *a, const uint8_t *b) {
  unsigned different = 0;
  for (int at = 0; at < HT_TICKET_BYTES; at++) different |= a[at] ^ b[at];
  return different == 0;
}

struct stranger {
  int socket;
  int came;
  uint8_t ticket[HT_TICKET_BYTES];
};

static void end_stranger(struct stranger *strangers, int *count, int index) {
  if (strangers[index].socket >= 0) close(strangers[index].socket);
  memmove(&strangers[index], &strangers[index + 1], (size_t)(--*count - index) * sizeof *strangers);
}

/* 1: the ticket is whole; 0: more is to come; −1: it is gone. */
static int hear(struct stranger *stranger) {
  const ssize_t came =
      recv(stranger->socket, stranger->ticket + stranger->came, (size_t)(HT_TICKET_BYTES - stranger->came), 0);
  if (came < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (came <= 0) return -1;
  stranger->came += (int)came;
  return stranger->came == HT_TICKET_BYTES;
}

/* Index of the one who showed the ticket, −1 where none has. Those who are wrong end. */
static int proven(struct stranger *strangers, int *count, const struct pollfd *ready, const uint8_t *expected) {
  for (int index = *count - 1; index >= 0; index--) {
    if (!ready[index].revents) continue;
    const int heard = hear(&strangers[index]);
    if (heard > 0 && same(strangers[index].ticket, expected)) return index;
    if (heard != 0) end_stranger(strangers, count, index);
  }
  return -1;
}

static int meet(struct ht_mover *mover, struct ht_job *job, struct stranger *strangers, int *count) {
  for (;;) {
    const int64_t left = job->patience.deadline_ms - ht_now_ms();
    if (left <= 0) return -ETIMEDOUT;
    struct pollfd ready[STRANGERS + 2];
    for (int index = 0; index < *count; index++) ready[index] = (struct pollfd){strangers[index].socket, POLLIN, 0};
    const int known = *count;
    ready[known] = (struct pollfd){job->socket, POLLIN, 0};
    ready[known + 1] = (struct pollfd){mover->wake, POLLIN, 0};
    if (poll(ready, (nfds_t)known + 2, (int)left) < 0 && errno != EINTR) return -errno;
    if (ready[known + 1].revents) return -ECANCELED;
    const int index = proven(strangers, count, ready, job->words);
    if (index >= 0) {
      const int socket = strangers[index].socket;
      /* A buffer of a fresh connection has room for so few bytes. */
      if (send(socket, job->words + HT_TICKET_BYTES, HT_TICKET_BYTES, MSG_NOSIGNAL) != HT_TICKET_BYTES)
        return -ECONNRESET;
      prepare(socket);
      strangers[index].socket = -1; /* Not closed with the others. */
      return socket;
    }
    const int socket = accept4(job->socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) continue;
    if (*count == STRANGERS) end_stranger(strangers, count, 0);
    strangers[(*count)++] = (struct stranger){.socket = socket};
  }
}

/* Words: the ticket that is expected, then the one that answers it. */
int ht_accept(struct ht_mover *mover, struct ht_job *job) {
  struct stranger strangers[STRANGERS];
  int count = 0;
  const int met = meet(mover, job, strangers, &count);
  while (count > 0) end_stranger(strangers, &count, 0);
  return met;
}

static int exchange(struct ht_mover *mover, struct ht_job *job, int socket) {
  int failed = ht_mover_wait(mover, &job->patience, socket, POLLOUT);
  int error = 0;
  socklen_t length = sizeof error;
  if (failed) return failed;
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) < 0) return -errno;
  if (error) return -error;
  if (send(socket, job->words, HT_TICKET_BYTES, MSG_NOSIGNAL) != HT_TICKET_BYTES) return -ECONNRESET;
  uint8_t answer[HT_TICKET_BYTES];
  for (int came = 0; came < HT_TICKET_BYTES;) {
    failed = ht_mover_wait(mover, &job->patience, socket, POLLIN);
    if (failed) return failed;
    const ssize_t more = recv(socket, answer + came, (size_t)(HT_TICKET_BYTES - came), 0);
    if (more == 0) return -ECONNRESET;
    if (more < 0 && errno != EAGAIN && errno != EINTR) return -errno;
    if (more > 0) came += (int)more;
  }
  return same(answer, job->words + HT_TICKET_BYTES) ? 0 : -EACCES;
}

/* Words: our ticket, the one that must answer it, then the place. */
int ht_connect(struct ht_mover *mover, struct ht_job *job) {
  struct place place;
  memcpy(&place, job->words + 2 * HT_TICKET_BYTES, sizeof place);
  place.host[sizeof place.host - 1] = 0;
  struct sockaddr_storage address;
  socklen_t length;
  if (parse(place.host, place.port, &address, &length)) return -EINVAL;
  for (int attempt = 1;; attempt++) {
    const int connected = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connected < 0) return -errno;
    prepare(connected);
    int failed = 0;
    if (connect(connected, (struct sockaddr *)&address, length) < 0 && errno != EINPROGRESS) failed = -errno;
    if (!failed) failed = exchange(mover, job, connected);
    if (!failed) return connected;
    close(connected);
    /* Among many strangers it may have been the oldest. */
    if (failed != -ECONNRESET || attempt == ATTEMPTS) return failed;
  }
}

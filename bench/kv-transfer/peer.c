/*
 * What our ways are compared with: plain send() and recv() of the same bytes, and memcpy. Driven over stdin, a round a
 * line: bytes of a transfer, bytes of a piece, transfers. Answers: nanoseconds by the clock, and of processor time.
 *
 * peer recv ADDRESS    prints its port, takes what comes, and says when a round is whole
 * peer send ADDRESS PORT
 * peer memcpy
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MEMORY (1ull << 30)
/* Of ours as well. */
#define SOCKET_BYTES (4 * 1024 * 1024)

static int64_t ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

/* As a pool has it: a memory file. */
static uint8_t *memory(void) {
  const int file = memfd_create("peer", 0);
  if (file < 0 || ftruncate(file, MEMORY) < 0) fail("memfd_create");
  uint8_t *mapped = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (mapped == MAP_FAILED) fail("mmap");
  madvise(mapped, MEMORY, MADV_HUGEPAGE);
  memset(mapped, 7, MEMORY);
  return mapped;
}

struct round {
  uint64_t bytes;
  uint64_t piece;
  uint64_t count;
};

/* Offset of a piece: contiguous ones in order, others from the end, so that no two are neighbours in order. */
static uint64_t place(const struct round *round, uint64_t transfer, uint64_t at) {
  const uint64_t base = transfer * round->bytes % MEMORY;
  const uint64_t start = base + round->bytes > MEMORY ? 0 : base;
  return start + (round->piece == round->bytes ? at : round->bytes - at - round->piece);
}

static void receive(int socket, uint8_t *into) {
  struct round round;
  while (recv(socket, &round, sizeof round, MSG_WAITALL) == sizeof round) {
    for (uint64_t transfer = 0; transfer < round.count; transfer++)
      for (uint64_t at = 0; at < round.bytes; at += round.piece) {
        uint8_t *to = into + place(&round, transfer, at);
        for (uint64_t left = round.piece; left > 0;) {
          const ssize_t came = recv(socket, to, left, 0);
          if (came <= 0) fail("recv");
          to += came, left -= (uint64_t)came;
        }
      }
    if (send(socket, "k", 1, 0) != 1) fail("send");
  }
}

static void say(int64_t wall, int64_t cpu) {
  printf("%lld %lld\n", (long long)wall, (long long)cpu);
  fflush(stdout);
}

static int next(struct round *round) {
  unsigned long long bytes, piece, count;
  if (scanf("%llu %llu %llu", &bytes, &piece, &count) != 3) return 0;
  *round = (struct round){bytes, piece, count};
  return 1;
}

static void transmit(int socket, const uint8_t *from) {
  struct round round;
  while (next(&round)) {
    const int64_t wall = ns(CLOCK_MONOTONIC);
    const int64_t cpu = ns(CLOCK_PROCESS_CPUTIME_ID);
    if (send(socket, &round, sizeof round, 0) != sizeof round) fail("send");
    for (uint64_t transfer = 0; transfer < round.count; transfer++)
      for (uint64_t at = 0; at < round.bytes; at += round.piece) {
        const uint8_t *bytes = from + place(&round, transfer, at);
        for (uint64_t left = round.piece; left > 0;) {
          const ssize_t sent = send(socket, bytes, left, 0);
          if (sent <= 0) fail("send");
          bytes += sent, left -= (uint64_t)sent;
        }
      }
    char whole;
    if (recv(socket, &whole, 1, 0) != 1) fail("recv");
    say(ns(CLOCK_MONOTONIC) - wall, ns(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  }
}

static void copy(uint8_t *to, const uint8_t *from) {
  struct round round;
  while (next(&round)) {
    const int64_t wall = ns(CLOCK_MONOTONIC);
    const int64_t cpu = ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t transfer = 0; transfer < round.count; transfer++)
      for (uint64_t at = 0; at < round.bytes; at += round.piece) {
        const uint64_t offset = place(&round, transfer, at);
        memcpy(to + offset, from + offset, round.piece);
      }
    say(ns(CLOCK_MONOTONIC) - wall, ns(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  }
}

int main(int argc, char **argv) {
  if (argc == 2) {
    copy(memory(), memory());
    return 0;
  }
  const int one = 1;
  const int bytes = SOCKET_BYTES;
  struct sockaddr_in address = {.sin_family = AF_INET};
  inet_pton(AF_INET, argv[2], &address.sin_addr);
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  uint8_t *mine = memory();
  if (strcmp(argv[1], "send") == 0) {
    address.sin_port = htons((uint16_t)atoi(argv[3]));
    if (connect(socket_, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
    transmit(socket_, mine);
    return 0;
  }
  socklen_t length = sizeof address;
  if (bind(socket_, (struct sockaddr *)&address, length) < 0 || listen(socket_, 1) < 0) fail("listen");
  getsockname(socket_, (struct sockaddr *)&address, &length);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);
  receive(accept(socket_, NULL, NULL), mine);
  return 0;
}

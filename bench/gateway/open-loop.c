/*
 * Sends requests at times of its own, whoever is answered when, as many clients together do: at random, at a given rate
 * on average (a Poisson process of a fixed seed). A request that is due while all connections wait for answers is sent
 * as soon as one has it, and what it waited counts.
 *
 *   open-loop PORT CONNECTIONS RATE_PER_S COUNT <REQUEST >TIMES
 *
 * REQUEST is one whole HTTP/1.1 request. TIMES has a line for each: its status, and microseconds from when it was due
 * until its answer was there. Ends with 1 where a connection breaks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <math.h>
#include <unistd.h>

#define REQUEST_BYTES_MAX (1 << 20)
#define ANSWER_BYTES_MAX (1 << 18)

struct connection {
  int fd;
  long request; /* under way; -1: none */
  size_t length;
  char answer[ANSWER_BYTES_MAX + 1];
};

struct arrival {
  int64_t due_ns, taken_ns;
  int status;
};

static char request[REQUEST_BYTES_MAX];
static size_t request_bytes;

static void fail(const char *what) {
  fprintf(stderr, "open-loop: %s: %s\n", what, errno ? strerror(errno) : "not understood");
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* xorshift64*: the same times in every run. */
static double uniform(void) {
  static uint64_t state = 0x9e3779b97f4a7c15ULL;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return ((state * 0x2545f4914f6cdd1dULL) >> 11) * 0x1.0p-53;
}

static int connected(int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) fail("cannot connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/* A request fits into the buffer of a socket that has sent all before. */
static void send_request(struct connection *over, long number) {
  over->request = number;
  over->length = 0;
  if (send(over->fd, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) fail("cannot send");
}

/* Whether the answer is whole; its status is set then. */
static int is_whole(struct connection *over, int *status) {
  over->answer[over->length] = 0;
  char *end = strstr(over->answer, "\r\n\r\n");
  if (!end) return 0;
  size_t head = end + 4 - over->answer;
  *end = 0;
  char *length = strcasestr(over->answer, "\r\ncontent-length:");
  int chunked = strcasestr(over->answer, "\r\ntransfer-encoding: chunked") != NULL;
  if (sscanf(over->answer, "HTTP/1.1 %d", status) != 1 || (!length && !chunked)) errno = 0, fail("an answer");
  size_t body = length ? strtoul(length + 17, NULL, 10) : 0;
  *end = '\r';
  if (length) return over->length >= head + body;
  return over->length >= head + 5 && memcmp(over->answer + over->length - 5, "0\r\n\r\n", 5) == 0;
}

static int read_answer(struct connection *over, int *status) {
  ssize_t read_bytes = recv(over->fd, over->answer + over->length, ANSWER_BYTES_MAX - over->length, MSG_DONTWAIT);
  if (read_bytes < 0 && errno == EAGAIN) return 0;
  if (read_bytes <= 0) fail("a connection ended");
  over->length += read_bytes;
  return is_whole(over, status);
}

int main(int argc, char **argv) {
  if (argc != 5) errno = 0, fail("open-loop PORT CONNECTIONS RATE_PER_S COUNT");
  int port = atoi(argv[1]), width = atoi(argv[2]);
  double rate_per_s = atof(argv[3]);
  long count = atol(argv[4]);
  if (width < 1 || rate_per_s <= 0 || count < 1) errno = 0, fail("a number");
  request_bytes = fread(request, 1, sizeof request, stdin);

  struct connection *connections = calloc(width, sizeof *connections);
  struct arrival *arrivals = calloc(count, sizeof *arrivals);
  long *idle = calloc(width, sizeof *idle), idle_count = width;
  int poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
  if (!connections || !arrivals || !idle || poll < 0 || timer < 0) fail("cannot begin");
  struct epoll_event timed = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
  epoll_ctl(poll, EPOLL_CTL_ADD, timer, &timed);
  for (long at = 0; at < width; at++) {
    connections[at] = (struct connection){.fd = connected(port), .request = -1};
    struct epoll_event readable = {.events = EPOLLIN, .data.u64 = at};
    epoll_ctl(poll, EPOLL_CTL_ADD, connections[at].fd, &readable);
    idle[at] = at;
  }
  double due_ns = now_ns() + 1e7;
  for (long at = 0; at < count; at++) {
    due_ns -= log(1 - uniform()) * 1e9 / rate_per_s;
    arrivals[at].due_ns = due_ns;
  }

  long sent = 0, answered = 0;
  while (answered < count) {
    while (sent < count && idle_count > 0 && arrivals[sent].due_ns <= now_ns())
      send_request(&connections[idle[--idle_count]], sent), sent++;
    if (sent < count && idle_count > 0) {
      int64_t due = arrivals[sent].due_ns;
      struct itimerspec once = {.it_value = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000}};
      timerfd_settime(timer, TFD_TIMER_ABSTIME, &once, NULL);
    }
    struct epoll_event events[64];
    int ready = epoll_wait(poll, events, 64, 30000);
    if (ready == 0) errno = ETIMEDOUT;
    if (ready <= 0) fail("no answer");
    for (int each = 0; each < ready; each++) {
      if (events[each].data.u64 == UINT64_MAX) {
        uint64_t expirations;
        if (read(timer, &expirations, sizeof expirations) < 0) fail("the clock");
        continue;
      }
      struct connection *over = &connections[events[each].data.u64];
      if (over->request < 0) errno = 0, fail("an answer that nobody asked for");
      struct arrival *of = &arrivals[over->request];
      if (!read_answer(over, &of->status)) continue;
      of->taken_ns = now_ns();
      over->request = -1;
      idle[idle_count++] = events[each].data.u64;
      answered++;
    }
  }
  for (long at = 0; at < count; at++)
    printf("%d\t%lld\n", arrivals[at].status, (long long)(arrivals[at].taken_ns - arrivals[at].due_ns) / 1000);
  return 0;
}

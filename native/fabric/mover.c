/*
 * Sends and receives pieces of a memory over connected sockets. One thread works on one job at a time; the sockets do
 * not block, so that it always hears that it is to end. A frame is a header and the bytes of its pieces in order.
 *
 * sendfile: the kernel sends the pages of the memory file themselves. They are in flight until the peer has taken
 * them, so whoever owns them keeps them until the peer says so: the end of a job is not enough.
 */
#define _GNU_SOURCE
#include "mover.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Bytes that are read and checked at once: they are still in a cache. */
#define CHECKED_BYTES (256 * 1024)
/* Pieces of one readv or sendmsg. */
#define VECTOR 64
/* Bytes of one sendfile: between two of them the clock is looked at. */
#define SENDFILE_BYTES (8 * 1024 * 1024)

/* Until the socket is ready. 0, or why not: -ETIMEDOUT, -ECANCELED. */
int ht_mover_wait(struct ht_mover *mover, struct ht_patience *patience, int socket, short events) {
  for (;;) {
    const int64_t now = ht_now_ms();
    const int64_t silent = patience->silent_since_ms + patience->silence_ms;
    const int64_t until = silent < patience->deadline_ms ? silent : patience->deadline_ms;
    if (now >= until) return -ETIMEDOUT;
    struct pollfd ready[2] = {{.fd = socket, .events = events}, {.fd = mover->wake, .events = POLLIN}};
    const int found = poll(ready, 2, (int)(until - now));
    if (found < 0 && errno != EINTR) return -errno;
    if (ready[1].revents) return -ECANCELED;
    if (found > 0 && ready[0].revents) return 0;
  }
}

void ht_patience_heard(struct ht_patience *patience) { patience->silent_since_ms = ht_now_ms(); }

/* A signal or a full buffer is waited out; anything else ends the job. */
static int after_failure(struct ht_mover *mover, struct ht_job *job, short events) {
  if (errno == EINTR) return 0;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return ht_mover_wait(mover, &job->patience, job->socket, events);
  return -errno;
}

static int send_bytes(struct ht_mover *mover, struct ht_job *job, const void *data, size_t bytes, int flags) {
  const uint8_t *from = data;
  while (bytes > 0) {
    const ssize_t sent = send(job->socket, from, bytes, flags | MSG_NOSIGNAL);
    if (sent >= 0) {
      from += sent, bytes -= (size_t)sent;
      ht_patience_heard(&job->patience);
      continue;
    }
    const int failed = after_failure(mover, job, POLLOUT);
    if (failed) return failed;
  }
  return 0;
}

static int send_file(struct ht_mover *mover, struct ht_job *job, const struct ht_piece *piece) {
  off_t offset = piece->offset;
  const off_t end = piece->offset + piece->bytes;
  while (offset < end) {
    const size_t wanted = end - offset < SENDFILE_BYTES ? (size_t)(end - offset) : SENDFILE_BYTES;
    const ssize_t sent = sendfile(job->socket, mover->file, &offset, wanted);
    if (sent > 0) {
      ht_patience_heard(&job->patience);
      continue;
    }
    if (sent == 0) return -EIO; /* The memory file is shorter than the pool. */
    const int failed = after_failure(mover, job, POLLOUT);
    if (failed) return failed;
  }
  return 0;
}

static int send_frame(struct ht_mover *mover, struct ht_job *job) {
  if (job->flags & HT_WITH_CHECKSUM)
    for (int64_t index = 0; index < job->n_pieces; index++) {
      const struct ht_piece *piece = &job->pieces[index];
      job->checksum = ht_crc32c(job->checksum, mover->base + piece->offset, (size_t)piece->bytes);
    }
  /* A header alone would wait for what comes after it. */
  const int follows = job->n_pieces > 0 ? MSG_MORE : 0;
  int failed = send_bytes(mover, job, job->words, HT_HEADER_BYTES, follows);
  for (int64_t index = 0; index < job->n_pieces && !failed; index++) {
    const struct ht_piece *piece = &job->pieces[index];
    const int more = index + 1 < job->n_pieces ? MSG_MORE : 0;
    failed = job->flags & HT_BY_SENDFILE
                 ? send_file(mover, job, piece)
                 : send_bytes(mover, job, mover->base + piece->offset, (size_t)piece->bytes, more);
    if (!failed) job->moved += piece->bytes;
  }
  return failed;
}

static int receive_bytes(struct ht_mover *mover, struct ht_job *job, void *into, size_t bytes) {
  uint8_t *to = into;
  while (bytes > 0) {
    const ssize_t came = recv(job->socket, to, bytes, 0);
    if (came == 0) return -ECONNRESET;
    if (came > 0) {
      to += came, bytes -= (size_t)came;
      ht_patience_heard(&job->patience);
      continue;
    }
    const int failed = after_failure(mover, job, POLLIN);
    if (failed) return failed;
  }
  return 0;
}

/* Where the next bytes go: up to VECTOR pieces and `most` bytes from byte `done` of piece `index` on. */
static int vector_from(const struct ht_mover *mover, const struct ht_job *job, int64_t index, int64_t done,
                       int64_t most, struct iovec *vector) {
  int count = 0;
  for (; count < VECTOR && index < job->n_pieces && most > 0; index++, done = 0) {
    const struct ht_piece *piece = &job->pieces[index];
    const int64_t left = piece->bytes - done;
    const int64_t taken = left < most ? left : most;
    vector[count].iov_base = mover->base + piece->offset + done;
    vector[count++].iov_len = (size_t)taken;
    most -= taken;
  }
  return count;
}

static int receive_pieces(struct ht_mover *mover, struct ht_job *job) {
  const int64_t most = job->flags & HT_WITH_CHECKSUM ? CHECKED_BYTES : SENDFILE_BYTES;
  int64_t index = 0;
  int64_t done = 0;
  struct iovec vector[VECTOR];
  while (index < job->n_pieces) {
    const int count = vector_from(mover, job, index, done, most, vector);
    const ssize_t came = readv(job->socket, vector, count);
    if (came == 0) return -ECONNRESET;
    if (came < 0) {
      const int failed = after_failure(mover, job, POLLIN);
      if (failed) return failed;
      continue;
    }
    ht_patience_heard(&job->patience);
    job->moved += came;
    for (int64_t left = came; left > 0;) {
      const struct ht_piece *piece = &job->pieces[index];
      const int64_t here = piece->bytes - done < left ? piece->bytes - done : left;
      if (job->flags & HT_WITH_CHECKSUM)
        job->checksum = ht_crc32c(job->checksum, mover->base + piece->offset + done, (size_t)here);
      left -= here, done += here;
      if (done == piece->bytes) index++, done = 0;
    }
  }
  return 0;
}

static int receive_frame(struct ht_mover *mover, struct ht_job *job) {
  uint8_t header[HT_HEADER_BYTES];
  const int failed = receive_bytes(mover, job, header, sizeof header);
  if (failed) return failed;
  /* Bytes of another run must not lie where this one's belong, not even for a moment. */
  if (memcmp(header, job->words, sizeof header) != 0) return -EPROTO;
  return receive_pieces(mover, job);
}

static int check_pieces(struct ht_mover *mover, struct ht_job *job) {
  for (int64_t index = 0; index < job->n_pieces; index++) {
    const struct ht_piece *piece = &job->pieces[index];
    job->checksum = ht_crc32c(job->checksum, mover->base + piece->offset, (size_t)piece->bytes);
    job->moved += piece->bytes;
  }
  return 0;
}

static int work_on(struct ht_mover *mover, struct ht_job *job) {
  switch (job->kind) {
  case HT_SEND:
    return send_frame(mover, job);
  case HT_RECEIVE:
    return receive_frame(mover, job);
  case HT_CHECK:
    return check_pieces(mover, job);
  case HT_ACCEPT:
    return ht_accept(mover, job);
  default:
    return ht_connect(mover, job);
  }
}

static void tell_end(struct ht_mover *mover, struct ht_job *job, int status, int64_t cpu_ns) {
  const struct ht_done done = {job->id, status, job->moved, job->checksum, cpu_ns};
  ht_tell(mover->pipe, &done);
  free(job);
}

static void *run(void *argument) {
  struct ht_mover *mover = argument;
  for (struct ht_job *job; (job = (struct ht_job *)ht_queue_wait(&mover->queue));) {
    const int64_t before_ns = ht_thread_cpu_ns();
    job->patience.deadline_ms = ht_now_ms() + job->limit_ms;
    ht_patience_heard(&job->patience);
    const int status = work_on(mover, job);
    tell_end(mover, job, status, ht_thread_cpu_ns() - before_ns);
  }
  for (struct ht_job *job; (job = (struct ht_job *)ht_queue_poll(&mover->queue));) tell_end(mover, job, -ECANCELED, 0);
  return NULL;
}

/*
 * A thread for a memory. `file`: the memory file, −1 where it is none. `completions`: the descriptor from which ends
 * are read, the caller's to close. NULL with errno where the system gives no thread.
 */
HT_API struct ht_mover *ht_mover_open(uint8_t *base, int64_t bytes, int32_t file, int32_t *completions) {
  struct ht_mover *mover = calloc(1, sizeof *mover);
  if (!mover) return NULL;
  int ends[2] = {-1, -1};
  mover->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (mover->wake < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) goto failed;
  mover->base = base;
  mover->bytes = bytes;
  mover->file = file;
  mover->pipe = ends[1];
  ht_queue_init(&mover->queue);
  if ((errno = pthread_create(&mover->thread, NULL, run, mover)) != 0) goto failed;
  *completions = ends[0];
  return mover;
failed:
  if (mover->wake >= 0) close(mover->wake);
  if (ends[0] >= 0) close(ends[0]), close(ends[1]);
  free(mover);
  return NULL;
}

/*
 * Hands in a job; what it needs is copied. `words`: the header of a frame, or what a connection begins with.
 * 0, or −EINVAL where a piece lies outside the memory.
 */
HT_API int32_t ht_mover_submit(struct ht_mover *mover, int64_t id, int32_t kind, int32_t socket, int32_t flags,
                               const uint8_t *words, const struct ht_piece *pieces, int64_t n_pieces,
                               int64_t silence_ms, int64_t limit_ms) {
  if (ht_check_pieces(pieces, n_pieces, mover->bytes)) return -EINVAL;
  if ((flags & HT_BY_SENDFILE) && mover->file < 0) return -EINVAL;
  struct ht_job *job = calloc(1, sizeof *job + (size_t)n_pieces * sizeof *pieces);
  if (!job) return -ENOMEM;
  job->id = id;
  job->kind = kind;
  job->socket = socket;
  job->flags = flags;
  job->n_pieces = n_pieces;
  job->limit_ms = limit_ms;
  job->patience.silence_ms = silence_ms;
  memcpy(job->words, words, sizeof job->words);
  memcpy(job->pieces, pieces, (size_t)n_pieces * sizeof *pieces);
  ht_queue_push(&mover->queue, &job->link);
  return 0;
}

/* Ends what it does, and what waits: each is told as −ECANCELED before the pipe ends. */
HT_API void ht_mover_close(struct ht_mover *mover) {
  ht_queue_stop(&mover->queue);
  const uint64_t one = 1;
  /* The counter cannot overflow by one. */
  if (write(mover->wake, &one, sizeof one) < 0) return;
  pthread_join(mover->thread, NULL);
  close(mover->pipe);
  close(mover->wake);
  free(mover);
}

HT_API void ht_close(int32_t descriptor) { close(descriptor); }

/* What is on its way on it ends at once, in both directions. */
HT_API void ht_shutdown(int32_t socket) { shutdown(socket, SHUT_RDWR); }

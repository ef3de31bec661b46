/*
 * One end of a way between two workers by libfabric: the memory of each is registered once, and the source writes
 * pieces of its own to places of the target's. Everything of an end belongs to one thread, which makes progress for
 * both directions: where the provider computes (tcp, shm, rxm), a target that makes none receives nothing.
 *
 * A posted write cannot be recalled. Its pieces are owned until its job is told: after the target has the bytes
 * (FI_DELIVERY_COMPLETE), or after the end was closed, when nothing can be written any more.
 */
#define _GNU_SOURCE
#include "at-exit.h"
#include "transfer.h"
#include <errno.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API_VERSION FI_VERSION(1, 14)
/* Of what shows that a way works. */
#define PROBE_BYTES 64
/* Writes on their way. Lower: gaps between them; higher: nothing, until queues of the device are full. */
#define IN_FLIGHT 16
/* Of one write at most: a larger piece goes as several, so that there are several. */
#define WRITE_BYTES (4 * 1024 * 1024)
/* Pieces of one write. */
#define VECTOR 8
#define NAME_BYTES 256
#define COMPLETIONS 32
/* Where a provider has nothing to wait on: looks that follow one another, then pauses while something is expected, and
 * pauses while nothing is. */
#define LOOKS 200
#define BUSY_NS (20 * 1000)
#define IDLE_NS (2 * 1000 * 1000)
/* What a thread that waits for its provider misses at most: being told to stop. */
#define WAIT_MS 50

enum kind { OPEN, CONNECT, PROBE, WRITE };

/* Bytes of ours, and where they belong in the target's memory. */
struct ht_copy {
  int64_t from;
  int64_t to;
  int64_t bytes;
};

/* Among the active ones its link leads to the next. */
struct job {
  struct ht_link link;
  int64_t id;
  int kind;
  int64_t limit_ms;
  int64_t silence_ms;
  int64_t deadline_ms;
  /* Copy, and byte of it, that is written next. */
  int64_t index;
  int64_t done;
  int64_t moved;
  int in_flight;
  int64_t cpu_ns;
  /* Where the peer is not asked about each write, it is asked about one that comes after all of them. */
  int asks_at_end;
  int64_t n_copies;
  struct ht_copy copies[];
};

/* A write on its way; its context is found by libfabric's own, which is first. */
struct write {
  struct fi_context2 context;
  int64_t bytes;
  struct job *job;
  struct write *next_free;
};

/* How a peer's memory is written to. */
struct target {
  uint8_t name[NAME_BYTES];
  int64_t name_bytes;
  uint64_t key;
  uint64_t base;
  uint64_t probe_key;
  uint64_t probe_base;
};

struct ht_fabric {
  uint8_t *base;
  int64_t bytes;
  char provider[64];
  char source[128];
  uint64_t keys[2];
  int pipe;
  struct ht_thread thread;
  struct ht_queue queue;
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_ep *endpoint;
  struct fid_av *addresses;
  struct fid_cq *completions;
  struct fid_mr *memory;
  struct fid_mr *probe_memory;
  int waits;
  /* Looks in a row that found nothing. */
  int looks;
  /* Within a node: we copy to the peer's memory ourselves, and what was copied is there (shm with CMA). */
  int copies;
  /* Held by whoever wakes the thread, so that the queue is not closed meanwhile. */
  pthread_mutex_t open_mutex;
  int closed;
  /* Something is expected of a peer: looks are frequent. */
  volatile int expecting;
  fi_addr_t peer;
  struct target target;
  struct target own;
  /* As libfabric names what it opened; kept, since the end may be closed while others ask. */
  char opened[64];
  uint8_t *probe;
  struct write writes[IN_FLIGHT];
  struct write *free_writes;
  int in_flight;
  /* Jobs whose writes are posted or on their way, in the order in which they came. */
  struct job *active;
  int64_t heard_ms;
  char what[256];
};

static int said(struct ht_fabric *end, const char *call, int64_t status) {
  snprintf(end->what, sizeof end->what, "%s: %s", call, fi_strerror((int)-status));
  return (int)status;
}

static int register_memory(struct ht_fabric *end, void *base, size_t bytes, uint64_t key, struct fid_mr **memory) {
  const uint64_t access = FI_WRITE | FI_REMOTE_WRITE;
  int status = fi_mr_reg(end->domain, base, bytes, access, 0, key, 0, memory, NULL);
  if (status) return said(end, "fi_mr_reg", status);
  if (!(end->info->domain_attr->mr_mode & FI_MR_ENDPOINT)) return 0;
  status = fi_mr_bind(*memory, &end->endpoint->fid, 0);
  if (status) return said(end, "fi_mr_bind", status);
  status = fi_mr_enable(*memory);
  return status ? said(end, "fi_mr_enable", status) : 0;
}

static struct fi_info *wanted(const struct ht_fabric *end) {
  struct fi_info *hints = fi_allocinfo();
  if (!hints) return NULL;
  hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->mr_key_size = 8;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->fabric_attr->prov_name = strdup(end->provider);
  return hints;
}

static int find_provider(struct ht_fabric *end) {
  struct fi_info *hints = wanted(end);
  if (!hints) return said(end, "fi_allocinfo", -FI_ENOMEM);
  const char *source = end->source[0] ? end->source : NULL;
  int status = fi_getinfo(API_VERSION, source, NULL, source ? FI_SOURCE : 0, hints, &end->info);
  fi_freeinfo(hints);
  return status ? said(end, "fi_getinfo", status) : 0;
}

static int open_queue(struct ht_fabric *end) {
  /* What shm calls waiting is looking without a pause, and does not end at its time limit. */
  const enum fi_wait_obj wait = end->copies ? FI_WAIT_NONE : FI_WAIT_UNSPEC;
  struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .size = 4 * IN_FLIGHT, .wait_obj = wait};
  end->waits = !end->copies;
  int status = fi_cq_open(end->domain, &queue, &end->completions, NULL);
  if (status) {
    queue.wait_obj = FI_WAIT_NONE;
    end->waits = 0;
    status = fi_cq_open(end->domain, &queue, &end->completions, NULL);
  }
  return status ? said(end, "fi_cq_open", status) : 0;
}

static int describe(struct ht_fabric *end) {
  struct target *own = &end->own;
  size_t length = sizeof own->name;
  const int status = fi_getname(&end->endpoint->fid, own->name, &length);
  if (status) return said(end, "fi_getname", status);
  const int virtual = (end->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  own->name_bytes = (int64_t)length;
  own->key = fi_mr_key(end->memory);
  own->base = virtual ? (uint64_t)(uintptr_t)end->base : 0;
  own->probe_key = fi_mr_key(end->probe_memory);
  own->probe_base = virtual ? (uint64_t)(uintptr_t)end->probe : 0;
  snprintf(end->opened, sizeof end->opened, "%s", end->info->fabric_attr->prov_name);
  return 0;
}

static int open_end(struct ht_fabric *end) {
  int status = find_provider(end);
  if (status) return status;
  if ((status = fi_fabric(end->info->fabric_attr, &end->fabric, NULL))) return said(end, "fi_fabric", status);
  if ((status = fi_domain(end->fabric, end->info, &end->domain, NULL))) return said(end, "fi_domain", status);
  struct fi_av_attr addresses = {.type = FI_AV_UNSPEC, .count = 1};
  if ((status = fi_av_open(end->domain, &addresses, &end->addresses, NULL))) return said(end, "fi_av_open", status);
  if ((status = open_queue(end))) return status;
  if ((status = fi_endpoint(end->domain, end->info, &end->endpoint, NULL))) return said(end, "fi_endpoint", status);
  if ((status = fi_ep_bind(end->endpoint, &end->addresses->fid, 0))) return said(end, "fi_ep_bind", status);
  const uint64_t both = FI_TRANSMIT | FI_RECV;
  if ((status = fi_ep_bind(end->endpoint, &end->completions->fid, both))) return said(end, "fi_ep_bind", status);
  if ((status = fi_enable(end->endpoint))) return said(end, "fi_enable", status);
  if ((status = register_memory(end, end->base, (size_t)end->bytes, end->keys[0], &end->memory))) return status;
  status = register_memory(end, end->probe, PROBE_BYTES * 2, end->keys[1], &end->probe_memory);
  return status ? status : describe(end);
}

/* Nothing of ours can be written to or from after it. */
static void close_end(struct ht_fabric *end) {
  if (end->closed) return;
  pthread_mutex_lock(&end->open_mutex);
  end->closed = 1;
  pthread_mutex_unlock(&end->open_mutex);
  if (end->endpoint) fi_close(&end->endpoint->fid);
  if (end->memory) fi_close(&end->memory->fid);
  if (end->probe_memory) fi_close(&end->probe_memory->fid);
  if (end->completions) fi_close(&end->completions->fid);
  if (end->addresses) fi_close(&end->addresses->fid);
  if (end->domain) fi_close(&end->domain->fid);
  if (end->fabric) fi_close(&end->fabric->fid);
  if (end->info) fi_freeinfo(end->info);
}

static struct write *take_write(struct ht_fabric *end) {
  struct write *write = end->free_writes;
  if (write) end->free_writes = write->next_free;
  return write;
}

static void give_write(struct ht_fabric *end, struct write *write) {
  write->next_free = end->free_writes;
  end->free_writes = write;
}

/* The next bytes of a job, as one write: several small pieces, or a part of a large one. */
static int64_t gather(const struct ht_fabric *end, const struct job *job, struct iovec *from, struct fi_rma_iov *to,
                      size_t *count) {
  const struct target *target = &end->target;
  const int probe = job->kind != WRITE;
  size_t most = end->info->tx_attr->rma_iov_limit;
  if (most > end->info->tx_attr->iov_limit) most = end->info->tx_attr->iov_limit;
  if (most > VECTOR) most = VECTOR;
  if (most < 1 || end->copies) most = 1; /* shm copies by itself only what goes to one place. */
  int64_t room = WRITE_BYTES;
  if ((uint64_t)room > end->info->ep_attr->max_msg_size) room = (int64_t)end->info->ep_attr->max_msg_size;
  int64_t index = job->index;
  int64_t done = job->done;
  int64_t bytes = 0;
  for (*count = 0; *count < most && index < job->n_copies && room > 0; index++, done = 0) {
    const struct ht_copy *copy = &job->copies[index];
    const int64_t left = copy->bytes - done;
    const int64_t taken = left < room ? left : room;
    from[*count].iov_base = (probe ? end->probe + PROBE_BYTES : end->base) + copy->from + done;
    from[*count].iov_len = (size_t)taken;
    to[*count].addr = (probe ? target->probe_base : target->base) + (uint64_t)(copy->to + done);
    to[*count].len = (size_t)taken;
    to[*count].key = probe ? target->probe_key : target->key;
    room -= taken, bytes += taken, (*count)++;
    if (taken < left) break;
  }
  return bytes;
}

static void step_over(struct job *job, int64_t bytes) {
  while (bytes > 0) {
    const int64_t left = job->copies[job->index].bytes - job->done;
    if (bytes < left) {
      job->done += bytes;
      return;
    }
    bytes -= left;
    job->index++;
    job->done = 0;
  }
}

/* Posts what fits. −EAGAIN is no failure: completions make room. */
static int post(struct ht_fabric *end, struct job *job) {
  struct fid_mr *memory = job->kind == WRITE ? end->memory : end->probe_memory;
  const uint64_t delivered = end->copies && job->kind == WRITE ? 0 : FI_DELIVERY_COMPLETE;
  while (job->index < job->n_copies) {
    struct write *write = take_write(end);
    if (!write) return 0;
    struct iovec from[VECTOR];
    struct fi_rma_iov to[VECTOR];
    void *local[VECTOR];
    size_t count;
    write->bytes = gather(end, job, from, to, &count);
    for (size_t at = 0; at < count; at++) local[at] = fi_mr_desc(memory);
    const struct fi_msg_rma message = {.msg_iov = from,
                                       .desc = local,
                                       .iov_count = count,
                                       .addr = end->peer,
                                       .rma_iov = to,
                                       .rma_iov_count = count,
                                       .context = &write->context};
    const ssize_t status = fi_writemsg(end->endpoint, &message, FI_COMPLETION | delivered);
    if (status) {
      give_write(end, write);
      return status == -FI_EAGAIN ? 0 : said(end, "fi_writemsg", status);
    }
    write->job = job;
    job->in_flight++;
    end->in_flight++;
    step_over(job, write->bytes);
  }
  return 0;
}

static int failed_completion(struct ht_fabric *end) {
  struct fi_cq_err_entry error = {0};
  char words[128];
  if (fi_cq_readerr(end->completions, &error, 0) < 0) return said(end, "fi_cq_readerr", -FI_EIO);
  const char *why =
      fi_cq_strerror(end->completions, error.prov_errno, error.err_data, words, sizeof words);
  snprintf(end->what, sizeof end->what, "a write failed: %s (%s)", fi_strerror(error.err), why ? why : "");
  return error.err ? -error.err : -FI_EIO;
}

static void rest(struct ht_fabric *end, int busy) {
  if ((busy || end->expecting) && ++end->looks < LOOKS) {
    sched_yield();
    return;
  }
  const struct timespec pause = {0, busy || end->expecting ? BUSY_NS : IDLE_NS};
  nanosleep(&pause, NULL);
}

/* Makes progress, and takes what is over. `wait`: nothing else is to be done until something happens. */
static int progress(struct ht_fabric *end, int wait) {
  struct fi_cq_entry entries[COMPLETIONS];
  const int blocks = wait && end->waits;
  const ssize_t count = blocks ? fi_cq_sread(end->completions, entries, COMPLETIONS, NULL, WAIT_MS)
                               : fi_cq_read(end->completions, entries, COMPLETIONS);
  if (count == -FI_EAVAIL) return failed_completion(end);
  if (count == -FI_EAGAIN || count == -FI_EINTR || count == -FI_ECANCELED) {
    if (wait && !blocks) rest(end, end->in_flight > 0);
    return 0;
  }
  if (count < 0) return said(end, "fi_cq_read", count);
  end->looks = 0;
  for (ssize_t at = 0; at < count; at++) {
    struct write *write = entries[at].op_context;
    if (!write) continue;
    give_write(end, write);
    end->in_flight--;
    write->job->in_flight--;
    if (write->job->kind == WRITE) write->job->moved += write->bytes;
    end->heard_ms = ht_now_ms();
  }
  return 0;
}

static int connect_end(struct ht_fabric *end) {
  const int added = fi_av_insert(end->addresses, end->target.name, 1, &end->peer, 0, NULL);
  return added == 1 ? 0 : said(end, "fi_av_insert", added < 0 ? added : -FI_EINVAL);
}

static void tell_end(struct ht_fabric *end, struct job *job, int status) {
  const struct ht_done done = {job->id, status, job->moved, 0, job->cpu_ns};
  ht_tell(end->pipe, &done);
  free(job);
}

/* Closed first: what was posted may be read or written until then. */
static void fail_all(struct ht_fabric *end, int status) {
  close_end(end);
  while (end->active) {
    struct job *job = end->active;
    end->active = (struct job *)job->link.next;
    tell_end(end, job, status);
  }
}

static void start(struct ht_fabric *end, struct job *job) {
  job->link.next = NULL;
  if (end->closed) {
    tell_end(end, job, -ENOTCONN);
    return;
  }
  if (job->kind == OPEN || job->kind == CONNECT) {
    const int status = job->kind == OPEN ? open_end(end) : connect_end(end);
    if (status) fail_all(end, status);
    tell_end(end, job, status);
    return;
  }
  end->heard_ms = ht_now_ms();
  end->looks = 0;
  job->deadline_ms = end->heard_ms + job->limit_ms;
  job->asks_at_end = end->copies && job->kind == WRITE;
  struct job **last = &end->active;
  while (*last) last = (struct job **)&(*last)->link.next;
  *last = job;
}

/* Its last write, where the target is asked whether all of them are there. */
static void ask(struct job *job) {
  job->asks_at_end = 0;
  job->kind = PROBE;
  job->index = job->done = 0;
  job->n_copies = 1;
  job->copies[0] = (struct ht_copy){0, PROBE_BYTES, 1};
}

/* Tells what is over. */
static void finish(struct ht_fabric *end) {
  for (struct job **place = &end->active; *place;) {
    struct job *job = *place;
    const int over = job->index == job->n_copies && job->in_flight == 0;
    if (over && job->asks_at_end) ask(job);
    if (!over || job->index < job->n_copies) {
      place = (struct job **)&job->link.next;
      continue;
    }
    *place = (struct job *)job->link.next;
    tell_end(end, job, 0);
  }
}

static int overdue(struct ht_fabric *end) {
  const int64_t now = ht_now_ms();
  for (const struct job *job = end->active; job; job = (const struct job *)job->link.next)
    if (now > job->deadline_ms || now - end->heard_ms > job->silence_ms)
      return said(end, "no answer", -FI_ETIMEDOUT);
  return 0;
}

/* A turn: posts, makes progress, tells. */
static void turn(struct ht_fabric *end) {
  const int64_t before_ns = ht_thread_cpu_ns();
  int status = 0;
  for (struct job *job = end->active; job && !status; job = (struct job *)job->link.next) {
    status = post(end, job);
    if (job->index < job->n_copies) break; /* Those behind it have no room either. */
  }
  if (!status) status = progress(end, 1);
  if (!status) status = overdue(end);
  if (end->active) end->active->cpu_ns += ht_thread_cpu_ns() - before_ns;
  if (status) fail_all(end, status);
  else finish(end);
}

static void *run(void *argument) {
  struct ht_fabric *end = argument;
  while (!ht_queue_stopping(&end->queue)) {
    const int idle = end->closed || !end->completions;
    struct job *job = (struct job *)(idle ? ht_queue_wait(&end->queue) : ht_queue_poll(&end->queue));
    if (job) start(end, job);
    else if (!idle) turn(end);
  }
  fail_all(end, -ECANCELED);
  for (struct job *job; (job = (struct job *)ht_queue_poll(&end->queue));) tell_end(end, job, -ECANCELED);
  return NULL;
}

/* The thread may wait for its provider. */
static void wake(struct ht_fabric *end) {
  pthread_mutex_lock(&end->open_mutex);
  if (end->waits && !end->closed && end->completions) fi_cq_signal(end->completions);
  pthread_mutex_unlock(&end->open_mutex);
}

static int submit(struct ht_fabric *end, int64_t id, int kind, const struct ht_copy *copies, int64_t n_copies,
                  int64_t silence_ms, int64_t limit_ms) {
  struct job *job = calloc(1, sizeof *job + (size_t)(n_copies ? n_copies : 1) * sizeof *copies);
  if (!job) return -ENOMEM;
  job->id = id;
  job->kind = kind;
  job->silence_ms = silence_ms;
  job->limit_ms = limit_ms;
  job->n_copies = n_copies;
  memcpy(job->copies, copies, (size_t)n_copies * sizeof *copies);
  ht_queue_push(&end->queue, &job->link);
  wake(end);
  return 0;
}

static void stop(void *of) {
  struct ht_fabric *end = of;
  ht_queue_stop(&end->queue);
  wake(end);
}

/*
 * A thread with an end of its own; how opening it went is told as job 0. `source`: the address of an interface, or
 * empty. `keys`: two, random, by which memory can be written where the provider lets us choose them.
 */
HT_API struct ht_fabric *ht_fabric_open(const char *provider, const char *source, uint8_t *base, int64_t bytes,
                                        const uint64_t *keys, int32_t *completions) {
  struct ht_fabric *end = calloc(1, sizeof *end);
  if (!end) return NULL;
  int ends[2] = {-1, -1};
  snprintf(end->provider, sizeof end->provider, "%s", provider);
  snprintf(end->source, sizeof end->source, "%s", source);
  end->copies = strcmp(provider, "shm") == 0;
  end->base = base;
  end->bytes = bytes;
  memcpy(end->keys, keys, sizeof end->keys);
  for (int index = 0; index < IN_FLIGHT; index++) give_write(end, &end->writes[index]);
  ht_queue_init(&end->queue);
  pthread_mutex_init(&end->open_mutex, NULL);
  end->probe = aligned_alloc(4096, 4096);
  if (!end->probe || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) goto failed;
  memset(end->probe, 0, 4096);
  end->pipe = ends[1];
  const struct ht_copy none = {0, 0, 0};
  if (submit(end, 0, OPEN, &none, 0, 0, INT32_MAX)) goto failed;
  end->thread.stop = stop;
  end->thread.of = end;
  if ((errno = pthread_create(&end->thread.id, NULL, run, end)) != 0) goto failed;
  ht_thread_runs(&end->thread);
  *completions = ends[0];
  return end;
failed:
  if (ends[0] >= 0) close(ends[0]), close(ends[1]);
  free(end->probe);
  free(end);
  return NULL;
}

/* After job 0 went well: how others write here. `numbers`: key and base of the memory, key and base of the probe. */
HT_API int64_t ht_fabric_name(const struct ht_fabric *end, uint8_t *name, uint64_t *numbers, char *provider) {
  memcpy(name, end->own.name, (size_t)end->own.name_bytes);
  numbers[0] = end->own.key;
  numbers[1] = end->own.base;
  numbers[2] = end->own.probe_key;
  numbers[3] = end->own.probe_base;
  snprintf(provider, 64, "%s", end->opened);
  return end->own.name_bytes;
}

/* Of the last failure, in libfabric's words. */
HT_API void ht_fabric_words(const struct ht_fabric *end, char *words, int64_t bytes) {
  snprintf(words, (size_t)bytes, "%s", end->what);
}

/* Whom this end writes to. */
HT_API int32_t ht_fabric_connect(struct ht_fabric *end, int64_t id, const uint8_t *name, int64_t name_bytes,
                                 const uint64_t *numbers) {
  if (name_bytes <= 0 || name_bytes > NAME_BYTES) return -EINVAL;
  struct target *target = &end->target;
  memcpy(target->name, name, (size_t)name_bytes);
  target->name_bytes = name_bytes;
  target->key = numbers[0];
  target->base = numbers[1];
  target->probe_key = numbers[2];
  target->probe_base = numbers[3];
  const struct ht_copy none = {0, 0, 0};
  return submit(end, id, CONNECT, &none, 0, 0, INT32_MAX);
}

/* Writes these bytes where the peer looks for them. */
HT_API int32_t ht_fabric_probe(struct ht_fabric *end, int64_t id, const uint8_t *bytes, int64_t limit_ms) {
  memcpy(end->probe + PROBE_BYTES, bytes, PROBE_BYTES);
  const struct ht_copy all = {0, 0, PROBE_BYTES};
  return submit(end, id, PROBE, &all, 1, limit_ms, limit_ms);
}

/* What a peer has written. */
HT_API void ht_fabric_probed(const struct ht_fabric *end, uint8_t *bytes) { memcpy(bytes, end->probe, PROBE_BYTES); }

/* −EINVAL where a copy begins outside our memory, or ends outside a memory of `target_bytes`. */
HT_API int32_t ht_fabric_write(struct ht_fabric *end, int64_t id, const struct ht_copy *copies, int64_t n_copies,
                               int64_t target_bytes, int64_t silence_ms, int64_t limit_ms) {
  for (int64_t index = 0; index < n_copies; index++) {
    const struct ht_piece from = {copies[index].from, copies[index].bytes};
    const struct ht_piece to = {copies[index].to, copies[index].bytes};
    if (ht_check_pieces(&from, 1, end->bytes) || ht_check_pieces(&to, 1, target_bytes)) return -EINVAL;
  }
  return submit(end, id, WRITE, copies, n_copies, silence_ms, limit_ms);
}

HT_API void ht_fabric_expect(struct ht_fabric *end, int32_t active) { end->expecting = active; }

/* Nothing is written to or from our memory after it. What waits is told as −ECANCELED. */
HT_API void ht_fabric_close(struct ht_fabric *end) {
  if (!ht_thread_is_ours(&end->thread)) return;
  stop(end);
  pthread_join(end->thread.id, NULL);
  close(end->pipe);
  free(end->probe);
  free(end);
}

/* Version of the library, as major × 65536 + minor. */
HT_API uint32_t ht_fabric_version(void) { return fi_version(); }

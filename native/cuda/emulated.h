/*
 * The machine of device.cuh on a CPU: fibers stand for the threads of a block, blocks run one after the other. It is
 * made so that what is wrong on a GPU is wrong here too: shared memory begins as NaN, copies arrive as early or as late
 * as they may, fibers run in an order that a seed chooses, with one warp as far behind the others as barriers let it
 * be, and a barrier or an instruction of a warp that not all of its threads reach ends the process.
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define HYBRID_KERNEL
#define HYBRID_DEVICE inline

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};

namespace hybrid {
namespace emulated {

struct Copy {
  void *to;
  const void *from;
};

/* What a lane brings to an instruction of its warp. */
struct Fragments {
  float *c;
  uint4 a;
  uint32_t b[2];
};

struct Fiber {
  ucontext_t context;
  std::vector<uint8_t> stack;
  std::vector<std::vector<Copy>> copies;
  std::vector<Copy> open_copies;
  Fragments fragments;
  bool ended;
};

/* Threads that have to come together, of a block or of a warp: how many came, and how often all did. */
struct Meeting {
  int size, arrived;
  uint64_t held;
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<uint8_t> memory;
  uint8_t *shared;
  ucontext_t scheduler;
  std::function<void()> body;
  Meeting everyone;
  std::vector<Meeting> warps;
  int thread, block;
  /* Meetings that were held, and whether none was since all threads had their turn. */
  uint64_t held = 0;
  bool stuck = false;
  /* Copies arrive as they are begun, in place of when they are waited for. */
  bool eager = false;
  uint32_t seed = 1;
};

inline Machine &machine() {
  static thread_local Machine own;
  return own;
}

inline Fiber &current() { return machine().fibers[machine().thread]; }

inline void leave() { swapcontext(&current().context, &machine().scheduler); }

inline void enter() {
  machine().body();
  current().ended = true;
  leave();
}

[[noreturn]] inline void diverged(const char *what) {
  fprintf(stderr, "emulated block %d: not all threads reach %s\n", machine().block, what);
  abort();
}

/* @param act what the last one does for all */
template <class Act>
void meet(Meeting &meeting, const char *what, const Act &act) {
  const uint64_t held = meeting.held;
  if (++meeting.arrived == meeting.size) {
    act();
    meeting.arrived = 0;
    meeting.held++;
    machine().held++;
    return;
  }
  do {
    leave();
    if (meeting.held == held && machine().stuck) diverged(what);
  } while (meeting.held == held);
}

inline uint32_t nextRandom() {
  uint32_t &state = machine().seed;
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

inline void runBlock(int block, int threads, int shared_bytes) {
  Machine &own = machine();
  own.block = block;
  own.memory.assign(shared_bytes + 128, 0xff);
  own.shared = own.memory.data() + (128 - (uintptr_t)own.memory.data() % 128) % 128;
  own.fibers.resize(threads);
  own.everyone = {threads, 0, 0};
  own.warps.assign(threads / 32, {32, 0, 0});
  own.stuck = false;
  for (Fiber &fiber : own.fibers) {
    fiber.stack.resize(64 * 1024);
    fiber.copies.clear();
    fiber.open_copies.clear();
    fiber.ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  own.eager = nextRandom() % 2 == 0;
  // One warp is held back until the others can do no more without it: so far may they run ahead.
  int slow = nextRandom() % own.warps.size();
  bool held_back = true;
  for (int alive = threads; alive > 0;) {
    // From a thread by chance, up or down: between barriers nothing may depend on the order.
    const int first = nextRandom() % threads, step = nextRandom() % 2 == 0 ? 1 : threads - 1;
    const uint64_t held = own.held;
    const int before = alive;
    alive = 0;
    for (int count = 0, thread = first; count < threads; count++, thread = (thread + step) % threads) {
      if (own.fibers[thread].ended) continue;
      if (!(held_back && thread / 32 == slow)) {
        own.thread = thread;
        swapcontext(&own.scheduler, &own.fibers[thread].context);
      }
      alive += own.fibers[thread].ended ? 0 : 1;
    }
    const bool progressed = own.held != held || alive != before;
    own.stuck = !progressed && !held_back;
    if (!held_back && progressed) slow = nextRandom() % own.warps.size();
    held_back = progressed && own.warps.size() > 1;
  }
}

inline float fromBf16(uint32_t bits) {
  bits <<= 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline float numberOf(uint32_t pair, int which) { return fromBf16(which == 0 ? pair & 0xffff : pair >> 16); }

/* The fragments of a warp as matrices (PTX ISA, mma.m16n8k16), their product, and its fragments. */
inline void multiplyWarp(Fiber *warp) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const Fragments &own = warp[lane].fragments;
    const int g = lane / 4, t = lane % 4;
    const uint32_t pairs[4] = {own.a.x, own.a.y, own.a.z, own.a.w};
    for (int i = 0; i < 8; i++) {
      const int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8;
      const int column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      a[row][column] = numberOf(pairs[i / 2], i & 1);
    }
    for (int i = 0; i < 4; i++) b[t * 2 + (i & 1) + (i >= 2 ? 8 : 0)][g] = numberOf(own.b[i / 2], i & 1);
  }
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
      float sum = 0;
      for (int inner = 0; inner < 16; inner++) sum += a[row][inner] * b[inner][column];
      warp[lane].fragments.c[i] += sum;
    }
}

}  // namespace emulated

inline int threadIndex() { return emulated::machine().thread; }
inline int blockIndex() { return emulated::machine().block; }
inline uint8_t *sharedMemory() { return emulated::machine().shared; }

inline void blockBarrier() {
  emulated::meet(emulated::machine().everyone, "a barrier", [] {});
}

inline void beginCopy16(void *shared, const void *from) {
  if ((uintptr_t)shared % 16 != 0 || (uintptr_t)from % 16 != 0) emulated::diverged("aligned memory");
  if (emulated::machine().eager)
    memcpy(shared, from, 16);
  else
    emulated::current().open_copies.push_back({shared, from});
}

inline void endCopyGroup() {
  emulated::Fiber &own = emulated::current();
  own.copies.push_back(std::move(own.open_copies));
  own.open_copies.clear();
}

template <int pending>
inline void waitForCopies() {
  auto &groups = emulated::current().copies;
  while ((int)groups.size() > pending) {
    for (const emulated::Copy &copy : groups.front()) memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

inline void multiplyAdd(float (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
  emulated::Machine &own = emulated::machine();
  const int warp = own.thread / 32;
  emulated::current().fragments = {c, a, {b0, b1}};
  emulated::meet(own.warps[warp], "an instruction of the warp",
                 [&] { emulated::multiplyWarp(&own.fibers[warp * 32]); });
}

inline void addTo(unsigned long long *sum, unsigned long long value) { *sum += value; }

inline uint32_t bitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

inline float halfToFloat(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  float value;
  if (exponent == 0) {
    value = fraction * (1.0f / 16777216);
  } else {
    const uint32_t bits = (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, 4);
  }
  return half & 0x8000 ? -value : value;
}

/* To the nearest, ties to even. */
inline uint32_t roundedToBf16(float value) {
  const uint32_t bits = bitsOf(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 64;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace hybrid

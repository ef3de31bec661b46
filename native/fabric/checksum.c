/*
 * CRC-32C (polynomial 0x1EDC6F41, reflected), as iSCSI and ext4 have it: with the instruction of the CPU where it has
 * one, three streams side by side since one instruction takes three cycles; else by table.
 */
#include "transfer.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define POLYNOMIAL 0x82f63b78u
/* Bytes of each of the three streams. Lower: more joins; higher: short runs go one stream at a time. */
#define STREAM 4096

static uint32_t table[8][256];
/* What a CRC becomes after STREAM bytes of zeros, by byte of the CRC. */
static uint32_t shifted[4][256];
static int has_instruction;

static uint32_t by_table(uint32_t crc, const uint8_t *data, size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    word ^= crc;
    crc = table[7][word & 255] ^ table[6][(word >> 8) & 255] ^ table[5][(word >> 16) & 255] ^
          table[4][(word >> 24) & 255] ^ table[3][(word >> 32) & 255] ^ table[2][(word >> 40) & 255] ^
          table[1][(word >> 48) & 255] ^ table[0][word >> 56];
  }
  for (; bytes > 0; bytes--) crc = table[0][(crc ^ *data++) & 255] ^ (crc >> 8);
  return crc;
}

__attribute__((constructor)) static void prepare(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc & 1 ? POLYNOMIAL : 0) ^ (crc >> 1);
    table[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; byte++)
    for (int step = 1; step < 8; step++)
      table[step][byte] = table[0][table[step - 1][byte] & 255] ^ (table[step - 1][byte] >> 8);
  static const uint8_t zeros[STREAM];
  for (int place = 0; place < 4; place++)
    for (uint32_t byte = 0; byte < 256; byte++) shifted[place][byte] = by_table(byte << (8 * place), zeros, STREAM);
#if defined(__x86_64__)
  unsigned int a, b, c, d;
  has_instruction = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
#elif defined(__aarch64__)
  has_instruction = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
/* Clang counts the instruction as a set of its own, which GCC before 12 does not know. */
#ifdef __clang__
#define TARGET __attribute__((target("sse4.2,crc32")))
#else
#define TARGET __attribute__((target("sse4.2")))
#endif
#define WORD(crc, word) _mm_crc32_u64(crc, word)
#define BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#else
#define TARGET __attribute__((target("+crc")))
#define WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define BYTE(crc, byte) __crc32cb((uint32_t)(crc), byte)
#endif

static inline uint64_t word_at(const uint8_t *data) {
  uint64_t word;
  memcpy(&word, data, 8);
  return word;
}

static inline uint32_t shift(uint32_t crc) {
  return shifted[0][crc & 255] ^ shifted[1][(crc >> 8) & 255] ^ shifted[2][(crc >> 16) & 255] ^ shifted[3][crc >> 24];
}

TARGET static uint32_t by_instruction(uint32_t start, const uint8_t *data, size_t bytes) {
  uint64_t a = start;
  for (; bytes >= 3 * STREAM; data += 3 * STREAM, bytes -= 3 * STREAM) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t at = 0; at < STREAM; at += 8) {
      a = WORD(a, word_at(data + at));
      b = WORD(b, word_at(data + STREAM + at));
      c = WORD(c, word_at(data + 2 * STREAM + at));
    }
    a = shift(shift((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) a = WORD(a, word_at(data));
  for (; bytes > 0; bytes--) a = BYTE(a, *data++);
  return (uint32_t)a;
}
#endif

HT_API uint32_t ht_crc32c(uint32_t crc, const void *data, size_t bytes) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_instruction) return ~by_instruction(~crc, data, bytes);
#endif
  return ~by_table(~crc, data, bytes);
}

/* The way without the instruction, for tests on CPUs that have it. */
HT_API uint32_t ht_crc32c_plain(uint32_t crc, const void *data, size_t bytes) { return ~by_table(~crc, data, bytes); }

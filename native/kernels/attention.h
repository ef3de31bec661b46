/*
 * Attention of query rows over keys and values that lie in blocks of 16 tokens, wherever their block table says.
 *
 *   y[row][head] = sum over tokens t ≤ position(row) of softmax(q[row][head] · k[t] / sqrt(head_dim)) * v[t]
 *
 * In one pass (online softmax, https://arxiv.org/abs/1805.02867), and in one order: 64 tokens at a time by their
 * position, and 256 of them to a part. Parts begin anew and are merged one after another. So a row has the same bits
 * alone, in every batch and chunk, with any number of threads, whoever computes which part, and wherever blocks lie.
 * (Parts are what FlashDecoding splits, https://pytorch.org/blog/flash-decoding/; there their number follows the batch.)
 *
 * Query heads that share a KV head are computed together, so that keys and values are read and widened once.
 */
#pragma once
#include "kernels.h"

/* Tokens of a block of the block table. */
#define HK_KV_BLOCK 16
/* Tokens that one rescaling serves. Keys and values of so many, as F32, are at hand while query rows pass. */
#define HK_STEP 64
/* Tokens of a part: a multiple of HK_STEP. Lower: more threads find work in one sequence; higher: fewer merges. */
#define HK_PART 256
/* Query vectors (rows by heads) of a task. Higher: keys and values are widened less often. */
#define HK_QUERIES_MAX 128
#define HK_HEAD_MAX 256

/* Numbers of enum ggml_type, of keys and values. */
enum hk_kv_type { HK_KV_F32 = 0, HK_KV_F16 = 1, HK_KV_Q8_0 = 8 };

struct hk_attention {
  enum hk_kv_type type;
  int64_t heads, kv_heads, head_dim;
  /* Row 0 of each, [row][KV head][element]. */
  const uint8_t *keys, *values;
  int64_t row_bytes, head_bytes;
  /* Distances are in floats. */
  const float *q;
  int64_t q_row, q_head;
  float *y;
  int64_t y_row;
};

/* Consecutive rows of one sequence, some KV heads, and some parts of its tokens. */
struct hk_attention_task {
  /* First KV row of each block of the sequence. */
  const int32_t *table;
  /* Of the first row, in the sequence, and among q and y. */
  int64_t position, row;
  int rows, head_begin, head_end;
  int64_t part_begin, part_end;
  /*
   * Where the one part's sums go, hk_partial_floats of them for all heads; NULL: all parts from the first on are
   * computed, and y is written.
   */
  float *partial;
};

typedef void hk_attention_function(const struct hk_attention *attention, const struct hk_attention_task *task);
hk_attention_function hk_attention_avx2, hk_attention_avx512;

/* Adds the sums of a part to those of the parts before it: [maximum, sum, element head_dim] each. */
typedef void hk_merge_function(int64_t head_dim, float *sums, const float *part);
hk_merge_function hk_merge_avx2, hk_merge_avx512;

/* Sums of one row and head, of which none, one or several parts are in them already. */
static inline int64_t hk_sums_floats(int64_t head_dim) { return head_dim + 2; }


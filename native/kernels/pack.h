/* Weights and activations in the order in which the products read them. */
#pragma once
#include "kernels.h"

/* Whether there is a packed layout for weights of this type and row length. */
HK_API int hk_can_pack(int type, int64_t k);

/* Bytes of n packed rows. Every strip takes as much, so that rows from a multiple of 16 on can be taken alone. */
HK_API int64_t hk_packed_bytes(int type, int64_t n, int64_t k);

/* Bytes of a row as model files have it. */
int64_t hk_row_bytes(int type, int64_t k);

/*
 * Packs n whole rows for the products of one instruction set. What lies behind the last row of the last strip becomes
 * zero. Returns 0 where some weight is NaN or infinite, which no product may be given.
 */
HK_API int hk_pack_weights(int set, int type, int64_t n, int64_t k, const void *source, void *packed);

/* 32 integers of 4 bits as row `row` of a block in rows, and of one in fours. */
void hk_pack_nibbles(const uint8_t *integers, int row, uint8_t *block);
void hk_pack_fours(const uint8_t *integers, int row, uint8_t *block);

/* Bytes of a row in super-blocks, and row `row` of a strip that is zero so far. */
int64_t hk_super_row_bytes(int type, int64_t k);
void hk_pack_super_row(int set, int type, const uint8_t *source, int64_t k, int row, uint8_t *strip);

/* Whether all weights of a row are numbers. */
int hk_is_finite_row(int type, int64_t k, const uint8_t *source);

/* Whether all weights of n rows, as model files have them, are numbers; 1 for types that have no packed layout. */
HK_API int hk_are_finite(int type, int64_t n, int64_t k, const uint8_t *source);

/* Bytes of m packed rows of activations, for a set that hk_set_for gave. */
HK_API int64_t hk_activation_bytes(int set, int64_t m, int64_t k);

/*
 * Rounds the blocks [begin, end) along k of m rows of x, for a set that hk_set_for gave: to BF16, in tiles of hk_tile_rows(m) rows:
 * [tile][block][row of the tile][element 32] for vectors, [tile][block][pair 16][row of the tile][2] for the tile unit.
 * or to bytes, see bytes.h; or copies them, [tile][block][row of the tile][element 32] of F32. Rows behind m, to the end
 * of the last tile, and elements behind k become zero.
 */
HK_API void hk_pack_activations(int set, int64_t m, int64_t k, const float *x, int64_t x_stride, uint16_t *packed,
                         int64_t begin, int64_t end);

/* One row for hk_product_one_row; k is a multiple of HK_BLOCK. */
void hk_pack_one_row(int64_t k, const float *x, uint16_t *packed, int64_t begin, int64_t end);

/* One tile of m rows, whose rows lie anywhere; NULL behind the last of them. */
void hk_pack_tile(int set, int64_t m, int64_t k, const float *const *x, uint16_t *tile, int64_t begin, int64_t end);

/* The same as bytes. */
void hk_pack_tile_as_bytes(int64_t m, const float *const *x, uint8_t *tile, int64_t begin, int64_t end);

/* The same for a tile of 16 rows, in pairs. */
void hk_pack_tile_amx(int64_t k, const float *const *x, uint16_t *tile, int64_t begin, int64_t end);

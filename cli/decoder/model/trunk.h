/* SPDX-License-Identifier: Apache-2.0
 *
 * The trunk, which is all layers but the LM head: computes hidden states after the final norm from
 * token ids, and writes keys and values to caches.
 */
#ifndef DECODER_TRUNK_H
#define DECODER_TRUNK_H

#include "decoder/error.h"
#include "decoder/model/model.h"
#include "decoder/pool.h"

/* Rows of one pass: enough that arithmetic, not reads of the weights, limits the speed. */
#define TRUNK_MAX_ROWS 64

/* The KV cache of one sequence. */
typedef struct trunk_cache {
    int32_t capacity; /* rows */
    float *keys;      /* [layers, capacity, kv_heads * head_dim], after norm and rotation */
    float *values;    /* as keys */
} trunk_cache;

/* One token. The cache holds the positions before it, or earlier rows of the pass add them.
 * Position j is in row j of the cache, if j < tree_begin. Later positions are nodes of a tree,
 * whose branches have equal positions in different rows of the cache. */
typedef struct trunk_row {
    trunk_cache *cache;
    int32_t position;
    int32_t token;
    int32_t cache_row; /* of this token */
    int32_t tree_begin;
    const int32_t *tree_rows; /* cache rows of positions tree_begin .. position */
    float *hidden;            /* [D] receives the hidden state; NULL: not returned */
} trunk_row;

typedef struct trunk trunk;

/* trunk_new(): allocates memory for passes of TRUNK_MAX_ROWS rows. Model and pool must outlive it.
 *  returns  0; -1 with `error` filled. Release it with trunk_free(). */
int trunk_new(const model *m, pool *p, trunk **result, decoder_error *error);

/* Frees it. NULL is allowed. */
void trunk_free(trunk *t);

/* trunk_run(): runs one pass.
 *  rows   [count], 1 <= count <= TRUNK_MAX_ROWS; tokens and positions are in range */
void trunk_run(trunk *t, const trunk_row *rows, int32_t count);

#endif /* DECODER_TRUNK_H */

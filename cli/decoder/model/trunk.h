/* SPDX-License-Identifier: Apache-2.0
 *
 * The trunk: token ids in, hidden states after the final norm out, keys and values into caches.
 */
#ifndef DECODER_TRUNK_H
#define DECODER_TRUNK_H

#include "decoder/error.h"
#include "decoder/model/model.h"
#include "decoder/pool.h"

/* Rows of one pass: enough that products, not reads of the weights, limit the time. */
#define TRUNK_MAX_ROWS 64

/* The KV cache of one sequence, [layers, capacity, kv_heads * head_dim] each. Keys are stored after
 * norm and rotation. */
typedef struct trunk_cache {
    int32_t capacity;
    float *keys;
    float *values;
} trunk_cache;

/* One token. The cache holds all positions before its own, or earlier rows of the pass add them. In
 * a tree, branches repeat positions, so that positions from `moved` on have their own places. */
typedef struct trunk_row {
    trunk_cache *cache;
    int32_t position;
    int32_t token;
    int32_t place;         /* in the cache */
    int32_t moved;         /* positions before it are at places of their number */
    const int32_t *places; /* of positions moved .. position */
    float *hidden;         /* [D] receives the hidden state; NULL: not returned */
} trunk_row;

typedef struct trunk trunk;

/* trunk_new(): working memory for passes of TRUNK_MAX_ROWS rows. Model and pool must outlive it.
 *  returns  0; -1 with `error` filled. Release it with trunk_free(). */
int trunk_new(const model *m, pool *p, trunk **result, decoder_error *error);

/* Frees it. NULL is allowed. */
void trunk_free(trunk *t);

/* trunk_run(): runs one pass.
 *  rows   [count], 1 <= count <= TRUNK_MAX_ROWS; tokens and positions are in range */
void trunk_run(trunk *t, const trunk_row *rows, int32_t count);

#endif /* DECODER_TRUNK_H */

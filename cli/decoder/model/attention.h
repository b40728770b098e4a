/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of one query over the keys and values of its sequence.
 */
#ifndef DECODER_ATTENTION_H
#define DECODER_ATTENTION_H

#include <stdint.h>

#define ATTENTION_MAX_HEAD_DIM 1024

typedef struct attention_query {
    const float *query;  /* [head_dim] */
    const float *keys;   /* rows of head_dim, `stride` apart */
    const float *values; /* as keys */
    int64_t stride;
    int32_t count; /* positions that the query attends to, the last is its own; >= 1 */
    /* Position j is in row j, if j < tree_begin, and in row tree_rows[j - tree_begin] otherwise. */
    int32_t tree_begin; /* 0..count */
    const int32_t *tree_rows;
    int32_t head_dim;
    float *out; /* [head_dim] */
} attention_query;

/* attention_mix(): out = sum_j softmax_j(query . key_j / sqrt(head_dim)) value_j, in one pass over
 * blocks of positions, the first from position 0: the bits depend on the operands only. */
void attention_mix(const attention_query *q);

#endif /* DECODER_ATTENTION_H */

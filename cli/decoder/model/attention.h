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
    const float *keys;   /* rows `stride` apart: position j is row j; from `moved` on, row */
    const float *values; /* rows[j - moved]; as keys */
    int64_t stride;
    int32_t count; /* positions attended to, its own last; >= 1 */
    int32_t moved; /* positions before it are at rows of their number; `count`: all */
    const int32_t *rows;
    int32_t head_dim;
    float *out; /* [head_dim] */
} attention_query;

/* attention_mix(): out = sum_j softmax_j(query . key_j / sqrt(head_dim)) value_j, in one pass over
 * blocks of positions that start at position 0: the bits depend on the operands only. */
void attention_mix(const attention_query *q);

#endif /* DECODER_ATTENTION_H */

/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/model/attention.h"

#include <math.h>

#include "decoder/model/lanes.h"

/* Positions between two updates of the running maximum. */
#define BLOCK 32

LANES_INLINE float dot_product(const float *a, const float *b, int32_t size)
{
    lanes sum = {0}, x = {0}, y = {0};
    int32_t at = 0;
    for (; at + LANES <= size; at += LANES) {
        memcpy(&x, a + at, sizeof x);
        memcpy(&y, b + at, sizeof y);
        sum += x * y;
    }
    float rest = 0;
    for (; at < size; at++) {
        rest += a[at] * b[at];
    }
    return lanes_sum(&sum) + rest;
}

/* The row of position j. */
LANES_INLINE int64_t find_row(const attention_query *q, int32_t j)
{
    return (j < q->tree_begin ? j : q->tree_rows[j - q->tree_begin]) * q->stride;
}

LANES_INLINE void attention_run_body(const attention_query *q, int registers)
{
    (void)registers;
    float sum[ATTENTION_MAX_HEAD_DIM];
    float mass = 0, largest = -INFINITY;
    float scale = 1 / sqrtf((float)q->head_dim);
    memset(sum, 0, (size_t)q->head_dim * sizeof *sum);
    for (int32_t first = 0; first < q->count; first += BLOCK) {
        int32_t count = q->count - first < BLOCK ? q->count - first : BLOCK;
        float score[BLOCK];
        float top = largest;
        for (int32_t j = 0; j < count; j++) {
            score[j] = scale * dot_product(q->query, q->keys + find_row(q, first + j), q->head_dim);
            top = score[j] > top ? score[j] : top;
        }
        float shrink = expf(largest - top);
        mass *= shrink;
        for (int32_t i = 0; i < q->head_dim; i++) {
            sum[i] *= shrink;
        }
        for (int32_t j = 0; j < count; j++) {
            const float *value = q->values + find_row(q, first + j);
            float weight = expf(score[j] - top);
            mass += weight;
            for (int32_t i = 0; i < q->head_dim; i++) {
                sum[i] += weight * value[i];
            }
        }
        largest = top;
    }
    for (int32_t i = 0; i < q->head_dim; i++) {
        q->out[i] = sum[i] / mass;
    }
}

LANES_DISPATCH(attention_run, attention_query)

void attention_mix(const attention_query *q) { attention_run(q); }

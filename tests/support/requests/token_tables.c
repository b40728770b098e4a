/* SPDX-License-Identifier: Apache-2.0 */
#include "token_tables.h"

#include <math.h>
#include <stdlib.h>

/* Chooses `count` of `vocab` ids, ascending. */
static void choose_ids(int32_t *ids, int64_t count, int64_t vocab, uint64_t *random)
{
    int64_t chosen = 0;
    for (int64_t id = 0; chosen < count; id++)
        if (random_below(random, (uint32_t)(vocab - id)) < (uint32_t)(count - chosen))
            ids[chosen++] = (int32_t)id;
}

static void shuffle_ids(int32_t *ids, int64_t count, uint64_t *random)
{
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t other = random_below(random, (uint32_t)i + 1);
        const int32_t id = ids[i];
        ids[i] = ids[other];
        ids[other] = id;
    }
}

int32_t *table_make(table_kind kind, int64_t count, int64_t vocab, uint64_t *random)
{
    int32_t *ids = make_zeroed((size_t)count, sizeof *ids);
    if (kind == TABLE_LARGE)
        for (int64_t i = 0; i < count; i++)
            ids[i] =
                INT32_MAX - 1 - (i ? (int32_t)random_below(random, 1u << 31 >> i % 31) / 2 : 0);
    else
        choose_ids(ids, count, vocab, random);
    if (kind == TABLE_UNSORTED || kind == TABLE_DUPLICATES)
        shuffle_ids(ids, count, random);
    for (int64_t i = 1; i < count && kind == TABLE_DUPLICATES; i++)
        if (random_below(random, 3) == 0)
            ids[i] = ids[random_below(random, (uint32_t)i)];
    return ids;
}

void table_adapt_plan(request_plan *plan)
{
    if (plan->vocab_size > 0)
        plan->vocab_size -= plan->first_token;
    plan->first_token = 0;
    plan->transforms = plan->given_noise = 0;
}

float *table_noise(const gumbel_sampling *s, int64_t batch, int64_t vocab)
{
    const int32_t samples = s->num_samples ? s->num_samples : 1;
    float *noise = make_zeroed((size_t)(batch * samples * vocab), sizeof *noise);
    for (int64_t at = 0; at < batch * samples * vocab; at++) {
        const int64_t b = at / vocab / samples;
        uint64_t seed = row_u64(&s->seed, s, b, 0);
        if (s->seed.stride == GUMBEL_SAME)
            seed = gumbel_row_seed(seed, (uint64_t)slot_of_row(s, b));
        const uint32_t sample =
            row_u32(&s->first_sample, s, b, 0) + (uint32_t)(at / vocab % samples);
        if (gumbel_noise(seed, row_u64(&s->position, s, b, 0), sample, s->domain,
                         s->token_ids[at % vocab], 1, &noise[at], NULL) != GUMBEL_OK)
            die("gumbel_noise() fails");
    }
    return noise;
}

static void map_rows(const int32_t *ids, int64_t vocab, int32_t *rows, int64_t count)
{
    for (int64_t i = 0; i < count && rows; i++)
        rows[i] = rows[i] >= 0 && rows[i] < vocab ? ids[rows[i]] : rows[i];
}

void table_map_outcome(const int32_t *ids, int64_t vocab, outcome *drawn)
{
    const gumbel_output *out = &drawn->output;
    map_rows(ids, vocab, drawn->tokens, drawn->batch * drawn->samples);
    map_rows(ids, vocab, drawn->top_ids, out->top_ids ? drawn->batch * out->num_top : 0);
    for (int64_t b = 0; b < drawn->batch && drawn->kept_ids; b++)
        if (drawn->kept[b] <= out->kept_capacity)
            map_rows(ids, vocab, drawn->kept_ids + b * out->kept_capacity, drawn->kept[b]);
}

float *table_scatter(const gumbel_tensor *logits, const int32_t *ids, int64_t end, int64_t vocab)
{
    float *whole = make_zeroed((size_t)(logits->rows * vocab), sizeof *whole);
    for (int64_t i = 0; i < logits->rows * vocab; i++)
        whole[i] = -INFINITY;
    for (int64_t b = 0; b < logits->rows; b++)
        for (int64_t i = 0; i < end; i++)
            whole[b * vocab + ids[i]] =
                ((const float *)
                     logits->data)[b * (logits->stride ? logits->stride : logits->cols) + i];
    return whole;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The best scores of a draw. All survivors of the row are scored again, block by block, and the
 * best ones are kept in a sorted list. Noise of the whole row is computed, so a row takes about
 * three times as long as its draw.
 */
#include "core/fail.h"
#include "cpu/rows/cpu_outputs.h"

/* The best so far, in descending order. */
typedef struct best_list {
    float score[GUMBEL_BEST_MAX];
    int32_t id[GUMBEL_BEST_MAX];
    int32_t count;
} best_list;

/* Inserts a token, if its score is among the best. Ids ascend from call to call, so that ties go to
 * the lower id. */
static void insert_token(best_list *list, float score, int32_t id)
{
    int32_t at = list->count - 1;
    if (!(score > list->score[at]))
        return;
    for (; at > 0 && list->score[at - 1] < score; at--) {
        list->score[at] = list->score[at - 1];
        list->id[at] = list->id[at - 1];
    }
    list->score[at] = score;
    list->id[at] = id;
}

/* g of the 64 tokens of a block of row b: computed, or read from the caller's noise; 0 if the row
 * is greedy. */
static void load_block_noise(const cpu_rows_call *r, const gumbel_row *row, int64_t b,
                             int64_t token, float g[GUMBEL_BLOCK])
{
    const gumbel_problem *p = &r->problem;
    const float *noise = p->sampling.noise;
    if (!row->greedy && !noise) {
        r->job.device->kernels->make_noise(row->stream, (uint32_t)token, 1, g);
        return;
    }
    for (int64_t i = 0; i < GUMBEL_BLOCK; i++) {
        int64_t at = token + i - p->first_token;
        int counts = !row->greedy && at >= 0 && at < p->vocab;
        g[i] = counts ? noise[b * p->sampling.noise_stride + at] : 0.0f;
    }
}

static void score_block(const cpu_rows_call *r, const gumbel_row *row, int64_t b, int64_t block,
                        best_list *list)
{
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK;
    float z[GUMBEL_BLOCK], g[GUMBEL_BLOCK];
    cpu_load_kept_block(r, b, block, z);
    load_block_noise(r, row, b, token, g);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        if (z[i] > -INFINITY)
            insert_token(list, z[i] + g[i], (int32_t)token + i);
}

void cpu_write_best_scores(const cpu_rows_call *r, int64_t b, int ok)
{
    const gumbel_output *out = r->output;
    gumbel_row row = gumbel_problem_row(&r->problem, b);
    best_list list = {.count = out->num_best};
    GUMBEL_ASSERT(list.count >= 1 && list.count <= GUMBEL_BEST_MAX);
    for (int32_t i = 0; i < list.count; i++) {
        list.score[i] = ok ? -INFINITY : NAN;
        list.id[i] = -1;
    }
    for (int64_t block = 0; ok && block < r->stage.blocks; block++)
        if (cpu_may_block_survive(r, b, block))
            score_block(r, &row, b, block, &list);
    for (int32_t i = 0; i < list.count; i++) {
        if (out->best_ids)
            out->best_ids[b * list.count + i] = list.id[i];
        if (out->best_scores)
            out->best_scores[b * list.count + i] = list.score[i];
    }
}

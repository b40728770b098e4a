/* SPDX-License-Identifier: Apache-2.0
 *
 * The best scores of a draw: survivors are scored once more, block by block, and those above the
 * least of the list go in. Noise of a whole row is made, so a row takes about three times its draw.
 */
#include "core/fail.h"
#include "cpu/rows/cpu_rows.h"

/* The best so far, the best first. */
typedef struct best_list {
    float score[GUMBEL_BEST_MOST];
    int32_t id[GUMBEL_BEST_MOST];
    int32_t most;
} best_list;

/* Offer a token; ids never fall from call to call, so that ties go to the lower one. */
static void offer(best_list *list, float score, int32_t id)
{
    int32_t at = list->most - 1;
    if (!(score > list->score[at]))
        return;
    for (; at > 0 && list->score[at - 1] < score; at--) {
        list->score[at] = list->score[at - 1];
        list->id[at] = list->id[at - 1];
    }
    list->score[at] = score;
    list->id[at] = id;
}

/* g of the 64 tokens of a block of row b: made, made ahead, or none where it is greedy. */
static void block_noise(const cpu_request *r, const gumbel_row *row, int64_t b, int64_t token,
                        float g[GUMBEL_BLOCK])
{
    const gumbel_problem *p = &r->problem;
    const float *ahead = p->sampling.noise;
    if (!row->greedy && !ahead) {
        r->job.device->kernels->noise(row->stream, (uint32_t)token, 1, g);
        return;
    }
    for (int64_t i = 0; i < GUMBEL_BLOCK; i++) {
        int64_t at = token + i - p->first_token;
        int counts = !row->greedy && at >= 0 && at < p->vocab;
        g[i] = counts ? ahead[b * p->sampling.noise_stride + at] : 0.0f;
    }
}

static void score_block(const cpu_request *r, const gumbel_row *row, int64_t b, int64_t block,
                        best_list *list)
{
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK;
    float z[GUMBEL_BLOCK], g[GUMBEL_BLOCK];
    cpu_request_block(r, b, block, z);
    block_noise(r, row, b, token, g);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        if (z[i] > -INFINITY)
            offer(list, z[i] + g[i], (int32_t)token + i);
}

void cpu_request_best(const cpu_request *r, int64_t b, int ok)
{
    const gumbel_output *out = r->output;
    gumbel_row row = gumbel_problem_row(&r->problem, b);
    best_list list = {.most = out->num_best};
    GUMBEL_ASSERT(list.most >= 1 && list.most <= GUMBEL_BEST_MOST);
    for (int32_t i = 0; i < list.most; i++) {
        list.score[i] = ok ? -INFINITY : NAN;
        list.id[i] = -1;
    }
    for (int64_t block = 0; ok && block < r->stage.blocks; block++)
        if (cpu_request_survives(r, b, block))
            score_block(r, &row, b, block, &list);
    for (int32_t i = 0; i < list.most; i++) {
        if (out->best_ids)
            out->best_ids[b * list.most + i] = list.id[i];
        if (out->best_scores)
            out->best_scores[b * list.most + i] = list.score[i];
    }
}

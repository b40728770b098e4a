/* SPDX-License-Identifier: Apache-2.0 */
#include "core/problem.h"

static void skip_rows(gumbel_tensor *t, int64_t first, int64_t count)
{
    int64_t size = t->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    if (t->data)
        t->data = (const char *)t->data + first * t->stride * size;
    t->rows = count;
}

static void skip_lists(gumbel_token_lists *lists, int64_t first)
{
    lists->offsets = lists->offsets ? lists->offsets + first : NULL;
}

gumbel_problem gumbel_problem_slice(const gumbel_problem *problem, int64_t first, int64_t count)
{
    gumbel_problem p = *problem;
    gumbel_transforms *t = &p.transforms;
    const int64_t draws = first * p.sampling.num_samples;
    p.batch = count;
    p.first_row += first;
    skip_rows(p.hidden_size > 0 ? &p.hidden : &p.logits, first, count);
    if (!p.list_of_row) {
        skip_lists(&t->allowed, first);
        skip_lists(&t->banned, first);
        skip_lists(&t->bias, first);
        skip_lists(&t->prompt_tokens, first);
        skip_lists(&t->output_tokens, first);
    }
    skip_lists(&p.path, first);
    if (p.sampling.noise)
        p.sampling.noise += draws * p.sampling.noise_stride;
    return p;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/problem.h"

#include "core/backend.h"
#include "core/fail.h"

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
    GUMBEL_ASSERT(first >= 0 && count >= 0 && first + count <= problem->batch);
    p.batch = count;
    p.first_row += first;
    skip_rows(p.hidden_size > 0 ? &p.hidden : &p.logits, first, count);
    if (!p.list_of_row) {
        skip_lists(&t->allowed, first);
        skip_lists(&t->banned, first);
        skip_lists(&t->bias, first);
        skip_lists(&t->prompt_tokens, first);
        skip_lists(&t->output_tokens, first);
        skip_lists(&t->late_bias, first);
        t->list_status = t->list_status ? t->list_status + first : NULL;
        skip_lists(&p.programs.xtc_keep, first);
    }
    skip_lists(&p.path, first);
    if (p.sampling.noise)
        p.sampling.noise += draws * p.sampling.noise_stride;
    return p;
}

#ifdef GUMBEL_ASSERTIONS
static void assert_tensor(const gumbel_tensor *t, int64_t rows, int64_t cols)
{
    GUMBEL_ASSERT(t->dtype == GUMBEL_FLOAT32 || t->dtype == GUMBEL_FLOAT16 ||
                  t->dtype == GUMBEL_BFLOAT16);
    GUMBEL_ASSERT(t->rows == rows);
    GUMBEL_ASSERT(t->cols == cols);
    GUMBEL_ASSERT(t->stride >= cols);
    GUMBEL_ASSERT(t->data || rows == 0);
    GUMBEL_ASSERT((uintptr_t)t->data % (t->dtype == GUMBEL_FLOAT32 ? 4 : 2) == 0);
}

/* A row parameter; its stride is 0 if one value serves all rows. */
static void assert_rows(const void *data, int64_t stride, int64_t width)
{
    GUMBEL_ASSERT(stride == 0 || stride >= width);
    GUMBEL_ASSERT(data || stride == 0);
}

static void assert_lists(const gumbel_token_lists *lists, int requested)
{
    GUMBEL_ASSERT(lists->offsets || !requested);
    GUMBEL_ASSERT(!lists->reserved);
}

static void assert_sampling(const gumbel_problem *p)
{
    const gumbel_sampling *s = &p->sampling;
    GUMBEL_ASSERT(s->num_samples >= 1 && s->num_samples <= GUMBEL_SAMPLES_MAX);
    GUMBEL_ASSERT(!s->transforms && !s->truncation);
    GUMBEL_ASSERT(s->domain < GUMBEL_BLOCK_DOMAIN);
    GUMBEL_ASSERT(!s->noise || s->noise_stride >= p->vocab);
    GUMBEL_ASSERT(!s->slots.of_row || s->slots.count >= 1);
    GUMBEL_ASSERT(s->given.data || !(p->features & GUMBEL_FEATURE_GIVEN));
    assert_rows(s->temperature.data, s->temperature.stride, 1);
    assert_rows(s->seed.data, s->seed.stride, 1);
    assert_rows(s->position.data, s->position.stride, 1);
    assert_rows(s->first_sample.data, s->first_sample.stride, 1);
}

static void assert_request(const gumbel_problem *p)
{
    const gumbel_transforms *t = &p->transforms;
    uint32_t request = p->features;
    GUMBEL_ASSERT(request < GUMBEL_FEATURE_END);
    GUMBEL_ASSERT(!t->history);
    GUMBEL_ASSERT(!p->with_path || request & GUMBEL_FEATURE_PENALTIES);
    GUMBEL_ASSERT(!p->with_path || p->path.offsets);
    assert_lists(&t->allowed, (request & GUMBEL_FEATURE_ALLOWED) != 0);
    assert_lists(&t->banned, (request & GUMBEL_FEATURE_BANNED) != 0);
    assert_lists(&t->bias, (request & GUMBEL_FEATURE_BIAS) != 0);
    assert_lists(&t->late_bias, (request & GUMBEL_FEATURE_LATE_BIAS) != 0);
    assert_rows(t->repetition.data, t->repetition.stride, 1);
    assert_rows(t->frequency.data, t->frequency.stride, 1);
    assert_rows(t->presence.data, t->presence.stride, 1);
    assert_rows(p->truncation.min_p.data, p->truncation.min_p.stride, 1);
    assert_rows(p->truncation.top_k.data, p->truncation.top_k.stride, 1);
    assert_rows(p->truncation.top_p.data, p->truncation.top_p.stride, 1);
    if (request & GUMBEL_FEATURE_MASK) {
        GUMBEL_ASSERT(t->mask.data);
        assert_rows(t->mask.data, t->mask.stride, (p->first_token + p->vocab + 31) / 32);
    }
    if (request & GUMBEL_FEATURE_PENALTIES && p->history.prompt) {
        GUMBEL_ASSERT(p->history.output && p->history.counts);
        GUMBEL_ASSERT(p->history.vocab_size >= 1);
        GUMBEL_ASSERT(p->history.count_bits == 16 || p->history.count_bits == 32);
    }
}

void gumbel_problem_assert(const gumbel_problem *p)
{
    GUMBEL_ASSERT(p->batch >= 0 && p->first_row >= 0);
    GUMBEL_ASSERT(p->vocab >= 1 && p->hidden_size >= 0);
    GUMBEL_ASSERT(p->first_token >= 0 && p->first_token + p->vocab <= INT64_C(1) << 31);
    GUMBEL_ASSERT(p->end_token <= p->first_token + p->vocab);
    GUMBEL_ASSERT(p->scale != 0.0f && p->soft_cap >= 0.0f);
    if (p->hidden_size > 0) {
        assert_tensor(&p->hidden, p->batch, p->hidden_size);
        assert_tensor(&p->weight, p->vocab, p->hidden_size);
        if (p->bias.data)
            assert_tensor(&p->bias, 1, p->vocab);
    } else {
        assert_tensor(&p->logits, p->batch, p->vocab);
    }
    assert_sampling(p);
    assert_request(p);
}
#endif

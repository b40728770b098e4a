/* SPDX-License-Identifier: Apache-2.0
 *
 * What one row of a problem asks for: where it is drawn, which rules cut it, what edits it. Read by
 * every backend. Numbers that cannot be are off: those of a GPU nobody has looked at.
 */
#ifndef GUMBEL_CORE_ROW_H
#define GUMBEL_CORE_ROW_H

#include "core/problem.h"
#include "maths/edits.h"
#include "maths/truncation.h"

/* 1/T is not let grow above this: smaller temperatures draw as this one does. Logits that are 4e-29
 * apart, as any two distinct ones above 2^-70 in size are, are then further apart than any two
 * noises. */
#define GUMBEL_INVERSE_TEMPERATURE_HIGHEST 0x1p100f

/* The parameters of row b. */
typedef struct gumbel_row {
    float inverse_temperature; /* 1 for a greedy row */
    int greedy;
    gumbel_stream stream; /* of sample 0 */
} gumbel_row;

GUMBEL_INLINE gumbel_row gumbel_problem_row(const gumbel_problem *p, int64_t b)
{
    const gumbel_sampling *s = &p->sampling;
    float t = s->temperature ? s->temperature[b * s->temperature_stride] : 1.0f;
    uint64_t seed = s->seed ? s->seed[b * s->seed_stride] : 0;
    uint32_t position = s->position ? s->position[b * s->position_stride] : 0;
    gumbel_row row;
    row.inverse_temperature = 1.0f;
    row.greedy = t == 0.0f;
    if (t > 0.0f)
        row.inverse_temperature = fminf(1.0f / t, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
    row.stream.seed = s->seed_stride ? seed : gumbel_mix_seed(seed, (uint64_t)(p->first_row + b));
    row.stream.position = position;
    row.stream.sample = s->first_sample;
    row.stream.domain = s->domain;
    return row;
}

/* Whether row b's temperature can be drawn at. Entry points check what the host can read. */
GUMBEL_INLINE int gumbel_problem_row_valid(const gumbel_problem *p, int64_t b)
{
    const gumbel_sampling *s = &p->sampling;
    float t = s->temperature ? s->temperature[b * s->temperature_stride] : 1.0f;
    return t >= 0.0f && t < INFINITY;
}

/* Row b's rules; nothing cuts a greedy row. A top_k of V or more keeps all. */
GUMBEL_INLINE gumbel_rules gumbel_problem_rules(const gumbel_problem *p, int64_t b, int greedy)
{
    const gumbel_truncation *t = &p->truncation;
    gumbel_rules r = {0.0f, 0, 1.0f, 0, 0, 0};
    if (!(p->request & GUMBEL_REQUEST_TRUNCATION))
        return r;
    r.joint = t->order == GUMBEL_ORDER_JOINT;
    r.exact = t->ties == GUMBEL_TIES_EXACT;
    r.before = t->order == GUMBEL_ORDER_BEFORE_TEMPERATURE;
    if (greedy)
        return r;
    float min_p = t->min_p ? t->min_p[b * t->min_p_stride] : 0.0f;
    float top_p = t->top_p ? t->top_p[b * t->top_p_stride] : 1.0f;
    int32_t top_k = t->top_k ? t->top_k[b * t->top_k_stride] : 0;
    r.min_p = min_p > 0.0f && min_p <= 1.0f ? min_p : 0.0f;
    r.top_k = top_k > 0 && top_k < p->vocab ? top_k : 0;
    r.top_p = top_p > 0.0f && top_p < 1.0f ? top_p : 1.0f;
    return r;
}

GUMBEL_INLINE gumbel_penalties gumbel_problem_penalties(const gumbel_problem *p, int64_t b)
{
    const gumbel_transforms *t = &p->transforms;
    gumbel_penalties q;
    q.repetition = t->repetition ? t->repetition[b * t->repetition_stride] : 1.0f;
    q.frequency = t->frequency ? t->frequency[b * t->frequency_stride] : 0.0f;
    q.presence = t->presence ? t->presence[b * t->presence_stride] : 0.0f;
    return q;
}

/* Row b's mask; its word t >> 5 holds token t. */
GUMBEL_INLINE const int32_t *gumbel_problem_mask(const gumbel_problem *p, int64_t b)
{
    return p->transforms.mask + b * p->transforms.mask_stride;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of one row of a problem: its stream, truncation rules, penalties, mask and lists.
 * Every backend reads them here. The host does not check parameters in GPU memory, so an invalid
 * rule counts as off.
 */
#ifndef GUMBEL_CORE_ROW_H
#define GUMBEL_CORE_ROW_H

#include "core/problem.h"
#include "maths/edits.h"
#include "maths/summary.h"
#include "maths/truncation.h"

/* Upper limit of 1/T; smaller temperatures draw as this one. The limit is large enough: two
 * distinct logits above 2^-70 in size are at least 4e-29 apart, so their z then differ by more than
 * any two noises. */
#define GUMBEL_INVERSE_TEMPERATURE_HIGHEST 0x1p100f

/* The parameters of row b. */
typedef struct gumbel_row {
    float inverse_temperature; /* 1 for a greedy row */
    int greedy;
    gumbel_stream stream; /* of sample 0 */
} gumbel_row;

/* The slot of a row that is not drawn. */
#define GUMBEL_SLOT_UNUSED INT32_MIN

/* The slot of row b: index of its parameters, mask and history. A slot out of range reads as slot
 * 0; gumbel_problem_row_flags() reports it. */
GUMBEL_INLINE int64_t gumbel_problem_slot(const gumbel_problem *p, int64_t b)
{
    const gumbel_slots *slots = &p->sampling.slots;
    int64_t row = p->first_row + b;
    if (!slots->of_row)
        return row;
    int64_t slot = slots->of_row[row];
    return slot >= 0 && slot < slots->count ? slot : 0;
}

/* Whether row b is below live_rows. */
GUMBEL_INLINE int gumbel_problem_row_is_live(const gumbel_problem *p, int64_t b)
{
    return !p->sampling.live_rows || p->first_row + b < *p->sampling.live_rows;
}

GUMBEL_INLINE float gumbel_temperature_at(const gumbel_problem *p, int64_t slot)
{
    const gumbel_row_f32 *t = &p->sampling.temperature;
    return t->data ? t->data[slot * t->stride] : 1.0f;
}

GUMBEL_INLINE gumbel_row gumbel_problem_row(const gumbel_problem *p, int64_t b)
{
    const gumbel_sampling *s = &p->sampling;
    int64_t slot = gumbel_problem_slot(p, b);
    float t = gumbel_temperature_at(p, slot);
    uint64_t seed = s->seed.data ? s->seed.data[slot * s->seed.stride] : 0;
    int64_t place = p->position_by_row ? p->first_row + b : slot;
    uint64_t position = s->position.data ? s->position.data[place * s->position.stride] : 0;
    const gumbel_row_u32 *first = &s->first_sample;
    uint32_t sample = first->data ? first->data[slot * first->stride] : 0;
    gumbel_row row;
    row.inverse_temperature = 1.0f;
    row.greedy = t == 0.0f;
    if (t > 0.0f)
        row.inverse_temperature = fminf(1.0f / t, GUMBEL_INVERSE_TEMPERATURE_HIGHEST);
    if (s->seed.stride == 0)
        seed = gumbel_mix_seed(seed, (uint64_t)slot);
    row.stream = gumbel_stream_at(seed, position, sample, s->domain);
    return row;
}

/* The index of row b's token lists. */
GUMBEL_INLINE int64_t gumbel_problem_list_of_row(const gumbel_problem *p, int64_t b)
{
    return p->list_of_row ? p->list_of_row[p->first_row + b] : b;
}

/* GUMBEL_FLAG_LISTS if a made list of row b has no room for its ids, else 0. */
GUMBEL_INLINE uint32_t gumbel_problem_list_flags(const gumbel_problem *p, int64_t b)
{
    const int32_t *status = p->transforms.list_status;
    return status && status[gumbel_problem_list_of_row(p, b)] == GUMBEL_ROW_LISTS
               ? GUMBEL_FLAG_LISTS
               : 0;
}

/* Flags of a summary for row b by its parameters; 0 if they are valid. Entry points check
 * parameters that the host can read. */
GUMBEL_INLINE uint32_t gumbel_problem_row_flags(const gumbel_problem *p, int64_t b)
{
    const gumbel_slots *slots = &p->sampling.slots;
    if (!gumbel_problem_row_is_live(p, b))
        return GUMBEL_FLAG_UNUSED;
    if (slots->of_row) {
        int64_t slot = slots->of_row[p->first_row + b];
        if (slot == GUMBEL_SLOT_UNUSED)
            return GUMBEL_FLAG_UNUSED;
        if (slot < 0 || slot >= slots->count)
            return GUMBEL_FLAG_SLOT;
    }
    float t = gumbel_temperature_at(p, gumbel_problem_slot(p, b));
    uint32_t flags = gumbel_problem_list_flags(p, b);
    return t >= 0.0f && t < INFINITY ? flags : flags | GUMBEL_FLAG_TEMPERATURE;
}

/* Sets of orders, a bit each. min_p and top_k have the same cutoffs in every order, so an order
 * only determines which of them come before top_p, and whether rules apply to y or z. A new order
 * of these rules needs bits here and no other code. */
typedef enum gumbel_orders {
    GUMBEL_ORDERS_MIN_P_BEFORE_TOP_P =
        1 << GUMBEL_ORDER_MIN_P_TOP_K_TOP_P | 1 << GUMBEL_ORDER_BEFORE_TEMPERATURE,
    GUMBEL_ORDERS_TOP_K_BEFORE_TOP_P = GUMBEL_ORDERS_MIN_P_BEFORE_TOP_P |
                                       1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P |
                                       1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    GUMBEL_ORDERS_BEFORE_TEMPERATURE = 1 << GUMBEL_ORDER_BEFORE_TEMPERATURE |
                                       1 << GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE |
                                       1 << GUMBEL_ORDER_JOINT_TEMPERATURE,
} gumbel_orders;

GUMBEL_INLINE int gumbel_order_is_in(gumbel_order order, gumbel_orders set)
{
    return (int)set >> order & 1;
}

/* Row b's truncation rules; a greedy row has none. A top_k of V or more is off. */
GUMBEL_INLINE gumbel_rules gumbel_problem_rules(const gumbel_problem *p, int64_t b, int greedy)
{
    const gumbel_truncation *t = &p->truncation;
    gumbel_rules r = {0.0f, 0, 1.0f, 0, 0, 0, 0};
    if (!(p->features & GUMBEL_FEATURE_TRUNCATION))
        return r;
    r.joint = !gumbel_order_is_in(t->order, GUMBEL_ORDERS_TOP_K_BEFORE_TOP_P);
    r.exact = t->ties == GUMBEL_TIES_EXACT;
    r.before = gumbel_order_is_in(t->order, GUMBEL_ORDERS_BEFORE_TEMPERATURE);
    if (greedy)
        return r;
    int64_t slot = gumbel_problem_slot(p, b);
    float min_p = t->min_p.data ? t->min_p.data[slot * t->min_p.stride] : 0.0f;
    float top_p = t->top_p.data ? t->top_p.data[slot * t->top_p.stride] : 1.0f;
    int32_t top_k = t->top_k.data ? t->top_k.data[slot * t->top_k.stride] : 0;
    r.min_p = min_p > 0.0f && min_p <= 1.0f ? min_p : 0.0f;
    r.top_k = top_k > 0 && top_k < p->vocab ? top_k : 0;
    r.top_p = top_p > 0.0f && top_p < 1.0f ? top_p : 1.0f;
    if (!gumbel_order_is_in(t->order, GUMBEL_ORDERS_MIN_P_BEFORE_TOP_P)) {
        r.joint |= r.top_k == 0;
        r.last = !r.joint && r.min_p > 0.0f && r.top_p < 1.0f;
    }
    return r;
}

GUMBEL_INLINE gumbel_penalties gumbel_problem_penalties(const gumbel_problem *p, int64_t b)
{
    const gumbel_transforms *t = &p->transforms;
    int64_t slot = gumbel_problem_slot(p, b);
    gumbel_penalties q;
    q.repetition = t->repetition.data ? t->repetition.data[slot * t->repetition.stride] : 1.0f;
    q.frequency = t->frequency.data ? t->frequency.data[slot * t->frequency.stride] : 0.0f;
    q.presence = t->presence.data ? t->presence.data[slot * t->presence.stride] : 0.0f;
    return q;
}

/* Occurrences of token t < vocab_size in the output of a slot. */
GUMBEL_INLINE uint32_t gumbel_history_count(const gumbel_history *h, int64_t slot, int64_t t)
{
    int64_t at = slot * h->vocab_size + t;
    if (h->count_bits == 16)
        return ((const uint16_t *)h->counts)[at];
    int32_t count = ((const int32_t *)h->counts)[at];
    return count < 0 ? 0 : count < GUMBEL_COUNT_MAX ? (uint32_t)count : GUMBEL_COUNT_MAX;
}

/* Row b's mask; bit t & 31 of word t >> 5 is token t. */
GUMBEL_INLINE const int32_t *gumbel_problem_mask(const gumbel_problem *p, int64_t b)
{
    const gumbel_row_i32 *mask = &p->transforms.mask;
    int64_t place = p->mask_by_row ? p->first_row + b : gumbel_problem_slot(p, b);
    return mask->data + place * mask->stride;
}

#endif

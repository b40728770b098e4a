/* SPDX-License-Identifier: Apache-2.0
 *
 * Updates of one row's parameters after a draw (gumbel/programs.h).
 */
#ifndef GUMBEL_CORE_RULE_UPDATES_H
#define GUMBEL_CORE_RULE_UPDATES_H

#include "core/row_program.h"

#define GUMBEL_LOG2_OF_E 0x1.715476p+0f

/* The index of row b's parameters; -1: the row keeps its values. */
GUMBEL_INLINE int64_t gumbel_updated_slot(const gumbel_rule_updates *u, int64_t b)
{
    const int64_t slot = u->slots.of_row ? u->slots.of_row[b] : b;
    const int is_live = !u->live_rows || b < *u->live_rows;
    const int is_valid = slot >= 0 && (!u->slots.of_row || slot < u->slots.count);
    return is_live && is_valid && u->tokens[b * u->token_stride] >= 0 ? slot : -1;
}

/* mu - rate * (s - target), at least 0. */
GUMBEL_INLINE float gumbel_update_surprise(float mu, float logprob, float target, float rate)
{
    const float bits = -logprob * GUMBEL_LOG2_OF_E;
    const float changed = mu - rate * (bits - target);
    return changed > 0.0f ? changed : 0.0f;
}

/* Adds a probability to the decayed sum of the earlier ones. Returns the next target. */
GUMBEL_INLINE float gumbel_update_adaptive(float *sum, float *weight, float logprob, float goal,
                                           float decay)
{
    const float p = logprob < 0.0f ? gumbel_exp(logprob) : 1.0f;
    *sum = p + decay * *sum;
    *weight = 1.0f + decay * *weight;
    const float target = 2.0f * goal - *sum / *weight;
    if (goal < 0.0f)
        return -1.0f;
    return target > 0.0f ? fminf(target, 1.0f) : 0.0f;
}

GUMBEL_INLINE void gumbel_update_row_rules(const gumbel_rule_updates *u, int64_t b)
{
    const int64_t slot = gumbel_updated_slot(u, b);
    if (slot < 0)
        return;
    const int32_t token = u->tokens[b * u->token_stride];
    if (u->surprise) {
        float *mu = &u->surprise[slot * u->surprise_stride];
        *mu =
            gumbel_update_surprise(*mu, u->logprobs[b * u->token_stride],
                                   gumbel_float_in(&u->surprise_target, slot, 0.0f, FLT_MAX, 0.0f),
                                   gumbel_float_in(&u->surprise_rate, slot, 0.0f, FLT_MAX, 0.1f));
    }
    if (u->top_p) {
        float *top_p = &u->top_p[slot * u->top_p_stride];
        const float decay = gumbel_float_in(&u->top_p_decay, slot, 0x1p-149f, 1.0f, 1.0f);
        const float least = gumbel_float_in(&u->top_p_min, slot, 0x1p-149f, 1.0f, 0x1p-149f);
        const int32_t reset =
            u->top_p_reset.data ? u->top_p_reset.data[slot * u->top_p_reset.stride] : -1;
        *top_p = token == reset ? gumbel_float_in(&u->top_p_first, slot, 0x1p-149f, 1.0f, 1.0f)
                                : fmaxf(*top_p * decay, least);
    }
    if (u->adaptive_target)
        u->adaptive_target[slot * u->adaptive_target_stride] = gumbel_update_adaptive(
            &u->adaptive_sum[slot * u->adaptive_sum_stride],
            &u->adaptive_weight[slot * u->adaptive_weight_stride], u->logprobs[b * u->token_stride],
            gumbel_float_in(&u->adaptive_goal, slot, -1.0f, 1.0f, -1.0f),
            gumbel_float_in(&u->adaptive_decay, slot, 0.0f, 0.99f, 0.9f));
}

#endif

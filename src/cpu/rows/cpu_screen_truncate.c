/* SPDX-License-Identifier: Apache-2.0
 *
 * Lazy truncation. The winner of a draw among all tokens is the winner among the survivors, if it
 * survives. A removed winner removes all tokens behind it in the order of values, and the draw is
 * repeated among the rest.
 */
#include "cpu/rows/cpu_screen_verdict.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

/* Records that values below `value` are removed, and its tokens from `end` on. */
static void raise_threshold(cpu_screen_row *row, float value, int64_t end)
{
    if (value > row->threshold || (value == row->threshold && end < row->threshold_end)) {
        row->threshold = value;
        row->threshold_end = end;
    }
}

/* Resets a draw: no thread has a winner or a candidate. */
static void clear_draw(cpu_screen *screen, int64_t draw, int32_t thread)
{
    cpu_candidates *candidates = &screen->candidates[draw];
    for (int32_t i = 0; i < screen->used_threads; i++) {
        gumbel_summary *s = &cpu_get_scratch(&screen->bound_job, i).summaries[draw];
        s->best_score = s->best_z = -INFINITY;
        s->best_id = -1;
    }
    atomic_store_explicit(candidates->best_score, -INFINITY, memory_order_relaxed);
    candidates->best = &cpu_get_scratch(&screen->bound_job, 0).summaries[draw];
    candidates->thread = thread;
    candidates->count = 0;
    candidates->excess = 0.0f;
}

/* Draws one sample from a block of row b; z holds the upper bounds of tokens that may survive. */
static void draw_block(const cpu_screen *screen, int64_t b, int32_t sample, int64_t block,
                       const float *z)
{
    const gumbel_problem *p = screen->exact_job.problem;
    int64_t draw_of_batch = b * p->sampling.num_samples + sample;
    int64_t token = screen->upper_job.first_tile + block * GUMBEL_BLOCK;
    cpu_token_range range = cpu_find_counted_range(p, token, GUMBEL_BLOCK);
    gumbel_row row = gumbel_problem_row(p, b);
    row.stream.sample += (uint32_t)sample;
    cpu_draw draw = cpu_make_draw(p, &row, draw_of_batch, token, range.low, range.high);
    draw.num_samples = 1;
    draw.candidates = &screen->candidates[draw_of_batch];
    draw.summaries = draw.candidates->best;
    screen->exact_job.device->kernels->draw_tokens(z, &draw);
}

/* Repeats a sample of row b among the tokens that reach its threshold. */
static void repeat_draw(cpu_screen *screen, int64_t b, int32_t sample, int32_t thread)
{
    const gumbel_problem *p = screen->exact_job.problem;
    const cpu_stage *stage = &screen->upper_stage;
    const float *maxima = stage->block_maxima + b * stage->maxima_stride;
    int64_t draw = b * p->sampling.num_samples + sample;
    float z[GUMBEL_BLOCK], threshold = screen->rows[b].threshold,
                           scale = cpu_find_staged_scale(p, b);
    clear_draw(screen, draw, thread);
    for (int64_t block = 0; block < stage->blocks; block++) {
        if (maxima[block] < threshold)
            continue;
        const float *upper = cpu_get_staged_block(&screen->upper_job, b, block);
        if (screen->exact_job.device->kernels->filter_block(upper, scale, threshold, z) > 0)
            draw_block(screen, b, sample, block, z);
    }
    cpu_score_remaining_candidates(screen, draw, thread);
}

/* Repeats a sample until its winner survives; returns 0 if that is not determined. */
static int draw_truncated_sample(cpu_verdict_state *state, int32_t sample)
{
    cpu_screen *screen = state->screen;
    cpu_screen_row *row = &screen->rows[state->b];
    int64_t draw = state->b * screen->exact_job.problem->sampling.num_samples + sample;
    for (int tries = 0; tries < CPU_SCREEN_TRIES; tries++) {
        int64_t token = screen->candidates[draw].best->best_id;
        if (token < 0 || cpu_has_given_up(&screen->candidates[draw]))
            return 0;
        float value = cpu_find_exact_value(state, token);
        if (state->stale)
            return 0;
        int below =
            value < row->threshold || (value == row->threshold && token >= row->threshold_end);
        gumbel_token_verdict verdict =
            below ? GUMBEL_TOKEN_TRUNCATED : cpu_determine_verdict(state, token, value);
        if (verdict != GUMBEL_TOKEN_TRUNCATED)
            return verdict == GUMBEL_TOKEN_KEPT;
        raise_threshold(row, value, state->rules.exact ? token : INT64_MIN);
        raise_threshold(row, cpu_find_removal_threshold(state), INT64_MAX);
        repeat_draw(screen, state->b, sample, state->thread);
    }
    return 0;
}

int cpu_draw_truncated_row(cpu_screen *screen, int64_t b, int32_t thread)
{
    cpu_verdict_state state;
    cpu_weight bins[CPU_BINS];
    int32_t samples = screen->exact_job.problem->sampling.num_samples;
    if (!cpu_init_verdict_state(&state, screen, b, thread, bins))
        return 0;
    for (int32_t s = 0; s < samples; s++)
        if (!draw_truncated_sample(&state, s))
            return 0;
    return 1;
}

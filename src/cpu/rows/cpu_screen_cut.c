/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws of rows that are cut, lazily: a draw's winner among all tokens is the winner among those
 * that stay, if it stays. One that is removed takes with it all that is behind it in the row sorted
 * by value, and the draw goes on among the rest.
 */
#include "cpu/rows/cpu_screen_judge.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

/* Lower values than `value` are removed, and its tokens from `end` on. */
static void raise_bar(cpu_screen_row *row, float value, int64_t end)
{
    if (value > row->bar || (value == row->bar && end < row->bar_end)) {
        row->bar = value;
        row->bar_end = end;
    }
}

/* What one draw of a row begins anew with: no winner, on any thread. */
static cpu_candidates *clear_draw(cpu_screen *screen, int64_t draw, int32_t thread)
{
    cpu_candidates *list = &screen->lists[draw];
    for (int32_t i = 0; i < screen->used; i++) {
        gumbel_summary *s = &cpu_job_slot(&screen->ends, i).summaries[draw];
        s->best_score = s->best_z = -INFINITY;
        s->best_id = -1;
    }
    list->best = &cpu_job_slot(&screen->ends, 0).summaries[draw];
    list->thread = thread;
    list->count = 0;
    list->spread = 0.0f;
    return list;
}

/* Draw sample `sample` of a block of row b, of whose upper ends z is what may stay. */
static void draw_block(const cpu_screen *screen, int64_t b, int32_t sample, int64_t block,
                       const float *z)
{
    const gumbel_problem *p = screen->exact.problem;
    int64_t draw_of = b * p->sampling.num_samples + sample;
    int64_t token = screen->upper.first_tile + block * GUMBEL_BLOCK;
    int64_t low = p->first_token > token ? p->first_token - token : 0;
    int64_t high = p->end_token - token < GUMBEL_BLOCK ? p->end_token - token : GUMBEL_BLOCK;
    gumbel_row row = gumbel_problem_row(p, b);
    row.stream.sample += (uint32_t)sample;
    cpu_draw draw = {.row = &row,
                     .num_samples = 1,
                     .token = (uint32_t)token,
                     .blocks = 1,
                     .factor = 1.0f,
                     .summaries = screen->lists[draw_of].best,
                     .candidates = &screen->lists[draw_of],
                     .noise_stride = p->sampling.noise_stride,
                     .low = (int)low,
                     .high = (int)high};
    if (p->sampling.noise)
        draw.noise =
            p->sampling.noise + draw_of * draw.noise_stride + (token + low - p->first_token);
    screen->exact.device->kernels->draw(z, &draw);
}

/* Draw a sample of row b anew, of what its bar leaves. */
static void draw_again(cpu_screen *screen, int64_t b, int32_t sample, int32_t thread)
{
    const gumbel_problem *p = screen->exact.problem;
    const float *peaks = screen->uppers.peaks + b * screen->uppers.peak_room;
    int64_t draw = b * p->sampling.num_samples + sample;
    float z[GUMBEL_BLOCK], bar = screen->rows[b].bar, scale = cpu_stage_scale(p, b);
    clear_draw(screen, draw, thread);
    for (int64_t block = 0; block < screen->uppers.blocks; block++) {
        if (peaks[block] < bar)
            continue;
        const float *upper = cpu_stage_block(&screen->upper, b, block);
        if (screen->exact.device->kernels->keep(upper, scale, bar, z) > 0)
            draw_block(screen, b, sample, block, z);
    }
    cpu_screen_settle(screen, draw, thread);
}

/* The winner of a draw. */
static int64_t winner_of(const cpu_screen *screen, int64_t draw)
{
    return screen->lists[draw].best->best_id;
}

/* Settle a sample: draw until the winner stays. */
static int settle_sample(cpu_judged *j, int32_t sample)
{
    cpu_screen *screen = j->screen;
    cpu_screen_row *row = &screen->rows[j->b];
    int64_t draw = j->b * screen->exact.problem->sampling.num_samples + sample;
    for (int tries = 0; tries < CPU_SCREEN_TRIES; tries++) {
        int64_t token = winner_of(screen, draw);
        if (token < 0 || cpu_candidates_given_up(&screen->lists[draw]))
            return 0;
        float value = cpu_judge_value(j, token);
        if (j->stale)
            return 0;
        int passed = value < row->bar || (value == row->bar && token >= row->bar_end);
        gumbel_token_verdict verdict = passed ? GUMBEL_TOKEN_TRUNCATED : cpu_judge(j, token, value);
        if (verdict != GUMBEL_TOKEN_TRUNCATED)
            return verdict == GUMBEL_TOKEN_KEPT;
        raise_bar(row, value, j->rules.exact ? token : INT64_MIN);
        raise_bar(row, cpu_judge_floor(j), INT64_MAX);
        draw_again(screen, j->b, sample, j->thread);
    }
    return 0;
}

int cpu_screen_cut_row(cpu_screen *screen, int64_t b, int32_t thread)
{
    cpu_judged judged;
    cpu_weight bins[CPU_BINS];
    int32_t samples = screen->exact.problem->sampling.num_samples;
    if (!cpu_judge_begin(&judged, screen, b, thread, bins))
        return 0;
    for (int32_t s = 0; s < samples; s++)
        if (!settle_sample(&judged, s))
            return 0;
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows truncated by top_k or min_p whose other outputs are requested, too, such as
 * log-probabilities: all tokens that may survive are scored exactly, and the row is then truncated
 * and drawn as by the full pass, with -inf for all other tokens.
 */
#include "cpu/rows/cpu_screen_survivors.h"

#include "core/fail.h"
#include "cpu/rows/cpu_rows.h"
#include "cpu/rows/cpu_screen_verdict.h"

int cpu_has_survivors(const gumbel_rules *rules)
{
    return (rules->top_k > 0 || rules->min_p > 0.0f) && !(rules->joint && rules->top_p < 1.0f);
}

/* A value that all tokens reach that can affect the row's outputs; -FLT_MAX: unknown. */
static float find_outputs_threshold(const cpu_verdict_state *state, int32_t num_top)
{
    const gumbel_rules *rules = &state->rules;
    const int64_t listed = rules->top_k > num_top ? rules->top_k : num_top;
    const float by_rank = listed > 0 ? cpu_find_nth_lower(state, listed) : INFINITY;
    if (!cpu_has_survivors(rules))
        return -FLT_MAX;
    return rules->top_k > 0 ? by_rank : fminf(by_rank, cpu_find_min_p_bound(state));
}

/* Replaces the staged upper bounds below the threshold by -inf. */
static void drop_bounds_below(cpu_screen *screen, const cpu_kernels *kernels, int64_t b,
                              float threshold)
{
    const cpu_stage *stage = &screen->upper_stage;
    float *maxima = stage->block_maxima + b * stage->maxima_stride;
    for (int64_t block = 0; block < stage->blocks; block++) {
        float *upper = (float *)(uintptr_t)cpu_get_staged_block(&screen->upper_job, b, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            upper[i] = upper[i] < threshold ? -INFINITY : upper[i];
        kernels->find_maxima(upper, 1, &maxima[block]);
    }
}

/* Stages the exact values of all tokens of row b that can affect its outputs
 * (cpu_truncate_row_fn). */
static int stage_survivors(cpu_screen *screen, int64_t b, int32_t thread)
{
    cpu_verdict_state state;
    cpu_weight bins[CPU_BINS];
    if (!cpu_init_verdict_state(&state, screen, b, thread, bins))
        return 0;
    const float threshold = find_outputs_threshold(&state, screen->num_top);
    if (!(threshold > -FLT_MAX) || !cpu_compute_values_from(&state, threshold))
        return 0;
    drop_bounds_below(screen, state.kernels, b, threshold);
    return 1;
}

size_t cpu_count_survivors_workspace(int64_t batch)
{
    gumbel_cursor cursor = {0};
    gumbel_carve_array(&cursor, (size_t)batch, 1, sizeof(cpu_row_truncation));
    return cursor.used;
}

cpu_row_range cpu_sample_survivors(cpu_device *cpu, const gumbel_problem *p,
                                   const gumbel_output *output, gumbel_summary *summaries,
                                   void *workspace)
{
    gumbel_problem bounded = *p;
    cpu_screen screen = {
        .truncate_row = stage_survivors, .stages_survivors = 1, .num_top = output->num_top};
    bounded.with_mass = 0;
    gumbel_cursor cursor = {workspace, cpu_run_screen(&screen, cpu, &bounded, workspace)};
    cpu_rows_call r = {.job = screen.exact_job,
                       .stage = screen.upper_stage,
                       .problem = *p,
                       .output = output,
                       .summaries = summaries,
                       .staged = screen.used_threads,
                       .screen = &screen};
    r.rows = gumbel_carve_array(&cursor, (size_t)p->batch, 1, sizeof *r.rows);
    r.job.problem = &r.problem;
    r.job.stage = &r.stage;
    cpu_draw_staged_rows(&r);
    return cpu_find_fallback_rows(&screen);
}

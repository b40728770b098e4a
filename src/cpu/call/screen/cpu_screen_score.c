/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores of the candidates of a draw by a screen: exact ones, and finer bounds in place of coarse
 * ones.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "cpu/cpu_policy.h"
#include "cpu/lanes/cpu_widen.h"

/* The value of a token, given its logit. */
static float transform_token(const cpu_job *job, int64_t b, int64_t token, float logit,
                             float inverse_temperature)
{
    const gumbel_problem *p = job->problem;
    float value, bias = 0.0f;
    if (p->bias.data)
        bias = cpu_widen_element(p->bias.data, p->bias.dtype, token - p->first_token);
    int low = (int)(token % GUMBEL_BLOCK);
    cpu_row_tile tile = {.b = b,
                         .from = &logit,
                         .dtype = GUMBEL_FLOAT32,
                         .bias = p->bias.data ? &bias : NULL,
                         .token = token - low,
                         .low = low,
                         .high = low + 1};
    cpu_transform_row_tile(job, &tile, inverse_temperature, &value);
    return value;
}

float cpu_compute_exact_value(const cpu_screen *screen, int32_t thread, int64_t b, int64_t token,
                              float inverse_temperature)
{
    const cpu_job *job = &screen->exact_job;
    const gumbel_problem *p = job->problem;
    cpu_scratch scratch = cpu_get_scratch(job, thread);
    const float *hidden = screen->hidden + b * cpu_get_packed_size(p->hidden_size);
    float logit = cpu_multiply_row(job, &scratch, token - p->first_token, hidden);
    return transform_token(job, b, token, logit, inverse_temperature);
}

/* The z of a token as the full pass computes it; -inf if truncation is known to remove it. */
static float score_exactly(const cpu_candidates *candidates, int32_t token)
{
    const cpu_screen *screen = candidates->context;
    const cpu_screen_row *row = &screen->rows[candidates->row];
    const gumbel_problem *p = screen->exact_job.problem;
    float value = cpu_compute_exact_value(screen, (int32_t)candidates->thread, candidates->row,
                                          token, cpu_find_staged_temperature(p, candidates->row));
    if (value < row->threshold || (value == row->threshold && token >= row->threshold_end))
        return -INFINITY;
    return value * cpu_find_staged_scale(p, candidates->row);
}

/* A finer upper bound of the z of a token; no row is truncated. */
static float refine_bound(const cpu_candidates *candidates, int32_t token, int32_t coarse_sum)
{
    const cpu_screen *screen = candidates->context;
    const int64_t b = candidates->row;
    return transform_token(&screen->bound_job, b, token,
                           cpu_refine_bound(screen, b, token, coarse_sum),
                           cpu_find_staged_temperature(screen->exact_job.problem, b));
}

static void prefetch_token(const cpu_candidates *candidates, int32_t token)
{
    const cpu_screen *screen = candidates->context;
    int64_t row = token - screen->exact_job.problem->first_token;
    const uint8_t *low = cpu_find_token(screen, row);
    for (int64_t at = 0; at < screen->offsets.columns / 2; at += 64)
        __builtin_prefetch(low + at);
}

void cpu_clear_candidates(cpu_screen *screen)
{
    const cpu_job *job = &screen->bound_job;
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    for (int64_t draw = 0; draw < p->batch * samples; draw++)
        atomic_store(&screen->best[draw], -INFINITY);
    for (int32_t thread = 0; thread < job->device->threads; thread++) {
        cpu_scratch scratch = cpu_get_scratch(job, thread);
        for (int64_t draw = 0; draw < p->batch * samples; draw++) {
            int64_t at = thread * p->batch * samples + draw;
            screen->candidates[at] = (cpu_candidates){
                .best = &scratch.summaries[draw],
                .best_score = &screen->best[draw],
                .sums = screen->coarse_sums + (thread * p->batch + draw / samples) * job->tile_size,
                .list = screen->list_storage + at * screen->list_max,
                .capacity = screen->list_max,
                .is_coarse = screen->is_coarse,
                .scored_limit =
                    (int32_t)(p->vocab / CPU_SCREEN_SCORED_FRACTION) + GUMBEL_SCREEN_LIST_MAX,
                .greedy = gumbel_problem_row(p, draw / samples).greedy,
                .context = screen,
                .row = draw / samples,
                .thread = thread,
                .score = score_exactly,
                .refine = screen->is_coarse ? refine_bound : NULL,
                .prefetch = prefetch_token};
        }
    }
}

/* Makes the best score of all threads that of each list of a draw. `thread` scores the rest. */
static void join_candidates(cpu_screen *screen, int64_t draw, int32_t thread)
{
    const gumbel_problem *p = screen->bound_job.problem;
    int64_t draws = p->batch * p->sampling.num_samples;
    cpu_candidates *first = &screen->candidates[draw];
    for (int32_t i = 0; i < screen->used_threads; i++) {
        cpu_candidates *own = &screen->candidates[i * draws + draw];
        gumbel_summary_offer(first->best, own->best->best_score, own->best->best_z,
                             own->best->best_id);
        own->best = first->best;
        own->thread = thread;
    }
}

void cpu_score_remaining_candidates(cpu_screen *screen, int64_t draw, int32_t thread)
{
    const gumbel_problem *p = screen->bound_job.problem;
    int64_t draws = p->batch * p->sampling.num_samples;
    cpu_candidates *first = &screen->candidates[draw];
    join_candidates(screen, draw, thread);
    for (;;) {
        cpu_candidates *from = NULL;
        int32_t at = -1;
        float min_upper = first->best->best_score;
        for (int32_t i = 0; i < screen->used_threads; i++) {
            cpu_candidates *own = &screen->candidates[i * draws + draw];
            int32_t place = cpu_find_highest_candidate(own, min_upper);
            if (place >= 0) {
                from = own;
                at = place;
                min_upper = own->list[place].upper;
            }
        }
        if (!from || cpu_has_given_up(from))
            return;
        cpu_score_candidate(from, cpu_take_candidate(from, at));
    }
}

/* Refines the coarse bounds in a thread's list of a draw that may still win. */
static void refine_claimed_lists(void *argument, int32_t thread)
{
    cpu_screen *screen = argument;
    const gumbel_problem *p = screen->bound_job.problem;
    const int64_t lists = screen->used_threads * p->batch * p->sampling.num_samples;
    (void)thread;
    for (int64_t i; cpu_claim_item(&screen->next, lists, &i);)
        if (!screen->rows[screen->candidates[i].row].is_fallback)
            cpu_filter_candidates(&screen->candidates[i], 1);
}

void cpu_refine_lists(cpu_screen *screen)
{
    const gumbel_problem *p = screen->bound_job.problem;
    for (int64_t draw = 0; draw < p->batch * p->sampling.num_samples; draw++)
        join_candidates(screen, draw, 0);
    atomic_store(&screen->next, 0);
    cpu_run_task(screen->bound_job.device, cpu_is_worth_threads(p), refine_claimed_lists, screen);
}

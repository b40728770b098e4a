/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw by a screen, from the call to its summaries: its memory, planes of the hidden states,
 * tiles of bounds, scores of the candidates, and the fallback rows.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------- memory ---- */

/* Candidates of the lists of one thread, in a call of at most this number of draws. */
static size_t count_listed(size_t draws)
{
    size_t few = draws < CPU_SCREEN_LONG_LIST_DRAWS ? draws : CPU_SCREEN_LONG_LIST_DRAWS;
    size_t longest = few * CPU_SCREEN_LONG_LISTS;
    return (longest > draws ? longest : draws) * GUMBEL_SCREEN_LIST_MAX;
}

static void carve_screen(cpu_screen *screen, gumbel_cursor *cursor, const cpu_device *cpu,
                         const gumbel_problem *p)
{
    size_t rows = (size_t)p->batch, threads = (size_t)cpu->threads;
    size_t draws = rows * (size_t)p->sampling.num_samples;
    size_t columns = (size_t)cpu_round_up(p->hidden_size, 64);
    screen->rows = gumbel_carve_array(cursor, rows, 1, sizeof *screen->rows);
    screen->hidden = gumbel_carve_array(cursor, rows, (size_t)cpu_get_packed_size(p->hidden_size),
                                        sizeof *screen->hidden);
    screen->wide = gumbel_carve_array(cursor, rows, columns, sizeof *screen->wide);
    screen->planes = gumbel_carve_array(cursor, 2 * rows, columns, sizeof *screen->planes);
    screen->start = gumbel_carve_array(cursor, 2 * rows, 1, sizeof *screen->start);
    screen->coarse_planes =
        gumbel_carve_array(cursor, rows, columns, sizeof *screen->coarse_planes);
    screen->coarse_start = gumbel_carve_array(cursor, rows, 1, sizeof *screen->coarse_start);
    screen->coarse_sums = gumbel_carve_array(cursor, threads * rows, (size_t)cpu->fused_tile,
                                             sizeof *screen->coarse_sums);
    screen->best = gumbel_carve_array(cursor, draws, 1, sizeof *screen->best);
    screen->coarse_tokens = gumbel_carve_array(cursor, threads, 1, sizeof *screen->coarse_tokens);
    screen->candidates = gumbel_carve_array(cursor, threads, draws, sizeof *screen->candidates);
    screen->list_storage =
        gumbel_carve_array(cursor, threads, count_listed(draws), sizeof *screen->list_storage);
    screen->sums = gumbel_carve_array(cursor, threads, CPU_SCREEN_SUMS, sizeof *screen->sums);
    if (p->features & GUMBEL_FEATURE_TRUNCATION) {
        cpu_carve_stage(&screen->upper_stage, cursor, p, cpu->threads, 1);
        cpu_carve_stage(&screen->lower_stage, cursor, p, cpu->threads, 1);
    }
}

/* Workspace bytes of a draw of at most `batch` rows and `samples` samples of the problem. */
static size_t count_screen_bytes(const cpu_device *cpu, const gumbel_problem *problem,
                                 int64_t batch, int64_t samples)
{
    cpu_screen screen;
    gumbel_cursor cursor = {0};
    gumbel_problem p = *problem;
    batch = batch < cpu->screen->batch_max ? batch : cpu->screen->batch_max;
    p.batch = p.batch < batch ? p.batch : batch;
    if (p.sampling.num_samples > samples)
        p.sampling.num_samples = (int32_t)samples;
    carve_screen(&screen, &cursor, cpu, &p);
    return cursor.used;
}

size_t cpu_count_screen_workspace(const cpu_device *cpu, const gumbel_problem *p)
{
    /* Only live rows are drawn: a large batch may have few enough of them. */
    int64_t batch = CPU_SCREEN_DRAWS_MAX / p->sampling.num_samples;
    int none = batch == 0 || p->batch == 0;
    return none ? 0 : count_screen_bytes(cpu, p, batch, INT32_MAX);
}

size_t cpu_count_screen_limit(const cpu_device *cpu, const gumbel_problem *p)
{
    return count_screen_bytes(cpu, p, INT64_MAX, CPU_SCREEN_DRAWS_MAX);
}

const cpu_screen_kernel *cpu_get_screen_kernel(const cpu_device *cpu, const gumbel_problem *p)
{
    gumbel_screen_header header;
    memcpy(&header, p->screen, sizeof header);
    return header.layout == GUMBEL_SCREEN_LAYOUT_NIBBLES ? cpu->nibbles : cpu->screen;
}

int cpu_reads_high_nibbles_first(const gumbel_problem *p)
{
    gumbel_screen_header header;
    memcpy(&header, p->screen, sizeof header);
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules = gumbel_problem_rules(p, b, gumbel_problem_row(p, b).greedy);
        if (gumbel_rules_truncate(&rules))
            return 0;
    }
    return header.certificate == GUMBEL_SCREEN_PROBABLE &&
           p->batch * p->sampling.num_samples <= (int64_t)header.coarse_draws;
}

int cpu_is_screen_faster(const cpu_device *cpu, const gumbel_problem *p,
                         char reason[CPU_SCREEN_REASON_BYTES])
{
    const int64_t rows_max = cpu->screen->batch_max;
    if (p->batch <= rows_max && p->batch * p->sampling.num_samples <= CPU_SCREEN_DRAWS_MAX)
        return 1;
    if (reason && p->batch > rows_max)
        snprintf(reason, CPU_SCREEN_REASON_BYTES, "more than %d rows are faster by the full pass",
                 (int)rows_max);
    else if (reason)
        snprintf(reason, CPU_SCREEN_REASON_BYTES,
                 "more than %d draws (rows times samples) are faster by the full pass",
                 CPU_SCREEN_DRAWS_MAX);
    return 0;
}

/* ----------------------------------------------------------------------------- the call ---- */

/* Whether an upper bound of row b is NaN or +inf, so that the logit may also be. */
static int has_flags(const cpu_screen *screen, int64_t b)
{
    int64_t draw = b * screen->bound_job.problem->sampling.num_samples;
    uint32_t flags = 0;
    for (int32_t i = 0; i < screen->used_threads; i++)
        flags |= cpu_get_scratch(&screen->bound_job, i).summaries[draw].flags;
    return flags != 0;
}

static void finish_row(cpu_screen *screen, int64_t b, int32_t thread)
{
    cpu_screen_row *row = &screen->rows[b];
    const gumbel_problem *p = screen->bound_job.problem;
    int32_t samples = p->sampling.num_samples;
    int32_t drawn = gumbel_problem_row(p, b).greedy ? 1 : samples;
    if (screen->stages_survivors)
        drawn = 0;
    if (has_flags(screen, b) || (screen->stages_survivors && !row->is_truncated))
        cpu_mark_fallback_row(screen, b);
    for (int32_t s = 0; s < drawn && !row->is_fallback; s++)
        cpu_score_remaining_candidates(screen, b * samples + s, thread);
    for (int32_t i = 0; i < screen->used_threads; i++)
        cpu_is_fallback_row(&screen->bound_job, i, b);
    if (row->is_truncated && !row->is_fallback && !screen->truncate_row(screen, b, thread))
        cpu_mark_fallback_row(screen, b);
}

static void finish_claimed_rows(void *argument, int32_t thread)
{
    cpu_screen *screen = argument;
    for (int64_t b; cpu_claim_item(&screen->next, screen->bound_job.problem->batch, &b);)
        finish_row(screen, b, thread);
}

static void find_screen_arrays(cpu_screen *screen, const gumbel_problem *p)
{
    const unsigned char *base = p->screen;
    int known = gumbel_screen_find_offsets(p->vocab, p->hidden_size, &screen->offsets);
    GUMBEL_ASSERT(known && base);
    (void)known;
    memcpy(&screen->header, base, sizeof screen->header);
    screen->block_bounds = (const void *)(base + screen->offsets.bounds);
    screen->steps = (const void *)(base + screen->offsets.steps);
    screen->dither = (const void *)(base + screen->offsets.dither);
    screen->copy = base + screen->offsets.copy;
    screen->kernel = cpu_get_screen_kernel(screen->exact_job.device, p);
    if (screen->header.layout == GUMBEL_SCREEN_LAYOUT_NIBBLES)
        screen->low_copy = screen->copy + screen->offsets.blocks * 32 * screen->offsets.columns;
}

static void clear_rows(cpu_screen *screen)
{
    const gumbel_problem *p = screen->exact_job.problem;
    for (int64_t b = 0; b < p->batch; b++) {
        cpu_screen_row *row = &screen->rows[b];
        gumbel_rules rules = gumbel_problem_rules(p, b, gumbel_problem_row(p, b).greedy);
        atomic_store_explicit(&row->is_fallback, 0, memory_order_relaxed);
        row->is_truncated = gumbel_rules_truncate(&rules);
        row->threshold = -INFINITY;
        row->threshold_end = INT64_MAX;
    }
}

/* Returns the workspace bytes that are used. */
static size_t prepare_screen(cpu_screen *screen, cpu_device *cpu, const gumbel_problem *p,
                             void *workspace)
{
    size_t plain =
        cpu_count_plain_workspace(&cpu->base, p->batch, p->hidden_size, p->sampling.num_samples);
    gumbel_cursor cursor = {workspace, plain + cpu_count_edits_workspace(p)};
    carve_screen(screen, &cursor, cpu, p);
    cpu_prepare_job(&screen->exact_job, cpu, p, workspace);
    find_screen_arrays(screen, p);
    screen->bound_job = screen->exact_job;
    screen->bound_job.screen = screen;
    if (p->soft_cap > 0.0f) {
        screen->uncapped = *p;
        screen->uncapped.scale = 1.0f;
        screen->uncapped.soft_cap = 0.0f;
        screen->uncapped.bias = (gumbel_tensor){0};
        screen->bound_job.problem = &screen->uncapped;
        screen->soft_cap_error = p->soft_cap * 0x1p-20f;
    }
    screen->upper_job = screen->lower_job = screen->bound_job;
    screen->upper_job.stage = &screen->upper_stage;
    screen->lower_job.stage = &screen->lower_stage;
    clear_rows(screen);
    screen->is_coarse = cpu_reads_high_nibbles_first(p);
    screen->low_nibbles = gumbel_screen_bound_low_nibbles(p->hidden_size);
    screen->list_max = screen->header.list_max;
    if (screen->is_coarse && p->batch * p->sampling.num_samples <= CPU_SCREEN_LONG_LIST_DRAWS)
        screen->list_max *= CPU_SCREEN_LONG_LISTS;
    memset(screen->coarse_tokens, 0, (size_t)cpu->threads * sizeof *screen->coarse_tokens);
    cpu_clear_candidates(screen);
    return cursor.used;
}

cpu_row_range cpu_find_fallback_rows(const cpu_screen *screen)
{
    cpu_row_range fallback = {0, screen->exact_job.problem->batch};
    while (fallback.first < fallback.end && !screen->rows[fallback.first].is_fallback)
        fallback.first++;
    while (fallback.end > fallback.first && !screen->rows[fallback.end - 1].is_fallback)
        fallback.end--;
    return fallback;
}

size_t cpu_run_screen(cpu_screen *screen, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    GUMBEL_ASSERT(p->batch > 0 && p->hidden_size > 0 && !p->with_mass && screen->truncate_row);
    const size_t used = prepare_screen(screen, cpu, p, workspace);
    cpu_split_hidden_rows(screen);
    screen->used_threads = cpu_run_job(&screen->bound_job);
    if (screen->is_coarse)
        cpu_refine_lists(screen);
    atomic_store(&screen->next, 0);
    cpu_run_task(cpu, p->batch > 1 && cpu_is_worth_threads(p), finish_claimed_rows, screen);
    return used;
}

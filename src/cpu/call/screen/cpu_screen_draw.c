/* SPDX-License-Identifier: Apache-2.0
 *
 * A draw by a screen, from its call to its summaries: hidden states in planes, tiles of ends, exact
 * scores of what may win, and the full pass of rows that are better served by it.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/lanes/cpu_widen.h"

static void carve(cpu_screen *screen, gumbel_cursor *cursor, const cpu_device *cpu,
                  const gumbel_problem *p)
{
    size_t rows = (size_t)p->batch, threads = (size_t)cpu->threads;
    size_t draws = rows * (size_t)p->sampling.num_samples;
    size_t columns = (size_t)cpu_rounded_up(p->hidden_size, 64);
    screen->rows = gumbel_carve_array(cursor, rows, 1, sizeof *screen->rows);
    screen->hidden = gumbel_carve_array(
        cursor, rows, (size_t)cpu_rounded_up(p->hidden_size, CPU_CHUNK), sizeof *screen->hidden);
    screen->wide = gumbel_carve_array(cursor, rows, columns, sizeof *screen->wide);
    screen->planes = gumbel_carve_array(cursor, 2 * rows, columns, sizeof *screen->planes);
    screen->start = gumbel_carve_array(cursor, 2 * rows, 1, sizeof *screen->start);
    screen->lists = gumbel_carve_array(cursor, threads, draws, sizeof *screen->lists);
    screen->candidates = gumbel_carve_array(cursor, threads * draws, GUMBEL_SCREEN_LIST_MOST,
                                            sizeof *screen->candidates);
    screen->sums = gumbel_carve_array(cursor, threads, CPU_SCREEN_SUMS, sizeof *screen->sums);
    if (p->request & GUMBEL_REQUEST_TRUNCATION) {
        cpu_stage_carve(&screen->uppers, cursor, p, cpu->threads, 1);
        cpu_stage_carve(&screen->lowers, cursor, p, cpu->threads, 1);
    }
}

static size_t count_bytes(const cpu_device *cpu, const gumbel_problem *p)
{
    cpu_screen screen;
    gumbel_cursor cursor = {0};
    carve(&screen, &cursor, cpu, p);
    return cursor.used;
}

size_t cpu_screen_size(const cpu_device *cpu, const gumbel_problem *problem)
{
    /* A call draws its live rows alone: a large batch may have few enough of them for a screen. */
    const int64_t most = CPU_SCREEN_DRAWS_MOST / problem->sampling.num_samples;
    gumbel_problem p = *problem;
    if (p.batch > most)
        p.batch = most;
    if (p.batch > cpu->screen->batch_most)
        p.batch = cpu->screen->batch_most;
    return p.batch > 0 ? count_bytes(cpu, &p) : 0;
}

size_t cpu_screen_most(const cpu_device *cpu, const gumbel_problem *problem)
{
    /* Rows and samples that are as many as a call may have. */
    gumbel_problem p = *problem;
    if (p.batch > cpu->screen->batch_most)
        p.batch = cpu->screen->batch_most;
    if (p.sampling.num_samples > CPU_SCREEN_DRAWS_MOST)
        p.sampling.num_samples = CPU_SCREEN_DRAWS_MOST;
    return count_bytes(cpu, &p);
}

const char *cpu_screen_refusal(const cpu_device *cpu, const gumbel_problem *p)
{
    if (p->batch > cpu->screen->batch_most)
        return "a batch of so many rows is faster by the full pass";
    if (p->batch * p->sampling.num_samples > CPU_SCREEN_DRAWS_MOST)
        return "so many draws are faster by the full pass";
    return NULL;
}

/* ------------------------------------------------------------------------- exact scores ---- */

float cpu_screen_value(const cpu_screen *screen, int32_t thread, int64_t b, int64_t token,
                       float inverse_temperature)
{
    const gumbel_problem *p = screen->exact.problem;
    cpu_slot slot = cpu_job_slot(&screen->exact, thread);
    int64_t at = token - p->first_token, row = cpu_rounded_up(p->hidden_size, CPU_CHUNK);
    int64_t stride = p->weight.stride * cpu_element_size(p->weight.dtype);
    float logit[2 * CPU_LANES], value, bias = 0.0f;
    GUMBEL_ASSERT(at >= 0 && at < p->vocab);
    cpu_product product = {.weight = (const char *)p->weight.data + at * stride,
                           .dtype = p->weight.dtype,
                           .stride_bytes = stride,
                           .hidden_size = p->hidden_size,
                           .count = 1,
                           .panels = screen->hidden + b * row,
                           .batch = 1,
                           .lanes = slot.lanes,
                           .out = logit,
                           .out_stride = 2 * CPU_LANES};
    screen->exact.device->kernels->product(&product);
    if (p->bias.data)
        bias = cpu_widen_element(p->bias.data, p->bias.dtype, at);
    int low = (int)(token % GUMBEL_BLOCK);
    cpu_piece piece = {.b = b,
                       .from = logit,
                       .dtype = GUMBEL_FLOAT32,
                       .bias = p->bias.data ? &bias : NULL,
                       .token = token - low,
                       .low = low,
                       .high = low + 1};
    cpu_transform_piece(&screen->exact, &piece, inverse_temperature, &value);
    return value;
}

/* z of a token, as the full pass has it; -inf where it is known to be removed. */
static float exact_score(const cpu_candidates *list, int32_t token)
{
    const cpu_screen *screen = list->context;
    const cpu_screen_row *known = &screen->rows[list->row];
    const gumbel_problem *p = screen->exact.problem;
    float inverse_temperature = cpu_stage_temperature(p, list->row);
    float value =
        cpu_screen_value(screen, (int32_t)list->thread, list->row, token, inverse_temperature);
    if (value < known->bar || (value == known->bar && token >= known->bar_end))
        return -INFINITY;
    return value * cpu_stage_scale(p, list->row);
}

static void clear_lists(cpu_screen *screen)
{
    const cpu_job *job = &screen->ends;
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    for (int32_t thread = 0; thread < job->device->threads; thread++) {
        cpu_slot slot = cpu_job_slot(job, thread);
        for (int64_t draw = 0; draw < p->batch * samples; draw++) {
            int64_t at = thread * p->batch * samples + draw;
            screen->lists[at] =
                (cpu_candidates){.best = &slot.summaries[draw],
                                 .list = screen->candidates + at * GUMBEL_SCREEN_LIST_MOST,
                                 .most = screen->header.list_most,
                                 .scored_most = (int32_t)(p->vocab / CPU_SCREEN_SCORED_SHARE) +
                                                GUMBEL_SCREEN_LIST_MOST,
                                 .greedy = gumbel_problem_row(p, draw / samples).greedy,
                                 .context = screen,
                                 .row = draw / samples,
                                 .thread = thread,
                                 .score = exact_score};
        }
    }
}

/* ------------------------------------------------------------------------------- settling ---- */

void cpu_screen_settle(cpu_screen *screen, int64_t draw, int32_t thread)
{
    int64_t draws = screen->ends.problem->batch * screen->ends.problem->sampling.num_samples;
    cpu_candidates *first = &screen->lists[draw];
    for (int32_t i = 0; i < screen->used; i++) {
        cpu_candidates *own = &screen->lists[i * draws + draw];
        gumbel_summary_offer(first->best, own->best->best_score, own->best->best_z,
                             own->best->best_id);
        own->best = first->best;
        own->thread = thread;
    }
    for (;;) {
        cpu_candidates *from = NULL;
        int32_t at = -1;
        float least = first->best->best_score;
        for (int32_t i = 0; i < screen->used; i++) {
            cpu_candidates *own = &screen->lists[i * draws + draw];
            int32_t place = cpu_candidates_highest(own, least);
            if (place >= 0) {
                from = own;
                at = place;
                least = own->list[place].upper;
            }
        }
        if (!from || cpu_candidates_given_up(from))
            return;
        cpu_candidates_score(from, cpu_candidates_take(from, at));
    }
}

/* Whether an end of row b is NaN or +inf, which is that of a logit that may be. */
static int is_flagged(const cpu_screen *screen, int64_t b)
{
    uint32_t flags = 0;
    for (int32_t i = 0; i < screen->used; i++)
        flags |= cpu_job_slot(&screen->ends, i)
                     .summaries[b * screen->ends.problem->sampling.num_samples]
                     .flags;
    return flags != 0;
}

static void settle_row(cpu_screen *screen, int64_t b, int32_t thread)
{
    cpu_screen_row *row = &screen->rows[b];
    const gumbel_problem *p = screen->ends.problem;
    int32_t samples = p->sampling.num_samples;
    int32_t drawn = gumbel_problem_row(p, b).greedy ? 1 : samples;
    if (is_flagged(screen, b))
        atomic_store_explicit(&row->full, 1, memory_order_relaxed);
    for (int32_t s = 0; s < drawn && !row->full; s++)
        cpu_screen_settle(screen, b * samples + s, thread);
    for (int32_t i = 0; i < screen->used; i++)
        cpu_screen_left(&screen->ends, i, b);
    if (row->cut && !row->full && !screen->cut(screen, b, thread))
        atomic_store_explicit(&row->full, 1, memory_order_relaxed);
}

static void settle_share(void *argument, int32_t index)
{
    cpu_screen *screen = argument;
    for (int64_t b; (b = atomic_fetch_add_explicit(&screen->next, 1, memory_order_relaxed)) <
                    screen->ends.problem->batch;)
        settle_row(screen, b, index);
}

/* ------------------------------------------------------------------------------- the call ---- */

/* The parts of the caller's screen. */
static void open_screen(cpu_screen *screen, const gumbel_problem *p)
{
    const unsigned char *base = p->screen;
    int known = gumbel_screen_find_parts(p->vocab, p->hidden_size, &screen->parts);
    GUMBEL_ASSERT(known && base);
    (void)known;
    memcpy(&screen->header, base, sizeof screen->header);
    screen->bounds = (const void *)(base + screen->parts.bounds);
    screen->steps = (const void *)(base + screen->parts.steps);
    screen->copy = base + screen->parts.copy;
}

/* What is known of the rows before the draw. */
static void clear_rows(cpu_screen *screen)
{
    const gumbel_problem *p = screen->exact.problem;
    for (int64_t b = 0; b < p->batch; b++) {
        cpu_screen_row *row = &screen->rows[b];
        gumbel_rules rules = gumbel_problem_rules(p, b, gumbel_problem_row(p, b).greedy);
        atomic_store_explicit(&row->full, 0, memory_order_relaxed);
        row->cut = gumbel_rules_truncate(&rules);
        row->bar = -INFINITY;
        row->bar_end = INT64_MAX;
    }
}

static void prepare(cpu_screen *screen, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    size_t plain =
        cpu_workspace_size(&cpu->base, p->batch, p->hidden_size, p->sampling.num_samples);
    gumbel_cursor cursor = {workspace, plain + cpu_edits_size(p)};
    carve(screen, &cursor, cpu, p);
    open_screen(screen, p);
    screen->product = cpu->screen;
    cpu_job_prepare(&screen->exact, cpu, p, workspace);
    screen->ends = screen->exact;
    screen->ends.screen = screen;
    if (p->soft_cap > 0.0f) {
        screen->capped = *p;
        screen->capped.scale = 1.0f;
        screen->capped.soft_cap = 0.0f;
        screen->capped.bias = (gumbel_tensor){0};
        screen->ends.problem = &screen->capped;
        screen->lift = p->soft_cap * 0x1p-20f;
    }
    screen->upper = screen->lower = screen->ends;
    screen->upper.stage = &screen->uppers;
    screen->lower.stage = &screen->lowers;
    clear_rows(screen);
    clear_lists(screen);
}

/* The rows from the first that is left to the full pass to the last. */
static cpu_row_range rows_left(const cpu_screen *screen)
{
    cpu_row_range left = {0, screen->exact.problem->batch};
    while (left.first < left.end && !screen->rows[left.first].full)
        left.first++;
    while (left.end > left.first && !screen->rows[left.end - 1].full)
        left.end--;
    return left;
}

cpu_row_range cpu_screen_draw(cpu_device *cpu, const gumbel_problem *p, cpu_screen_cut *cut,
                              gumbel_summary *summaries, void *workspace)
{
    cpu_screen screen = {.cut = cut};
    GUMBEL_ASSERT(p->batch > 0 && p->hidden_size > 0 && !p->with_mass);
    prepare(&screen, cpu, p, workspace);
    cpu_screen_split_rows(&screen);
    screen.used = cpu_job_run(&screen.ends);
    atomic_store(&screen.next, 0);
    cpu_run_task(cpu, p->batch > 1 && cpu_worth_threads(p), settle_share, &screen);
    cpu_job_merge(&screen.ends, screen.used, summaries);
    return rows_left(&screen);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_rows.h"

#include "core/fail.h"
#include "core/output.h"
#include "cpu/call/screen/cpu_screen.h"
#include "cpu/cpu_policy.h"
#include "cpu/rows/cpu_outputs.h"
#include "maths/rounding.h"

static void carve_call(cpu_rows_call *r, gumbel_cursor *cursor, const gumbel_problem *p,
                       int32_t threads)
{
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples;
    int raw = (p->features & (GUMBEL_FEATURE_RAW | GUMBEL_FEATURE_LOGITS)) != 0;
    size_t packed = (size_t)cpu_get_packed_size(p->hidden_size);
    GUMBEL_ASSERT(p->batch > 0 && threads >= 1);
    r->rows = gumbel_carve_array(cursor, batch, 1, sizeof *r->rows);
    r->summaries = gumbel_carve_array(cursor, batch, samples, sizeof *r->summaries);
    r->hidden = gumbel_carve_array(cursor, raw ? (size_t)threads : 0, packed, sizeof *r->hidden);
    cpu_carve_stage(&r->stage, cursor, p, threads, r->stage.values == NULL);
}

size_t cpu_count_rows_workspace(const cpu_device *cpu, const gumbel_problem *p)
{
    cpu_rows_call r = {0};
    gumbel_cursor cursor = {0};
    carve_call(&r, &cursor, p, cpu->threads);
    return cursor.used;
}

/* ------------------------------------------------------------------------------- phases ---- */

typedef struct rows_phase {
    cpu_rows_call *call;
    void (*begin)(cpu_rows_call *call, int32_t thread); /* of each thread; may be NULL */
    void (*run_item)(cpu_rows_call *call, int32_t thread, int64_t item);
    int64_t items;
    _Atomic int64_t next;
} rows_phase;

static void run_claimed_items(void *argument, int32_t thread)
{
    rows_phase *phase = argument;
    if (phase->begin)
        phase->begin(phase->call, thread);
    for (int64_t item; cpu_claim_item(&phase->next, phase->items, &item);)
        phase->run_item(phase->call, thread, item);
}

/* Runs a phase; returns the number of threads used. */
static int32_t run_phase(cpu_rows_call *r, int64_t items,
                         void (*run_item)(cpu_rows_call *, int32_t, int64_t),
                         void (*begin)(cpu_rows_call *, int32_t))
{
    rows_phase phase = {.call = r, .begin = begin, .run_item = run_item, .items = items};
    int worth_threads = items > 1 && cpu_is_worth_threads(&r->problem);
    return cpu_run_task(r->job.device, worth_threads, run_claimed_items, &phase);
}

static int is_fallback_row(const cpu_rows_call *r, int64_t b)
{
    return r->screen && cpu_is_marked_fallback_row(r->screen, b);
}

static void truncate_item(cpu_rows_call *r, int32_t thread, int64_t b)
{
    (void)thread;
    if (!is_fallback_row(r, b))
        cpu_truncate_row(r, b);
}

/* Stages every row; carves the arrays of truncation if `truncates`. */
static void stage_rows(cpu_rows_call *r, cpu_device *cpu, const gumbel_problem *p, int truncates,
                       void *workspace)
{
    size_t plain =
        cpu_count_plain_workspace(&cpu->base, p->batch, p->hidden_size, p->sampling.num_samples);
    gumbel_cursor cursor = {workspace, plain + cpu_count_edits_workspace(p)};
    GUMBEL_ASSERT(plain != SIZE_MAX);
    r->problem = *p;
    r->job.stage = &r->stage;
    if (truncates)
        carve_call(r, &cursor, p, cpu->threads);
    GUMBEL_ASSERT(!r->rows || (r->summaries && r->stage.block_maxima));
    GUMBEL_ASSERT(r->stage.values || !r->rows);
    GUMBEL_ASSERT(r->stage.values || r->stage.rounded.data);
    if (r->stage.raw)
        gumbel_summaries_clear(r->stage.raw, cpu->threads * p->batch);
    cpu_prepare_job(&r->job, cpu, &r->problem, workspace);
    cpu_choose_staged_rows(&r->job);
    r->staged = cpu_run_job(&r->job);
    GUMBEL_ASSERT(r->staged >= 1 && r->staged <= cpu->threads);
}

/* -------------------------------------------------------------------------------- draws ---- */

static void clear_thread_summaries(cpu_rows_call *r, int32_t thread)
{
    cpu_scratch scratch = cpu_get_scratch(&r->job, thread);
    gumbel_summaries_clear(scratch.summaries, r->problem.batch * r->problem.sampling.num_samples);
}

/* Draws from consecutive blocks of row b; z is -inf for removed tokens. */
static void draw_blocks(const cpu_rows_call *r, const cpu_scratch *scratch, int64_t b,
                        int64_t block, int64_t count, const float *z)
{
    const gumbel_problem *p = &r->problem;
    gumbel_row row = gumbel_problem_row(p, b);
    int64_t first_draw = b * p->sampling.num_samples;
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK;
    cpu_token_range range = cpu_find_counted_range(p, token, count * GUMBEL_BLOCK);
    GUMBEL_ASSERT(b >= 0 && b < p->batch && block >= 0 && block + count <= r->stage.blocks);
    cpu_draw draw = cpu_make_draw(p, &row, first_draw, token, range.low, range.high);
    if (p->sampling.given.data)
        draw.num_samples = 0;
    draw.with_mass = p->with_mass;
    draw.summaries = scratch->summaries + first_draw;
    r->job.device->kernels->draw_tokens(z, &draw);
}

/* Draws from `count` blocks of row b, from `block` on, all of which may survive. */
static void draw_survivors(const cpu_rows_call *r, const cpu_scratch *scratch, int64_t b,
                           int64_t block, int64_t count)
{
    float z[CPU_DRAW_BLOCKS * GUMBEL_BLOCK];
    for (int64_t i = 0; i < count; i++)
        cpu_load_kept_block(r, b, block + i, z + i * GUMBEL_BLOCK);
    draw_blocks(r, scratch, b, block, count, z);
}

static int64_t count_claims_of_row(const cpu_rows_call *r)
{
    return (r->stage.blocks + CPU_DRAW_BLOCKS - 1) / CPU_DRAW_BLOCKS;
}

static void draw_item(cpu_rows_call *r, int32_t thread, int64_t item)
{
    cpu_scratch scratch = cpu_get_scratch(&r->job, thread);
    int64_t claims = count_claims_of_row(r);
    int64_t b = item / claims, block = item % claims * CPU_DRAW_BLOCKS;
    GUMBEL_ASSERT(b < r->problem.batch && block < r->stage.blocks);
    if (is_fallback_row(r, b) || r->rows[b].flags || r->rows[b].empty)
        return;
    /* Survivors that follow each other are drawn together. */
    uint64_t survivors = cpu_find_survivors(r, b, block);
    while (survivors != 0) {
        const int first = __builtin_ctzll(survivors);
        const uint64_t gaps = ~(survivors >> first);
        const int count = gaps == 0 ? GUMBEL_BLOCK : __builtin_ctzll(gaps);
        draw_survivors(r, &scratch, b, block + first, count);
        survivors =
            first + count < GUMBEL_BLOCK ? survivors >> (first + count) << (first + count) : 0;
    }
}

static void write_item(cpu_rows_call *r, int32_t thread, int64_t b)
{
    if (!is_fallback_row(r, b))
        cpu_write_row_outputs(r, thread, b);
}

void cpu_draw_staged_rows(cpu_rows_call *r)
{
    const gumbel_output *output = r->output;
    const int64_t batch = r->problem.batch;
    run_phase(r, batch, truncate_item, NULL);
    r->problem.with_mass = output->logprobs_of == GUMBEL_PROCESSED &&
                           (gumbel_output_has_lse(output) || output->top_logprobs);
    int32_t used = run_phase(r, batch * count_claims_of_row(r), draw_item, clear_thread_summaries);
    cpu_merge_job(&r->job, used, r->summaries);
    run_phase(r, batch, write_item, NULL);
}

void cpu_sample_rows(cpu_device *cpu, const gumbel_problem *p, const gumbel_output *output,
                     void *workspace)
{
    cpu_rows_call r = {.output = output};
    stage_rows(&r, cpu, p, 1, workspace);
    cpu_draw_staged_rows(&r);
}

/* ----------------------------------------------------------------------- processed rows ---- */

/* Removes truncated tokens of row b, and fills the tokens that do not count. */
static void process_item(cpu_rows_call *r, int32_t thread, int64_t b)
{
    (void)thread;
    const gumbel_problem *p = &r->problem;
    const cpu_row_truncation none = {.flags = r->rows ? 0 : cpu_get_row_flags(r, b),
                                     .scale = 1.0f,
                                     .bound = -FLT_MAX,
                                     .tied_end = INT64_MAX};
    const cpu_row_truncation *own = r->rows ? &r->rows[b] : &none;
    const gumbel_dtype dtype = r->processed.dtype;
    const int size = cpu_get_element_size(dtype);
    char *row = (char *)r->processed.data + b * r->processed.stride * size;
    float z[GUMBEL_BLOCK];
    int64_t count = p->end_token > p->first_token ? p->end_token - p->first_token : 0;
    int changes = own->bound > -FLT_MAX || own->tied_end < INT64_MAX || own->scale != 1.0f ||
                  p->features & GUMBEL_FEATURE_PROGRAM || (r->rows && dtype != GUMBEL_FLOAT32);
    count = own->flags || own->empty ? 0 : count;
    for (int64_t block = 0; block < r->stage.blocks && count > 0 && changes; block++) {
        int64_t token = r->job.first_tile + block * GUMBEL_BLOCK;
        cpu_token_range range = cpu_find_counted_range(p, token, GUMBEL_BLOCK);
        GUMBEL_ASSERT(range.low < range.high);
        cpu_load_kept_block(r, b, block, z);
        r->job.device->kernels->store_values(z + range.low, range.high - range.low, dtype,
                                             row + (token - p->first_token + range.low) * size);
    }
    for (int64_t i = count; i < p->vocab; i++)
        gumbel_store_element(row, dtype, i, own->flags ? NAN : -INFINITY);
}

/* Stages the rows in the caller's memory; rows of 16 bits that are truncated in the workspace. */
static void stage_rows_into(cpu_rows_call *r, cpu_device *cpu, const gumbel_problem *p,
                            int truncates, gumbel_row_array rows, void *workspace)
{
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(rows.data && rows.stride >= p->vocab);
    *r = (cpu_rows_call){.processed = rows};
    if (rows.dtype == GUMBEL_FLOAT32)
        r->stage = (cpu_stage){.values = rows.data, .stride = rows.stride};
    else if (!truncates)
        r->stage.rounded = rows;
    stage_rows(r, cpu, p, truncates, workspace);
}

void cpu_process_rows(cpu_device *cpu, const gumbel_problem *p, int truncates,
                      gumbel_row_array processed, void *workspace)
{
    cpu_rows_call r;
    stage_rows_into(&r, cpu, p, truncates, processed, workspace);
    if (r.rows)
        run_phase(&r, p->batch, truncate_item, NULL);
    run_phase(&r, p->batch, process_item, NULL);
}

void cpu_store_rows(cpu_device *cpu, const gumbel_problem *p, float *rows, int64_t stride,
                    void *workspace)
{
    cpu_rows_call r;
    stage_rows_into(&r, cpu, p, 0, (gumbel_row_array){rows, GUMBEL_FLOAT32, stride}, workspace);
}

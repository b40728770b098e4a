/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_request.h"

#include "core/fail.h"
#include "core/output.h"
#include "cpu/call/cpu_edits.h"
#include "cpu/call/screen/cpu_screen.h"
#include "cpu/cpu_policy.h"
#include "cpu/rows/cpu_screen_judge.h"

/* The ways that the CPU has, of which the first needs a screen. */
static const gumbel_rung screen_rung = {
    .name = "screen",
    .method = "bytes bound every logit, and what may win is scored exactly",
    .supports = GUMBEL_REQUEST_TRANSFORMS | GUMBEL_CAPABILITIES_OF_TRUNCATION |
                GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE |
                GUMBEL_CAPABILITY_SOFT_CAP | GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS |
                GUMBEL_CAPABILITY_EMPTY,
};
static const gumbel_rung tiles_rung = {
    .name = "tiles",
    .method = "each tile is drawn from while it is in the caches",
    .supports = GUMBEL_REQUEST_TRANSFORMS | GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_MASS |
                GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE | GUMBEL_CAPABILITY_SOFT_CAP |
                GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_PART |
                GUMBEL_CAPABILITY_EMPTY | GUMBEL_CAPABILITY_PRODUCT,
};
static const gumbel_rung rows_rung = {
    .name = "rows",
    .method = "rows are left whole, cut, and drawn from block by block",
    .supports = GUMBEL_CAPABILITY_END - 1,
};

/* Chooses the rungs of a call. `rows` is that of the full pass; `product` is the screen's if it may
 * serve the call, which also depends on the number of live rows. */
static void choose_rungs(gumbel_plan *plan, const gumbel_problem *p, uint64_t purpose)
{
    const uint64_t required = gumbel_required_capabilities(p);
    *plan = (gumbel_plan){.required = required | purpose};
    plan->rows = gumbel_rung_supports(&tiles_rung, required) ? &tiles_rung : &rows_rung;
    if (p->screen && gumbel_rung_supports(&screen_rung, required | purpose))
        plan->product = &screen_rung;
}

/* Whether the screen serves a call of these rows. */
static int is_screened(const cpu_device *cpu, const gumbel_problem *p, const gumbel_plan *plan)
{
    return plan->product && !cpu_screen_refusal(cpu, p);
}

/* Everything that such a request takes behind the plain workspace and its edits. */
static void carve(cpu_request *r, gumbel_cursor *cursor, const gumbel_problem *p, int32_t threads)
{
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples;
    int raw = (p->request & (GUMBEL_REQUEST_RAW | GUMBEL_REQUEST_LOGITS)) != 0;
    size_t row = (size_t)cpu_rounded_up(p->hidden_size, CPU_CHUNK);
    GUMBEL_ASSERT(p->batch > 0 && threads >= 1);
    r->rows = gumbel_carve_array(cursor, batch, 1, sizeof *r->rows);
    r->summaries = gumbel_carve_array(cursor, batch, samples, sizeof *r->summaries);
    r->hidden = gumbel_carve_array(cursor, raw ? (size_t)threads : 0, row, sizeof *r->hidden);
    cpu_stage_carve(&r->stage, cursor, p, threads, r->processed == NULL);
}

/* The summaries that a call without such a request is read out of. */
static gumbel_summary *carve_summaries(gumbel_cursor *cursor, int64_t batch, int32_t num_samples)
{
    return gumbel_carve_array(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
}

/* `cursor` moved on by bytes that another routine has counted. */
static void count(gumbel_cursor *cursor, size_t bytes)
{
    gumbel_carve_array(cursor, bytes == SIZE_MAX ? 2 : 1, bytes, 1);
}

/* Bytes of a call without what its request adds. */
static size_t plain_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                         int32_t num_samples)
{
    gumbel_cursor cursor = {0};
    carve_summaries(&cursor, batch, num_samples);
    count(&cursor, cpu_workspace_size(device, batch, hidden_size, num_samples));
    return cursor.used;
}

gumbel_status cpu_plan_call(const gumbel_device *device, const gumbel_problem *problem,
                            uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    (void)error;
    cpu_request r = {0};
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {NULL, plain_size(device, problem->batch, problem->hidden_size,
                                             problem->sampling.num_samples)};
    count(&cursor, cpu_edits_size(problem));
    gumbel_cursor screen = cursor;
    choose_rungs(plan, problem, purpose);
    if (cursor.used != SIZE_MAX && plan->rows == &rows_rung)
        carve(&r, &cursor, problem, cpu->threads);
    /* Rows that a screen leaves are drawn when it is done. */
    if (screen.used != SIZE_MAX && plan->product)
        count(&screen, cpu_screen_size(cpu, problem));
    plan->workspace_bytes = cursor.used > screen.used ? cursor.used : screen.used;
    return GUMBEL_OK;
}

size_t cpu_most(const gumbel_device *device, const gumbel_limits *limits)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_plan plan;
    size_t screen = 0;
    gumbel_problem p = {.batch = limits->batch,
                        .hidden_size = limits->hidden_size,
                        .sampling = {.num_samples = limits->num_samples}};
    if (limits->requests) {
        /* A first token that is no multiple of a block makes one block more. */
        p.first_token = GUMBEL_BLOCK - 1;
        p.vocab = limits->vocab_size;
        p.end_token = p.first_token + p.vocab;
        p.request = GUMBEL_REQUEST_END - 1;
    }
    cpu_plan_call(device, &p, 0, &plan, NULL);
    size_t bytes = plan.workspace_bytes;
    if (limits->screens && limits->hidden_size > 0)
        screen = cpu_screen_most(cpu, &p);
    return bytes > SIZE_MAX - screen ? SIZE_MAX : bytes + screen;
}

/* One thread's share of a phase. */
static void run_share(void *argument, int32_t thread)
{
    cpu_request *r = argument;
    if (r->begin)
        r->begin(r, thread);
    for (int64_t item;
         (item = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed)) < r->items;)
        r->run_item(r, thread, item);
}

/* Run a phase of `items`; the threads used. */
static int32_t run_phase(cpu_request *r, int64_t items,
                         void (*run_item)(cpu_request *, int32_t, int64_t),
                         void (*begin)(cpu_request *, int32_t))
{
    r->items = items;
    r->run_item = run_item;
    r->begin = begin;
    atomic_store(&r->next, 0);
    return cpu_run_task(r->job.device, items > 1 && cpu_worth_threads(&r->problem), run_share, r);
}

static void cut_item(cpu_request *r, int32_t thread, int64_t b)
{
    (void)thread;
    cpu_request_cut(r, b);
}

static void begin_draw(cpu_request *r, int32_t thread)
{
    cpu_slot slot = cpu_job_slot(&r->job, thread);
    gumbel_summaries_clear(slot.summaries, r->problem.batch * r->problem.sampling.num_samples);
}

/* Draw a block of row b, of which z is what is left. */
static void draw_block(const cpu_request *r, const cpu_slot *slot, int64_t b, int64_t block,
                       const float *z)
{
    const gumbel_problem *p = &r->problem;
    gumbel_row row = gumbel_problem_row(p, b);
    int32_t samples = p->sampling.num_samples;
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK;
    int64_t low = p->first_token > token ? p->first_token - token : 0;
    int64_t high = p->end_token - token < GUMBEL_BLOCK ? p->end_token - token : GUMBEL_BLOCK;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && block >= 0 && block < r->stage.blocks);
    GUMBEL_ASSERT(low < high);
    cpu_draw draw = {.row = &row,
                     .num_samples = p->sampling.given.data ? 0
                                    : row.greedy           ? 1
                                                           : samples,
                     .with_mass = p->with_mass,
                     .token = (uint32_t)token,
                     .blocks = 1,
                     .factor = 1.0f,
                     .summaries = slot->summaries + b * samples,
                     .noise_stride = p->sampling.noise_stride,
                     .low = (int)low,
                     .high = (int)high};
    if (p->sampling.noise && !row.greedy)
        draw.noise =
            p->sampling.noise + b * samples * draw.noise_stride + (token + low - p->first_token);
    r->job.device->kernels->draw(z, &draw);
}

/* Claims that draw a row. */
static int64_t pieces(const cpu_request *r)
{
    return (r->stage.blocks + CPU_DRAW_BLOCKS - 1) / CPU_DRAW_BLOCKS;
}

static void draw_item(cpu_request *r, int32_t thread, int64_t item)
{
    cpu_slot slot = cpu_job_slot(&r->job, thread);
    int64_t b = item / pieces(r), block = item % pieces(r) * CPU_DRAW_BLOCKS;
    int64_t end =
        block + CPU_DRAW_BLOCKS < r->stage.blocks ? block + CPU_DRAW_BLOCKS : r->stage.blocks;
    GUMBEL_ASSERT(b < r->problem.batch && block < end);
    float z[GUMBEL_BLOCK];
    if (r->rows[b].flags || r->rows[b].empty)
        return;
    for (; block < end; block++)
        if (cpu_request_survives(r, b, block)) {
            cpu_request_block(r, b, block, z);
            draw_block(r, &slot, b, block, z);
        }
}

/* Stage every row, and cut it where the request says so. */
static void stage_rows(cpu_request *r, gumbel_device *device, const gumbel_problem *p,
                       const gumbel_plan *plan, void *workspace)
{
    cpu_device *cpu = (cpu_device *)device;
    size_t plain = cpu_workspace_size(device, p->batch, p->hidden_size, p->sampling.num_samples);
    gumbel_cursor cursor = {workspace, plain + cpu_edits_size(p)};
    GUMBEL_ASSERT(plain != SIZE_MAX);
    r->problem = *p;
    r->job.stage = &r->stage;
    if (plan->rows == &rows_rung)
        carve(r, &cursor, p, cpu->threads);
    GUMBEL_ASSERT(!r->rows || (r->summaries && r->stage.peaks));
    GUMBEL_ASSERT(r->stage.values || r->processed || !r->rows || r->stage.in_place);
    if (r->stage.raw)
        gumbel_summaries_clear(r->stage.raw, cpu->threads * p->batch);
    cpu_job_prepare(&r->job, cpu, &r->problem, workspace);
    r->staged = cpu_job_run(&r->job);
    GUMBEL_ASSERT(r->staged >= 1 && r->staged <= cpu->threads);
    if (r->rows)
        run_phase(r, p->batch, cut_item, NULL);
}

/* Draw from rows left whole. */
static void sample_rows(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                        const gumbel_output *output, void *workspace)
{
    cpu_request r = {.output = output};
    stage_rows(&r, device, p, plan, workspace);
    r.problem.with_mass = output->logprobs_of == GUMBEL_PROCESSED &&
                          (output->logprobs || output->lse || output->top_logprobs);
    int32_t used = run_phase(&r, p->batch * pieces(&r), draw_item, begin_draw);
    cpu_job_merge(&r.job, used, r.summaries);
    run_phase(&r, p->batch, cpu_request_read, NULL);
}

static void read_summaries(const gumbel_problem *p, const gumbel_summary *summaries,
                           const gumbel_output *output)
{
    gumbel_finish_call call = {.summaries = summaries,
                               .parts = 1,
                               .batch = p->batch,
                               .num_samples = p->sampling.num_samples,
                               .output = output};
    gumbel_write_outputs(&call);
}

/* A draw by the full pass. */
static gumbel_status sample_full(gumbel_device *device, const gumbel_problem *p,
                                 const gumbel_plan *plan, const gumbel_output *output,
                                 void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    void *rest = cursor.base + cursor.used;
    if (plan->rows == &rows_rung) {
        sample_rows(device, p, plan, output, rest);
        return GUMBEL_OK;
    }
    GUMBEL_FORWARD(cpu_partial(device, p, plan, summaries, rest, error));
    read_summaries(p, summaries, output);
    return GUMBEL_OK;
}

/* A draw by the screen, and by the full pass of the rows that it leaves. */
static gumbel_status sample_screened(gumbel_device *device, const gumbel_problem *p,
                                     const gumbel_plan *plan, const gumbel_output *output,
                                     void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    cpu_row_range left = cpu_screen_draw((cpu_device *)device, p, cpu_screen_cut_row, summaries,
                                         cursor.base + cursor.used);
    read_summaries(p, summaries, output);
    if (left.first == left.end)
        return GUMBEL_OK;
    gumbel_problem slice = gumbel_problem_slice(p, left.first, left.end - left.first);
    gumbel_output out = gumbel_output_slice(output, left.first, p->sampling.num_samples);
    return sample_full(device, &slice, plan, &out, workspace, error);
}

gumbel_status cpu_sample(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                         const gumbel_output *output, void *workspace, gumbel_error *error)
{
    gumbel_plan own;
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(p->batch > 0 && output->tokens);
    if (!plan) {
        choose_rungs(&own, p, 0);
        plan = &own;
    }
    if (is_screened((const cpu_device *)device, p, plan))
        return sample_screened(device, p, plan, output, workspace, error);
    return sample_full(device, p, plan, output, workspace, error);
}

gumbel_status cpu_explain(const gumbel_device *device, const gumbel_problem *p, gumbel_text *text,
                          gumbel_error *error)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_plan plan;
    GUMBEL_FORWARD(cpu_plan_call(device, p, 0, &plan, error));
    const gumbel_rung *rung = is_screened(cpu, p, &plan) ? &screen_rung : plan.rows;
    gumbel_text_add(text, "rows: %s: %s\n", rung->name, rung->method);
    if (p->screen && rung != &screen_rung)
        gumbel_text_add_refusal(text, &screen_rung, plan.required, cpu_screen_refusal(cpu, p));
    if (rung == &rows_rung)
        gumbel_text_add_refusal(text, &tiles_rung, plan.required, "");
    gumbel_text_add(text, "kernels: %s, %d threads, tiles of %d tokens\n",
                    gumbel_isa_name(cpu->kernels->isa), (int)cpu->threads,
                    (int)(p->hidden_size > 0 ? cpu->fused_tile : cpu->logits_tile));
    if (rung == &screen_rung)
        gumbel_text_add(text, "integer products: %s\n", cpu->screen->name);
    gumbel_text_add(text, "workspace: %zu bytes\n", plan.workspace_bytes);
    return GUMBEL_OK;
}

/* Take out of row b of processed logits what was removed, and write what does not count. */
static void process_item(cpu_request *r, int32_t thread, int64_t b)
{
    (void)thread;
    const gumbel_problem *p = &r->problem;
    const cpu_found whole = {.flags = r->rows ? 0 : cpu_request_flags(r, b),
                             .scale = 1.0f,
                             .bound = -FLT_MAX,
                             .tied_end = INT64_MAX};
    const cpu_found *found = r->rows ? &r->rows[b] : &whole;
    float *row = r->processed + b * r->processed_stride, z[GUMBEL_BLOCK];
    int64_t count = p->end_token > p->first_token ? p->end_token - p->first_token : 0;
    int changes = found->bound > -FLT_MAX || found->tied_end < INT64_MAX || found->scale != 1.0f;
    count = found->flags || found->empty ? 0 : count;
    for (int64_t block = 0; block < r->stage.blocks && count > 0 && changes; block++) {
        int64_t at = r->job.first_tile + block * GUMBEL_BLOCK - p->first_token;
        int64_t low = at < 0 ? -at : 0,
                high = count - at < GUMBEL_BLOCK ? count - at : GUMBEL_BLOCK;
        GUMBEL_ASSERT(low < high && at + high <= p->vocab);
        cpu_request_block(r, b, block, z);
        memcpy(row + at + low, z + low, (size_t)(high - low) * sizeof *z);
    }
    for (int64_t i = count; i < p->vocab; i++)
        row[i] = found->flags ? NAN : -INFINITY;
}

/* Stage the rows where the caller wants them. */
static void stage_into(cpu_request *r, gumbel_device *device, const gumbel_problem *p,
                       const gumbel_plan *plan, float *rows, int64_t stride, void *workspace)
{
    gumbel_plan own;
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(rows && stride >= p->vocab);
    *r = (cpu_request){
        .processed = rows, .processed_stride = stride, .stage = {.values = rows, .stride = stride}};
    if (!plan) {
        choose_rungs(&own, p, GUMBEL_CAPABILITY_ROWS);
        plan = &own;
    }
    stage_rows(r, device, p, plan, workspace);
}

gumbel_status cpu_process(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                          float *processed, int64_t stride, void *workspace, gumbel_error *error)
{
    (void)error;
    cpu_request r;
    stage_into(&r, device, p, plan, processed, stride, workspace);
    run_phase(&r, p->batch, process_item, NULL);
    return GUMBEL_OK;
}

gumbel_status cpu_store(gumbel_device *device, const gumbel_problem *p, float *rows, int64_t stride,
                        void *workspace, gumbel_error *error)
{
    (void)error;
    cpu_request r;
    GUMBEL_ASSERT(p->request == 0);
    stage_into(&r, device, p, NULL, rows, stride, workspace);
    return GUMBEL_OK;
}

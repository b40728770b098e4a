/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend: its table of functions, its rungs, and the workspace of each call.
 */
#include "cpu/rows/cpu_backend.h"

#include "core/fail.h"
#include "core/output.h"
#include "cpu/call/cpu_calls.h"
#include "cpu/call/screen/cpu_screen.h"
#include "cpu/cpu_policy.h"
#include "cpu/rows/cpu_rows.h"
#include "cpu/rows/cpu_screen_survivors.h"
#include "cpu/rows/cpu_screen_verdict.h"

#include <stdio.h>

/* -------------------------------------------------------------------------------- rungs ---- */

static const gumbel_rung screen_rung = {
    .name = "screen",
    .method = "bytes bound every logit, and candidates are scored exactly",
    .supports = GUMBEL_FEATURE_TRANSFORMS | GUMBEL_CAPABILITIES_OF_TRUNCATION |
                GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE |
                GUMBEL_CAPABILITY_SOFT_CAP | GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS |
                GUMBEL_CAPABILITY_EMPTY,
};
static const gumbel_rung screen_survivors_rung = {
    .name = "screen-survivors",
    .method = "bytes bound every logit, and all tokens that may survive are scored exactly",
    .supports = GUMBEL_FEATURE_TRANSFORMS | GUMBEL_FEATURE_RANKS | GUMBEL_FEATURE_KEPT |
                GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP | GUMBEL_CAPABILITY_MASS |
                (GUMBEL_CAPABILITIES_OF_TRUNCATION & ~GUMBEL_CAPABILITY_JOINT) |
                GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE |
                GUMBEL_CAPABILITY_SOFT_CAP | GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS,
    .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P,
};
static const gumbel_rung tiles_rung = {
    .name = "tiles",
    .method = "each tile is drawn from while it is in the caches",
    .supports = GUMBEL_FEATURE_TRANSFORMS | GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_MASS |
                GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_NOISE | GUMBEL_CAPABILITY_SOFT_CAP |
                GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_SUMMARIES |
                GUMBEL_CAPABILITY_EMPTY | GUMBEL_CAPABILITY_PRODUCT,
};
static const gumbel_rung rows_rung = {
    .name = "rows",
    .method = "whole rows are stored, truncated, and drawn from block by block",
    .supports = GUMBEL_CAPABILITY_END - 1,
};

/* Chooses the rungs of a call. plan->rows is the rung of the full pass; plan->product is the screen
 * if it supports the call, which also depends on the number of live rows. */
static void choose_rungs(gumbel_plan *plan, const gumbel_problem *p, uint64_t purpose)
{
    const uint64_t required = gumbel_required_capabilities(p);
    *plan = (gumbel_plan){.required = required | purpose};
    plan->rows = gumbel_rung_supports(&tiles_rung, required) ? &tiles_rung : &rows_rung;
    if (p->screen && gumbel_rung_supports(&screen_rung, required | purpose))
        plan->product = &screen_rung;
    else if (p->screen && gumbel_rung_supports(&screen_survivors_rung, required | purpose))
        plan->product = &screen_survivors_rung;
}

/* The plan that a call was given, or a new one at `own`. */
static const gumbel_plan *complete_plan(const gumbel_plan *plan, const gumbel_problem *p,
                                        uint64_t purpose, gumbel_plan *own)
{
    if (plan)
        return plan;
    choose_rungs(own, p, purpose);
    return own;
}

/* Whether the survivors determine the outputs of every row of the call. */
static int truncates_all_rows(const gumbel_problem *p)
{
    for (int64_t b = 0; b < p->batch; b++) {
        const gumbel_rules rules = gumbel_problem_rules(p, b, gumbel_problem_row(p, b).greedy);
        if (!cpu_has_survivors(&rules))
            return 0;
    }
    return 1;
}

/* The rung that serves a call of exactly these rows. */
static const gumbel_rung *find_rung(const cpu_device *cpu, const gumbel_problem *p,
                                    const gumbel_plan *plan)
{
    const int is_served = plan->product != &screen_survivors_rung || truncates_all_rows(p);
    const int uses_screen = plan->product && is_served && cpu_is_screen_faster(cpu, p, NULL);
    return uses_screen ? plan->product : plan->rows;
}

/* ---------------------------------------------------------------------------- workspace ---- */

/* Summaries that the outputs of a call on tiles are computed from. */
static gumbel_summary *carve_summaries(gumbel_cursor *cursor, int64_t batch, int32_t num_samples)
{
    return gumbel_carve_array(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
}

/* Adds bytes that another function has counted. */
static void add_bytes(gumbel_cursor *cursor, size_t bytes)
{
    gumbel_carve_array(cursor, bytes == SIZE_MAX ? 2 : 1, bytes, 1);
}

static gumbel_status plan_call(const gumbel_device *device, const gumbel_problem *p,
                               uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    (void)error;
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {0};
    choose_rungs(plan, p, purpose);
    carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    add_bytes(&cursor,
              cpu_count_plain_workspace(device, p->batch, p->hidden_size, p->sampling.num_samples));
    add_bytes(&cursor, cpu_count_edits_workspace(p));
    /* Fallback rows are drawn after the screen, in the same memory. */
    gumbel_cursor screen = cursor;
    if (cursor.used != SIZE_MAX && plan->rows == &rows_rung)
        add_bytes(&cursor, cpu_count_rows_workspace(cpu, p));
    if (screen.used != SIZE_MAX && plan->product) {
        add_bytes(&screen, cpu_count_screen_workspace(cpu, p));
        add_bytes(&screen, cpu_count_survivors_workspace(p->batch));
    }
    plan->workspace_bytes = cursor.used > screen.used ? cursor.used : screen.used;
    return GUMBEL_OK;
}

static size_t count_workspace_limit(const gumbel_device *device, const gumbel_limits *limits)
{
    const cpu_device *cpu = (const cpu_device *)device;
    size_t screen = 0;
    gumbel_plan plan;
    gumbel_problem p = {.batch = limits->batch,
                        .hidden_size = limits->hidden_size,
                        .sampling = {.num_samples = limits->num_samples}};
    if (limits->requests) {
        /* A first token that is not a multiple of a block adds one block. */
        p.first_token = GUMBEL_BLOCK - 1;
        p.vocab = limits->vocab_size;
        p.end_token = p.first_token + p.vocab;
        p.features = GUMBEL_FEATURE_END - 1;
    }
    plan_call(device, &p, 0, &plan, NULL);
    if (limits->screens && limits->hidden_size > 0)
        screen = cpu_count_screen_limit(cpu, &p) + cpu_count_survivors_workspace(p.batch);
    return plan.workspace_bytes > SIZE_MAX - screen ? SIZE_MAX : plan.workspace_bytes + screen;
}

/* -------------------------------------------------------------------------------- calls ---- */

static void write_outputs(const gumbel_problem *p, const gumbel_summary *summaries,
                          const gumbel_output *output)
{
    gumbel_finish_call call = {.summaries = summaries,
                               .parts = 1,
                               .batch = p->batch,
                               .num_samples = p->sampling.num_samples,
                               .output = output};
    gumbel_write_outputs(&call);
}

static gumbel_status sample_by_full_pass(gumbel_device *device, const gumbel_problem *p,
                                         const gumbel_plan *plan, const gumbel_output *output,
                                         void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    void *rest = cursor.base + cursor.used;
    if (plan->rows == &rows_rung) {
        cpu_sample_rows((cpu_device *)device, p, output, rest);
        return GUMBEL_OK;
    }
    GUMBEL_FORWARD(cpu_draw_partial(device, p, plan, summaries, rest, error));
    write_outputs(p, summaries, output);
    return GUMBEL_OK;
}

/* Fills the summaries of all rows but the fallback rows, without masses. */
static cpu_row_range draw_by_screen(cpu_device *cpu, const gumbel_problem *p,
                                    gumbel_summary *summaries, void *workspace)
{
    cpu_screen screen = {.truncate_row = cpu_draw_truncated_row};
    cpu_run_screen(&screen, cpu, p, workspace);
    cpu_merge_job(&screen.bound_job, screen.used_threads, summaries);
    return cpu_find_fallback_rows(&screen);
}

/* Draws by the screen, then its fallback rows by the full pass. */
static gumbel_status sample_by_screen(gumbel_device *device, const gumbel_problem *p,
                                      const gumbel_plan *plan, const gumbel_output *output,
                                      void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    void *rest = cursor.base + cursor.used;
    cpu_row_range fallback;
    if (plan->product == &screen_survivors_rung)
        fallback = cpu_sample_survivors((cpu_device *)device, p, output, summaries, rest);
    else {
        fallback = draw_by_screen((cpu_device *)device, p, summaries, rest);
        write_outputs(p, summaries, output);
    }
    if (fallback.first == fallback.end)
        return GUMBEL_OK;
    gumbel_problem slice = gumbel_problem_slice(p, fallback.first, fallback.end - fallback.first);
    gumbel_output out = gumbel_output_slice(output, fallback.first, p->sampling.num_samples);
    return sample_by_full_pass(device, &slice, plan, &out, workspace, error);
}

static gumbel_status sample_tokens(gumbel_device *device, const gumbel_problem *p,
                                   const gumbel_plan *plan, const gumbel_output *output,
                                   void *workspace, gumbel_error *error)
{
    gumbel_plan own;
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(p->batch > 0 && output->tokens);
    plan = complete_plan(plan, p, 0, &own);
    if (find_rung((const cpu_device *)device, p, plan) == plan->product)
        return sample_by_screen(device, p, plan, output, workspace, error);
    return sample_by_full_pass(device, p, plan, output, workspace, error);
}

static gumbel_status explain_call(const gumbel_device *device, const gumbel_problem *p,
                                  gumbel_text *text, gumbel_error *error)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_plan plan;
    GUMBEL_FORWARD(plan_call(device, p, 0, &plan, error));
    const gumbel_rung *rung = find_rung(cpu, p, &plan);
    gumbel_text_add(text, "rows: %s: %s\n", rung->name, rung->method);
    if (p->screen && rung != &screen_rung) {
        char reason[CPU_SCREEN_REASON_BYTES] = "";
        cpu_is_screen_faster(cpu, p, reason);
        gumbel_text_add_refusal(text, &screen_rung, plan.required, reason);
        if (!reason[0] && !truncates_all_rows(p))
            snprintf(reason, sizeof reason, "a row is greedy, or has neither top_k nor min_p");
        if (rung != &screen_survivors_rung)
            gumbel_text_add_refusal(text, &screen_survivors_rung, plan.required, reason);
    }
    if (rung == &rows_rung)
        gumbel_text_add_refusal(text, &tiles_rung, plan.required, "");
    if (p->hidden_size > 0 && rung == plan.rows && !(p->features & GUMBEL_FEATURE_RAW) &&
        p->features & (GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_ALLOWED | GUMBEL_FEATURE_BANNED))
        gumbel_text_add(text,
                        "weights: of allowed tokens alone, in tiles that allow at most 1/%d\n",
                        CPU_SPARSE_FRACTION);
    gumbel_text_add(text, "kernels: %s, %d threads, tiles of %d tokens\n",
                    gumbel_isa_name(cpu->kernels->isa), (int)cpu->threads,
                    (int)(p->hidden_size > 0 ? cpu->fused_tile : cpu->logits_tile));
    if (rung == plan.product)
        gumbel_text_add(text, "integer products: %s%s\n", cpu_get_screen_kernel(cpu, p)->name,
                        cpu_reads_high_nibbles_first(p) ? ", upper ones first" : "");
    gumbel_text_add(text, "workspace: %zu bytes\n", plan.workspace_bytes);
    return GUMBEL_OK;
}

static gumbel_status store_processed(gumbel_device *device, const gumbel_problem *p,
                                     const gumbel_plan *plan, gumbel_row_array processed,
                                     void *workspace, gumbel_error *error)
{
    (void)error;
    gumbel_plan own;
    plan = complete_plan(plan, p, GUMBEL_CAPABILITY_ROWS, &own);
    cpu_process_rows((cpu_device *)device, p, plan->rows == &rows_rung, processed, workspace);
    return GUMBEL_OK;
}

static gumbel_status store_logits(gumbel_device *device, const gumbel_problem *p, float *rows,
                                  int64_t stride, void *workspace, gumbel_error *error)
{
    (void)error;
    GUMBEL_ASSERT(p->features == 0);
    cpu_store_rows((cpu_device *)device, p, rows, stride, workspace);
    return GUMBEL_OK;
}

static gumbel_status store_probabilities(gumbel_device *device, const gumbel_problem *p,
                                         const gumbel_plan *plan, gumbel_row_array probabilities,
                                         void *workspace, gumbel_error *error)
{
    GUMBEL_ASSERT(probabilities.dtype == GUMBEL_FLOAT32);
    if (p->features)
        GUMBEL_FORWARD(store_processed(device, p, plan, probabilities, workspace, error));
    cpu_compute_softmax((cpu_device *)device, p, probabilities.data, probabilities.stride,
                        workspace);
    return GUMBEL_OK;
}

static const gumbel_backend backend = {
    .supports = GUMBEL_FEATURE_END - 1,
    .close = cpu_close_device,
    .describe = cpu_describe_device,
    .host_memory = 1,
    .max_workspace_size = count_workspace_limit,
    .plan = plan_call,
    .explain = explain_call,
    .draw_partial = cpu_draw_partial,
    .sample = sample_tokens,
    .store_processed = store_processed,
    .store_logits = store_logits,
    .store_probabilities = store_probabilities,
    .history_start = cpu_start_history,
    .history_update = cpu_update_history,
    .recent_start = cpu_start_recent,
    .recent_append = cpu_append_recent,
    .make_lists = cpu_make_lists,
    .store_noise = cpu_compute_noise,
    .store_table_noise = cpu_compute_table_noise,
    .map_token_ids = cpu_map_token_ids,
    .advance = cpu_advance_positions,
    .update_rules = cpu_update_rules,
    .screen_layout = GUMBEL_SCREEN_LAYOUT_CPU,
    .screen_prepare = cpu_make_screen,
    .screen_verify = cpu_verify_screen,
    .multiply = cpu_multiply_head,
};

gumbel_status cpu_open(const gumbel_device_options *options, gumbel_device **device,
                       gumbel_error *error)
{
    return cpu_open_device(options, &backend, device, error);
}

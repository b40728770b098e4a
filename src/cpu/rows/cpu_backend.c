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
#include "cpu/rows/cpu_screen_judge.h"

/* -------------------------------------------------------------------------------- rungs ---- */

static const gumbel_rung screen_rung = {
    .name = "screen",
    .what = "bytes bound every logit, and candidates are scored exactly",
    .serves = GUMBEL_REQUEST_TRANSFORMS | GUMBEL_NEEDS_OF_CUTS | GUMBEL_NEED_LISTS |
              GUMBEL_NEED_SAMPLES | GUMBEL_NEED_NOISE | GUMBEL_NEED_SOFT_CAP | GUMBEL_NEED_SCALE |
              GUMBEL_NEED_BIAS | GUMBEL_NEED_EMPTY,
};
static const gumbel_rung tiles_rung = {
    .name = "tiles",
    .what = "each tile is drawn from while it is in the caches",
    .serves = GUMBEL_REQUEST_TRANSFORMS | GUMBEL_NEED_LISTS | GUMBEL_NEED_MASS |
              GUMBEL_NEED_SAMPLES | GUMBEL_NEED_NOISE | GUMBEL_NEED_SOFT_CAP | GUMBEL_NEED_SCALE |
              GUMBEL_NEED_BIAS | GUMBEL_NEED_PART | GUMBEL_NEED_EMPTY | GUMBEL_NEED_PRODUCT,
};
static const gumbel_rung rows_rung = {
    .name = "rows",
    .what = "whole rows are stored, truncated, and drawn from block by block",
    .serves = GUMBEL_NEED_END - 1,
};

/* Whether a call must store whole rows; a call that only transforms need not. */
static int needs_rows(const gumbel_problem *p)
{
    return !gumbel_rung_serves(&tiles_rung, gumbel_needs_of(p));
}

/* Whether a screen can serve a call with few enough live rows. `more` are capabilities that the
 * problem does not show. */
static int can_use_screen(const gumbel_problem *p, uint32_t more)
{
    return p->screen && gumbel_rung_serves(&screen_rung, gumbel_needs_of(p) | more);
}

/* The rung that serves a call of exactly these rows. */
static const gumbel_rung *choose_rung(const cpu_device *cpu, const gumbel_problem *p)
{
    if (can_use_screen(p, 0) && !cpu_explain_screen_refusal(cpu, p))
        return &screen_rung;
    return needs_rows(p) ? &rows_rung : &tiles_rung;
}

/* ---------------------------------------------------------------------------- workspace ---- */

/* Summaries that the outputs of a call on tiles are computed from. */
static gumbel_summary *carve_summaries(gumbel_cursor *cursor, int64_t batch, int32_t num_samples)
{
    return gumbel_carve(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
}

/* Adds bytes that another function has counted. */
static void add_bytes(gumbel_cursor *cursor, size_t bytes)
{
    gumbel_carve(cursor, bytes == SIZE_MAX ? 2 : 1, bytes, 1);
}

static gumbel_status count_call_workspace(const gumbel_device *device, const gumbel_problem *p,
                                          uint32_t more, size_t *bytes, gumbel_error *error)
{
    (void)error;
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {0};
    carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    add_bytes(&cursor,
              cpu_count_plain_workspace(device, p->batch, p->hidden_size, p->sampling.num_samples));
    add_bytes(&cursor, cpu_count_edits_workspace(p));
    /* Fallback rows are drawn after the screen, in the same memory. */
    gumbel_cursor screen = cursor;
    if (cursor.used != SIZE_MAX && needs_rows(p))
        add_bytes(&cursor, cpu_count_rows_workspace(cpu, p));
    if (screen.used != SIZE_MAX && can_use_screen(p, more))
        add_bytes(&screen, cpu_count_screen_workspace(cpu, p));
    *bytes = cursor.used > screen.used ? cursor.used : screen.used;
    return GUMBEL_OK;
}

static size_t count_workspace_limit(const gumbel_device *device, const gumbel_limits *limits)
{
    const cpu_device *cpu = (const cpu_device *)device;
    size_t bytes, screen = 0;
    gumbel_problem p = {.batch = limits->batch,
                        .hidden_size = limits->hidden_size,
                        .sampling = {.num_samples = limits->num_samples}};
    if (limits->requests) {
        /* A first token that is not a multiple of a block adds one block. */
        p.first_token = GUMBEL_BLOCK - 1;
        p.vocab = limits->vocab_size;
        p.end_token = p.first_token + p.vocab;
        p.request = GUMBEL_REQUEST_END - 1;
    }
    count_call_workspace(device, &p, 0, &bytes, NULL);
    if (limits->screens && limits->hidden_size > 0)
        screen = cpu_count_screen_limit(cpu, &p);
    return bytes > SIZE_MAX - screen ? SIZE_MAX : bytes + screen;
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
    gumbel_read_out(&call);
}

static gumbel_status sample_by_full_pass(gumbel_device *device, const gumbel_problem *p,
                                         const gumbel_output *output, void *workspace,
                                         gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    void *rest = cursor.base + cursor.used;
    if (needs_rows(p)) {
        cpu_sample_rows((cpu_device *)device, p, output, rest);
        return GUMBEL_OK;
    }
    GUMBEL_FORWARD(cpu_draw_partial(device, p, summaries, rest, error));
    write_outputs(p, summaries, output);
    return GUMBEL_OK;
}

/* Draws by the screen, then its fallback rows by the full pass. */
static gumbel_status sample_by_screen(gumbel_device *device, const gumbel_problem *p,
                                      const gumbel_output *output, void *workspace,
                                      gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_summary *summaries = carve_summaries(&cursor, p->batch, p->sampling.num_samples);
    cpu_row_range fallback = cpu_draw_by_screen((cpu_device *)device, p, cpu_draw_truncated_row,
                                                summaries, cursor.base + cursor.used);
    write_outputs(p, summaries, output);
    if (fallback.first == fallback.end)
        return GUMBEL_OK;
    gumbel_problem slice = gumbel_problem_slice(p, fallback.first, fallback.end - fallback.first);
    gumbel_output out = gumbel_output_slice(output, fallback.first, p->sampling.num_samples);
    return sample_by_full_pass(device, &slice, &out, workspace, error);
}

static gumbel_status sample_tokens(gumbel_device *device, const gumbel_problem *p,
                                   const gumbel_output *output, void *workspace,
                                   gumbel_error *error)
{
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(p->batch > 0 && output->tokens);
    if (choose_rung((const cpu_device *)device, p) == &screen_rung)
        return sample_by_screen(device, p, output, workspace, error);
    return sample_by_full_pass(device, p, output, workspace, error);
}

static gumbel_status explain_call(const gumbel_device *device, const gumbel_problem *p,
                                  gumbel_text *text, gumbel_error *error)
{
    const cpu_device *cpu = (const cpu_device *)device;
    const gumbel_rung *rung = choose_rung(cpu, p);
    size_t bytes;
    GUMBEL_FORWARD(count_call_workspace(device, p, 0, &bytes, error));
    gumbel_text_add(text, "rows: %s: %s\n", rung->name, rung->what);
    if (p->screen && rung != &screen_rung)
        gumbel_text_refusal(text, &screen_rung, gumbel_needs_of(p),
                            cpu_explain_screen_refusal(cpu, p));
    if (rung == &rows_rung)
        gumbel_text_refusal(text, &tiles_rung, gumbel_needs_of(p), "");
    gumbel_text_add(text, "kernels: %s, %d threads, tiles of %d tokens\n",
                    gumbel_isa_name(cpu->kernels->isa), (int)cpu->threads,
                    (int)(p->hidden_size > 0 ? cpu->fused_tile : cpu->logits_tile));
    if (rung == &screen_rung)
        gumbel_text_add(text, "integer products: %s\n", cpu->screen->name);
    gumbel_text_add(text, "workspace: %zu bytes\n", bytes);
    return GUMBEL_OK;
}

static gumbel_status process_logits(gumbel_device *device, const gumbel_problem *p,
                                    float *processed, int64_t stride, void *workspace,
                                    gumbel_error *error)
{
    (void)error;
    cpu_process_rows((cpu_device *)device, p, needs_rows(p), processed, stride, workspace);
    return GUMBEL_OK;
}

static gumbel_status store_logits(gumbel_device *device, const gumbel_problem *p, float *rows,
                                  int64_t stride, void *workspace, gumbel_error *error)
{
    (void)error;
    GUMBEL_ASSERT(p->request == 0);
    cpu_store_rows((cpu_device *)device, p, rows, stride, workspace);
    return GUMBEL_OK;
}

static gumbel_status compute_softmax(gumbel_device *device, const gumbel_problem *p,
                                     float *probabilities, int64_t stride, void *workspace,
                                     gumbel_error *error)
{
    if (p->request)
        GUMBEL_FORWARD(process_logits(device, p, probabilities, stride, workspace, error));
    cpu_compute_softmax((cpu_device *)device, p, probabilities, stride, workspace);
    return GUMBEL_OK;
}

static const gumbel_backend backend = {
    .serves = GUMBEL_REQUEST_END - 1,
    .close = cpu_close_device,
    .describe = cpu_describe_device,
    .host_memory = 1,
    .most = count_workspace_limit,
    .call_size = count_call_workspace,
    .explain = explain_call,
    .partial = cpu_draw_partial,
    .sample = sample_tokens,
    .process = process_logits,
    .store = store_logits,
    .softmax = compute_softmax,
    .history_start = cpu_start_history,
    .history_update = cpu_update_history,
    .noise = cpu_compute_noise,
    .advance = cpu_advance_positions,
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

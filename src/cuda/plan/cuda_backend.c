/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend's table, and its entries that run a planned call: they plan the call, take the plan's
 * arrays from the workspace, and queue its launches.
 */
#include "core/fail.h"
#include "cuda/open/cuda_open.h"
#include "cuda/plan/cuda_plan.h"
#include "cuda/run/cuda_calls.h"

#include <stdlib.h>

/* Fill a job with the whole call and the plan's arrays of the workspace. */
static void fill_job(cuda_job *job, const cuda_plan *plan, gumbel_problem *problem, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    job->workspace = cuda_carve_plan(plan, &cursor, job->cuda, problem);
    if (cuda_makes_mask(problem)) /* indexed from token 0 of the vocabulary */
        problem->transforms.mask.data = (const int32_t *)job->workspace.allowed -
                                        CUDA_ALLOWED_ORIGIN(problem->first_token) / 32;
    if (job->head_logits)
        job->workspace.logits = job->head_logits;
    job->product_outputs = plan->product_outputs;
    job->stream = problem->stream;
    job->params.problem = *problem;
    job->params.inverse_cap = cuda_inverse_cap(problem);
    job->params.summaries = job->workspace.summaries;
    job->params.row_thresholds = job->workspace.row_thresholds;
    job->params.multiply_only =
        (plan->required & GUMBEL_CAPABILITY_PRODUCT) && !job->params.logits_out;
}

/* Elements between rows of logits that a product stores. */
static int64_t get_logits_stride(const cuda_job *job, const gumbel_problem *p)
{
    return job->head_logits ? job->head_logits_stride : cuda_row_stride(p);
}

/* Run the product of a call whose rows are served from its logits. */
static gumbel_status run_product(const cuda_job *job, const cuda_plan *plan)
{
    cuda_job product = *job;
    cuda_params *p = &product.params;
    const uint32_t outputs = plan->product_outputs;
    GUMBEL_ASSERT(job->workspace.logits && p->problem.hidden_size > 0);
    GUMBEL_ASSERT(!(outputs & CUDA_OUTPUT_BLOCK_MAXIMA) || job->workspace.block_maxima);
    GUMBEL_ASSERT(!(outputs & CUDA_OUTPUT_SUBTILES) || job->workspace.stored_subtiles);
    GUMBEL_ASSERT(!(outputs & CUDA_OUTPUT_DRAWS) || job->workspace.exchange);
    p->logits_out = job->workspace.logits;
    p->logits_out_stride = get_logits_stride(job, &p->problem);
    if (outputs & CUDA_OUTPUT_BLOCK_MAXIMA) {
        p->block_maxima = job->workspace.block_maxima;
        p->block_maxima_stride = cuda_blocks_of(&p->problem);
    }
    if (outputs & CUDA_OUTPUT_SUBTILES) {
        p->stored_subtiles = job->workspace.stored_subtiles;
        p->unseen_block_maxima = job->workspace.unseen_block_maxima;
    }
    if (outputs & CUDA_OUTPUT_DRAWS) {
        p->also_draw = 1;
        cuda_zero_exchange(p, &job->workspace);
    }
    return plan->product->run(&product);
}

/* Serve rows from logits: given, or stored by the product. */
static gumbel_status run_rows(const cuda_job *job, const cuda_plan *plan)
{
    cuda_job rows = *job;
    gumbel_problem *p = &rows.params.problem;
    if (p->hidden_size > 0) {
        p->hidden_size = 0;
        p->logits = cuda_rows_at(job->workspace.logits, p, get_logits_stride(job, p));
    }
    if (cuda_needs_entropy_launch(p) && !rows.params.output.status)
        rows.params.output.status = job->workspace.row_status;
    GUMBEL_FORWARD(job->expect_few_live_rows && plan->rows->run_few_rows
                       ? plan->rows->run_few_rows(&rows)
                       : plan->rows->run(&rows));
    return cuda_run_outputs(&rows, plan->rows->run);
}

/* Queue the launches of a plan, with the context current. */
static gumbel_status run_plan(const cuda_job *job, const cuda_plan *plan)
{
    const gumbel_problem *p = &job->params.problem;
    GUMBEL_ASSERT(plan->product || plan->rows);
    GUMBEL_ASSERT(job->params.output.tokens || job->params.partials || job->processed.data ||
                  job->params.multiply_only || job->params.logits_out);
    if (p->batch > INT32_MAX / p->sampling.num_samples)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more; split the batch into several calls");
    if (plan->product && !plan->rows)
        return plan->product->run(job);
    if (plan->product)
        GUMBEL_FORWARD(run_product(job, plan));
    return run_rows(job, plan);
}

/* Queue a planned call; `masked` is the problem after cuda_replace_allowed(). */
static gumbel_status queue_call(cuda_job *job, const cuda_plan *plan, const gumbel_problem *problem,
                                gumbel_problem *masked, void *workspace)
{
    fill_job(job, plan, masked, workspace);
    GUMBEL_FORWARD(cuda_push_context(job->cuda, job->error));
    const cuda_product *product = plan->product;
    job->reads_lists = product && product->reads_lists && product->reads_lists(problem);
    gumbel_status status = job->reads_lists ? GUMBEL_OK : cuda_run_allow(job, problem);
    if (status == GUMBEL_OK)
        status = run_plan(job, plan);
    cuda_pop_context(job->cuda);
    return status;
}

/* Queue a call by its plan; plan it for `purpose` if `planned` is NULL. */
static gumbel_status plan_and_queue(cuda_job *job, gumbel_device *device,
                                    const gumbel_problem *problem, uint64_t purpose,
                                    const gumbel_plan *planned, void *workspace,
                                    gumbel_error *error)
{
    cuda_plan plan;
    gumbel_problem_assert(problem);
    gumbel_problem masked = cuda_replace_allowed(problem);
    job->cuda = (cuda_device *)device;
    job->error = error;
    if (planned)
        plan = cuda_plan_of(planned);
    else
        GUMBEL_FORWARD(cuda_plan_call(&plan, job->cuda, &masked, purpose, error));
    return queue_call(job, &plan, problem, &masked, workspace);
}

static gumbel_status draw_partial(gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_plan *plan, gumbel_summary *summaries,
                                  void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.partials = summaries};
    return plan_and_queue(&job, device, problem, GUMBEL_CAPABILITY_SUMMARIES, plan, workspace,
                          error);
}

gumbel_status cuda_sample(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_plan *plan, const gumbel_output *output, void *workspace,
                          gumbel_error *error)
{
    cuda_job job = {.params.output = *output};
    return plan_and_queue(&job, device, problem, 0, plan, workspace, error);
}

gumbel_status cuda_draw_unresolved(gumbel_device *device, const gumbel_problem *problem,
                                   const gumbel_output *output, void *workspace,
                                   gumbel_error *error)
{
    cuda_job job = {.params.output = *output, .expect_few_live_rows = 1};
    GUMBEL_ASSERT(problem->sampling.live_rows && problem->hidden_size == 0);
    return plan_and_queue(&job, device, problem, 0, NULL, workspace, error);
}

gumbel_status cuda_sample_stored(gumbel_device *device, const cuda_plan *plan,
                                 const gumbel_problem *problem, const gumbel_output *output,
                                 float *rows, int64_t stride, void *workspace, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device,
                    .params.output = *output,
                    .head_logits = rows,
                    .head_logits_stride = stride,
                    .error = error};
    gumbel_problem own = *problem;
    gumbel_problem_assert(problem);
    GUMBEL_ASSERT(problem->hidden_size > 0 && !(problem->features & GUMBEL_FEATURE_TRANSFORMS));
    return queue_call(&job, plan, problem, &own, workspace);
}

void cuda_set_top64_blocks(gumbel_device *device, const cuda_plan *plan,
                           const gumbel_problem *problem, float *rows, int64_t stride,
                           void *workspace, cuda_truncated_params *p)
{
    cuda_job job = {
        .cuda = (cuda_device *)device, .head_logits = rows, .head_logits_stride = stride};
    gumbel_problem own = *problem;
    fill_job(&job, plan, &own, workspace);
    p->problem.first_token = problem->first_token;
    p->problem.end_token = problem->end_token;
    p->problem.logits = cuda_rows_at(rows, problem, stride);
    cuda_set_blocks(&job, p);
}

gumbel_status cuda_store_top64_logits(gumbel_device *device, const cuda_plan *plan,
                                      const gumbel_problem *problem,
                                      const gumbel_problem *requested, const gumbel_output *output,
                                      float *rows, int64_t stride, void *workspace,
                                      gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device,
                    .params.output = *output,
                    .head_logits = rows,
                    .head_logits_stride = stride,
                    .error = error};
    gumbel_problem own = *problem;
    fill_job(&job, plan, &own, workspace);
    job.params.problem = *requested;
    GUMBEL_FORWARD(cuda_push_context(job.cuda, error));
    gumbel_status status = run_product(&job, plan);
    cuda_pop_context(job.cuda);
    return status;
}

static gumbel_status discard_product(gumbel_device *device, const gumbel_problem *problem,
                                     const gumbel_plan *plan, void *workspace, gumbel_error *error)
{
    cuda_job job = {0};
    return plan_and_queue(&job, device, problem, GUMBEL_CAPABILITY_PRODUCT, plan, workspace, error);
}

static gumbel_status store_logits(gumbel_device *device, const gumbel_problem *problem,
                                  float *logits, int64_t stride, void *workspace,
                                  gumbel_error *error)
{
    cuda_job job = {.params = {.logits_out = logits, .logits_out_stride = stride}};
    GUMBEL_ASSERT(problem->hidden_size > 0 && !problem->features && !problem->with_mass);
    if (problem->end_token <= problem->first_token)
        return GUMBEL_OK;
    return plan_and_queue(&job, device, problem, GUMBEL_CAPABILITY_PRODUCT, NULL, workspace, error);
}

gumbel_status cuda_store_processed(gumbel_device *device, const gumbel_problem *problem,
                                   const gumbel_plan *plan, gumbel_row_array processed,
                                   void *workspace, gumbel_error *error)
{
    cuda_job job = {.processed = processed};
    return plan_and_queue(&job, device, problem, GUMBEL_CAPABILITY_ROWS, plan, workspace, error);
}

/* Rows are edited in place; no rung has to be chosen. */
gumbel_status cuda_store_edited(gumbel_device *device, const gumbel_problem *problem, float *rows,
                                int64_t stride, void *workspace, gumbel_error *error)
{
    static const cuda_plan no_rungs;
    cuda_job job = {.cuda = (cuda_device *)device, .error = error};
    gumbel_problem masked = cuda_replace_allowed(problem), *q = &job.params.problem;
    if (problem->hidden_size > 0) {
        gumbel_problem product = *problem;
        product.features = 0;
        product.with_mass = product.with_path = 0;
        GUMBEL_FORWARD(store_logits(device, &product, rows, stride, workspace, error));
        if (!gumbel_problem_edits(problem))
            return GUMBEL_OK;
    }
    fill_job(&job, &no_rungs, &masked, workspace);
    if (q->hidden_size > 0)
        q->logits = cuda_rows_at(rows, q, stride);
    q->hidden_size = 0;
    GUMBEL_FORWARD(cuda_push_context(job.cuda, error));
    gumbel_status status = cuda_run_allow(&job, problem);
    if (status == GUMBEL_OK)
        status = cuda_launch_edit(&job, rows, stride);
    cuda_pop_context(job.cuda);
    return status;
}

/* ---------------------------------------------------------------------------- the backend ---- */

static const gumbel_backend backend = {
    .close = cuda_close_device,
    .describe = cuda_describe_device,
    .supports = GUMBEL_FEATURE_END - 1,
    .max_workspace_size = cuda_max_workspace_size,
    .plan = cuda_plan_backend,
    .explain = cuda_explain_call,
    .draw_partial = draw_partial,
    .sample = cuda_sample,
    .store_processed = cuda_store_processed,
    .store_probabilities = cuda_store_probabilities,
    .history_start = cuda_start_history,
    .history_update = cuda_update_history,
    .recent_start = cuda_start_recent,
    .recent_append = cuda_append_recent,
    .make_lists = cuda_make_lists,
    .watermark = cuda_watermark_draws,
    .store_noise = cuda_store_noise,
    .store_table_noise = cuda_store_table_noise,
    .map_token_ids = cuda_map_token_ids,
    .advance = cuda_advance_step,
    .update_rules = cuda_update_rules,
    .expand_drafts = cuda_expand_drafts,
    .accept_drafts = cuda_accept_drafts,
    .rule_workspace_size = cuda_rule_workspace_size,
    .store_logits = store_logits,
    .ranks = &cuda_rank_calls,
    .finish = cuda_finish_summaries,
    .screen_layout = GUMBEL_SCREEN_LAYOUT_TILES,
    .screen_prepare = cuda_prepare_screen,
    .screen_verify = cuda_verify_screen,
    .multiply = discard_product,
};

gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error)
{
    cuda_rung_choice rungs;
    cuda_device *cuda;
    int ordinal;
    GUMBEL_FORWARD(cuda_check_options(options, &ordinal, error));
    GUMBEL_FORWARD(options->rungs
                       ? cuda_read_rungs(&rungs, options->rungs, "options.rungs", error)
                       : cuda_read_rungs(&rungs, getenv("GUMBEL_RUNGS"), "GUMBEL_RUNGS", error));
    GUMBEL_FORWARD(cuda_open_device(ordinal, &cuda, error));
    cuda->base.backend = &backend;
    cuda->rungs = rungs;
    *device = &cuda->base;
    return GUMBEL_OK;
}

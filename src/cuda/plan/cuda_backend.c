/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend's entry points: each has its call planned, takes the workspace that the plan says,
 * and queues what the plan names.
 */
#include "core/fail.h"
#include "cuda/plan/cuda_plan.h"

/* A job as it begins: with the whole call, and its pieces of the workspace. */
static void begin(cuda_job *job, const cuda_plan *plan, gumbel_problem *problem, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    job->workspace = cuda_plan_carve(plan, &cursor, job->cuda, problem);
    if (cuda_makes_mask(problem)) /* by a token's word in the vocabulary */
        problem->transforms.mask.data = (const int32_t *)job->workspace.allowed -
                                        CUDA_ALLOWED_ORIGIN(problem->first_token) / 32;
    if (job->kept)
        job->workspace.logits = job->kept;
    job->handed = plan->handed;
    job->stream = problem->stream;
    job->params.problem = *problem;
    job->params.inverse_cap = cuda_inverse_cap(problem);
    job->params.summaries = job->workspace.summaries;
    job->params.row_thresholds = job->workspace.floors;
    job->params.multiply_only = (plan->needs & GUMBEL_NEED_PRODUCT) && !job->params.logits_out;
}

/* Elements from one row to the next of logits that a product stores. */
static int64_t logits_out_stride(const cuda_job *job, const gumbel_problem *p)
{
    return job->kept ? job->kept_stride : cuda_row_stride(p);
}

/* The product of a call whose rows are served from its logits. */
static gumbel_status store(const cuda_job *job, const cuda_plan *plan)
{
    cuda_job product = *job;
    cuda_params *p = &product.params;
    GUMBEL_ASSERT(job->workspace.logits && p->problem.hidden_size > 0);
    GUMBEL_ASSERT(!(plan->handed & CUDA_HANDS_PEAKS) || job->workspace.peaks);
    GUMBEL_ASSERT(!(plan->handed & CUDA_HANDS_STRIPS) || job->workspace.stored_subtiles);
    GUMBEL_ASSERT(!(plan->handed & CUDA_HANDS_DRAWS) || job->workspace.exchange);
    p->logits_out = job->workspace.logits;
    p->logits_out_stride = logits_out_stride(job, &p->problem);
    if (plan->handed & CUDA_HANDS_PEAKS) {
        p->block_maxima = job->workspace.peaks;
        p->block_maxima_stride = cuda_blocks_of(&p->problem);
    }
    if (plan->handed & CUDA_HANDS_STRIPS) {
        p->stored_subtiles = job->workspace.stored_subtiles;
        p->unseen_block_maxima = job->workspace.unseen_block_maxima;
    }
    if (plan->handed & CUDA_HANDS_DRAWS) {
        p->also_draw = 1;
        cuda_clear_exchange(p, &job->workspace);
    }
    return plan->product->run(&product);
}

/* Serve rows from logits: a product's are those that it has stored. */
static gumbel_status serve_rows(const cuda_job *job, const cuda_plan *plan)
{
    cuda_job rows = *job;
    gumbel_problem *p = &rows.params.problem;
    if (p->hidden_size > 0) {
        p->hidden_size = 0;
        p->sampling.math = GUMBEL_MATH_EXACT; /* FAST is for the caller's logits */
        p->logits = cuda_rows_at(job->workspace.logits, p, logits_out_stride(job, p));
    }
    GUMBEL_FORWARD(plan->rows->run(&rows));
    if (plan->needs & GUMBEL_REQUEST_LOGITS)
        GUMBEL_FORWARD(cuda_run_gather(&rows));
    return plan->needs & GUMBEL_REQUEST_BEST ? cuda_run_best(&rows, plan->rows->run) : GUMBEL_OK;
}

/* Run with the device's context current. */
static gumbel_status run(const cuda_job *job, const cuda_plan *plan)
{
    const gumbel_problem *p = &job->params.problem;
    GUMBEL_ASSERT(plan->product || plan->rows);
    GUMBEL_ASSERT(job->params.output.tokens || job->params.partials || job->processed ||
                  job->params.multiply_only || job->params.logits_out);
    if (p->batch > INT32_MAX / p->sampling.num_samples)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more, which one call on CUDA does not take");
    if (plan->product && !plan->rows)
        return plan->product->run(job);
    if (plan->product)
        GUMBEL_FORWARD(store(job, plan));
    return serve_rows(job, plan);
}

/* Queue a call that is planned. */
static gumbel_status queue(cuda_job *job, const cuda_plan *plan, const gumbel_problem *problem,
                           gumbel_problem *masked, void *workspace)
{
    CUcontext popped;
    begin(job, plan, masked, workspace);
    GUMBEL_FORWARD(cuda_enter(job->cuda, job->error));
    gumbel_status status = cuda_run_allow(job, problem);
    if (status == GUMBEL_OK)
        status = run(job, plan);
    job->cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

/* Plan a call that has `more` needs, and queue it. */
static gumbel_status start(cuda_job *job, gumbel_device *device, const gumbel_problem *problem,
                           uint32_t more, void *workspace, gumbel_error *error)
{
    cuda_plan plan;
    gumbel_problem_assert(problem);
    gumbel_problem masked = cuda_masked(problem);
    job->cuda = (cuda_device *)device;
    job->error = error;
    GUMBEL_FORWARD(cuda_plan_call(&plan, job->cuda, &masked, more, error));
    return queue(job, &plan, problem, &masked, workspace);
}

gumbel_status cuda_partial(gumbel_device *device, const gumbel_problem *problem,
                           gumbel_summary *summaries, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.partials = summaries};
    return start(&job, device, problem, GUMBEL_NEED_PART, workspace, error);
}

gumbel_status cuda_sample(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_output *output, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.output = *output};
    return start(&job, device, problem, 0, workspace, error);
}

gumbel_status cuda_sample_left(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_output *output, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.output = *output, .mostly_none = 1};
    GUMBEL_ASSERT(problem->sampling.live_rows && problem->hidden_size == 0);
    return start(&job, device, problem, 0, workspace, error);
}

gumbel_status cuda_sample_stored(gumbel_device *device, const gumbel_problem *problem,
                                 const gumbel_output *output, float *rows, int64_t stride,
                                 void *workspace, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device,
                    .params.output = *output,
                    .kept = rows,
                    .kept_stride = stride,
                    .error = error};
    gumbel_problem own = *problem;
    cuda_plan plan;
    gumbel_problem_assert(problem);
    GUMBEL_ASSERT(problem->hidden_size > 0 && !(problem->request & GUMBEL_REQUEST_TRANSFORMS));
    GUMBEL_FORWARD(cuda_plan_stored(&plan, job.cuda, problem, error));
    return queue(&job, &plan, problem, &own, workspace);
}

gumbel_status cuda_find_listed(gumbel_device *device, const gumbel_problem *listing, float *rows,
                               int64_t stride, void *workspace, cuda_request_params *p,
                               gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .kept = rows, .kept_stride = stride};
    gumbel_problem own = *listing;
    cuda_plan plan;
    GUMBEL_FORWARD(cuda_plan_stored(&plan, job.cuda, listing, error));
    begin(&job, &plan, &own, workspace);
    p->problem.first_token = listing->first_token;
    p->problem.end_token = listing->end_token;
    p->problem.logits = cuda_rows_at(rows, listing, stride);
    cuda_find_blocks(&job, p);
    return GUMBEL_OK;
}

gumbel_status cuda_store_listed(gumbel_device *device, const gumbel_problem *listing,
                                const gumbel_problem *asked, const gumbel_output *output,
                                float *rows, int64_t stride, void *workspace, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device,
                    .params.output = *output,
                    .kept = rows,
                    .kept_stride = stride,
                    .error = error};
    gumbel_problem own = *listing;
    cuda_plan plan;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_plan_stored(&plan, job.cuda, listing, error));
    begin(&job, &plan, &own, workspace);
    job.params.problem = *asked;
    GUMBEL_FORWARD(cuda_enter(job.cuda, error));
    gumbel_status status = store(&job, &plan);
    job.cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

gumbel_status cuda_multiply(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                            gumbel_error *error)
{
    cuda_job job = {0};
    return start(&job, device, problem, GUMBEL_NEED_PRODUCT, workspace, error);
}

gumbel_status cuda_store(gumbel_device *device, const gumbel_problem *problem, float *logits,
                         int64_t stride, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params = {.logits_out = logits, .logits_out_stride = stride}};
    GUMBEL_ASSERT(problem->hidden_size > 0 && !problem->request && !problem->with_mass);
    if (problem->end_token <= problem->first_token)
        return GUMBEL_OK;
    return start(&job, device, problem, GUMBEL_NEED_PRODUCT, workspace, error);
}

gumbel_status cuda_process(gumbel_device *device, const gumbel_problem *problem, float *processed,
                           int64_t stride, void *workspace, gumbel_error *error)
{
    cuda_job job = {.processed = processed, .processed_stride = stride};
    return start(&job, device, problem, GUMBEL_NEED_ROWS, workspace, error);
}

/* The product's rows are edited where it stored them; no rung has to be chosen. */
gumbel_status cuda_edit(gumbel_device *device, const gumbel_problem *problem, float *rows,
                        int64_t stride, void *workspace, gumbel_error *error)
{
    static const cuda_plan no_rungs;
    cuda_job job = {.cuda = (cuda_device *)device, .error = error};
    gumbel_problem masked = cuda_masked(problem), *q = &job.params.problem;
    CUcontext popped;
    if (problem->hidden_size > 0) {
        gumbel_problem product = *problem;
        product.request = 0;
        product.with_mass = product.with_path = 0;
        GUMBEL_FORWARD(cuda_store(device, &product, rows, stride, workspace, error));
        if (!gumbel_problem_edits(problem))
            return GUMBEL_OK;
    }
    begin(&job, &no_rungs, &masked, workspace);
    if (q->hidden_size > 0)
        q->logits = cuda_rows_at(rows, q, stride);
    q->hidden_size = 0;
    GUMBEL_FORWARD(cuda_enter(job.cuda, error));
    gumbel_status status = cuda_run_allow(&job, problem);
    if (status == GUMBEL_OK)
        status = cuda_run_edit(&job, rows, stride);
    job.cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

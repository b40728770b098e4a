/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the kernels of outputs that follow a draw of rows: logits of listed tokens, entropies,
 * and best scores.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

int cuda_needs_entropy_launch(const gumbel_problem *p)
{
    const uint32_t processes =
        GUMBEL_FEATURE_TRANSFORMS | GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PROGRAM;
    return p->features & GUMBEL_FEATURE_ENTROPY &&
           (p->features & GUMBEL_FEATURE_RAW || !(p->features & processes) ||
            p->end_token <= p->first_token);
}

void cuda_carve_outputs(gumbel_cursor *cursor, const gumbel_problem *p, cuda_workspace *workspace)
{
    /* Logits that a product stored are overwritten. */
    const int has_best = (p->features & GUMBEL_FEATURE_BEST) != 0;
    const size_t rows = has_best && p->hidden_size == 0 ? (size_t)p->batch : 0;
    const size_t status = cuda_needs_entropy_launch(p) ? (size_t)p->batch : 0;
    workspace->processed_rows =
        gumbel_carve_array(cursor, rows, (size_t)cuda_row_stride(p), sizeof(float));
    workspace->row_status = gumbel_carve_array(cursor, status, 1, sizeof(int32_t));
}

static gumbel_status run_gather(const cuda_job *job)
{
    cuda_params p = job->params;
    void *arguments[] = {&p};
    int64_t ids = p.problem.batch * p.output.num_top;
    GUMBEL_ASSERT(ids > 0 && p.output.top_ids && p.output.top_logits);
    cuda_shape shape = {(ids + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS, 0, 1};
    return cuda_launch(job, job->cuda->gather, shape, arguments);
}

/* Compute entropies from the job's logits. */
static gumbel_status run_entropy(const cuda_job *job)
{
    const gumbel_problem *q = &job->params.problem;
    cuda_entropy_params p = {.problem = *q,
                             .inverse_cap = job->params.inverse_cap,
                             .transforms = !(q->features & GUMBEL_FEATURE_RAW),
                             .status = job->params.output.status,
                             .entropy = job->params.output.entropy};
    void *arguments[] = {&p};
    const int clusters = job->cuda->entropy_cluster != NULL;
    const int64_t ctas = clusters ? CUDA_CLUSTER_CTAS : 1;
    GUMBEL_ASSERT(p.status && p.entropy && q->hidden_size == 0);
    if (q->batch > INT32_MAX / ctas)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B is more than one call on CUDA takes");
    cuda_shape shape = {q->batch * ctas, CUDA_ENTROPY_THREADS, CUDA_ENTROPY_BYTES, 1};
    return cuda_launch(job, clusters ? job->cuda->entropy_cluster : job->cuda->entropy, shape,
                       arguments);
}

/* Find the best scores of rows of z. */
static gumbel_status run_best(const cuda_job *job, const float *z)
{
    cuda_best_params p = {.problem = job->params.problem,
                          .output = job->params.output,
                          .rows = z,
                          .stride = cuda_row_stride(&job->params.problem)};
    void *arguments[] = {&p};
    GUMBEL_ASSERT(z && (p.output.best_ids || p.output.best_scores) && p.output.tokens);
    cuda_shape shape = {p.problem.batch, CUDA_THREADS, CUDA_BEST_BYTES, 0};
    return cuda_launch(job, job->cuda->best, shape, arguments);
}

gumbel_status cuda_run_outputs(const cuda_job *job,
                               gumbel_status (*store_processed)(const cuda_job *job))
{
    const gumbel_problem *p = &job->params.problem;
    float *z = job->workspace.logits ? job->workspace.logits : job->workspace.processed_rows;
    /* These read logits, which z may overwrite. */
    if (p->features & GUMBEL_FEATURE_LOGITS)
        GUMBEL_FORWARD(run_gather(job));
    if (cuda_needs_entropy_launch(p))
        GUMBEL_FORWARD(run_entropy(job));
    if (!(p->features & GUMBEL_FEATURE_BEST))
        return GUMBEL_OK;
    cuda_job rows = *job;
    rows.processed = (gumbel_row_array){z, GUMBEL_FLOAT32, cuda_row_stride(p)};
    rows.params.output = (gumbel_output){.struct_size = sizeof rows.params.output};
    GUMBEL_FORWARD(store_processed(&rows));
    return run_best(job, z);
}

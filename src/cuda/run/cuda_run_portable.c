/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels that run on every GPU: the naive product, and draws from logits.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

/* Tokens from the start of the first token's block to end_token. */
static int64_t block_range(const gumbel_problem *p)
{
    return p->end_token - p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
}

gumbel_status cuda_run_naive(const cuda_job *job)
{
    cuda_params p = job->params;
    int64_t batch = p.problem.batch, groups = (batch + CUDA_NAIVE_ROWS - 1) / CUDA_NAIVE_ROWS;
    int64_t splits = cuda_max_splits((int64_t)job->cuda->multiprocessors * CUDA_NAIVE_CTAS, batch,
                                     p.problem.sampling.num_samples);
    p.split_size = cuda_split_size(block_range(&p.problem), splits, GUMBEL_BLOCK);
    p.splits = (int32_t)((block_range(&p.problem) + p.split_size - 1) / p.split_size);
    GUMBEL_ASSERT(p.split_size % GUMBEL_BLOCK == 0 && p.splits >= 1 && p.splits <= splits);
    GUMBEL_ASSERT((size_t)p.splits * (size_t)batch * (size_t)p.problem.sampling.num_samples <=
                  job->workspace.summaries_max);
    void *arguments[] = {&p};
    cuda_shape shape = {p.splits * groups, CUDA_THREADS, 0, 0};
    GUMBEL_FORWARD(cuda_launch(job, job->cuda->naive, shape, arguments));
    return cuda_launch_finish(job, &p);
}

gumbel_status cuda_run_empty(const cuda_job *job)
{
    cuda_params p = job->params;
    return cuda_launch_finish(job, &p);
}

/* Draw from logits by a kernel variant; `edits` applies masks and histories. */
static gumbel_status launch_draw(const cuda_job *job, int edits)
{
    cuda_params p = job->params;
    const gumbel_sampling *s = &p.problem.sampling;
    int64_t batch = p.problem.batch, range = block_range(&p.problem);
    int64_t groups = (s->num_samples + CUDA_LOGITS_SAMPLES - 1) / CUDA_LOGITS_SAMPLES;
    int64_t splits = cuda_max_splits((int64_t)job->cuda->multiprocessors * CUDA_LOGITS_CTAS, batch,
                                     s->num_samples);
    int mass = p.problem.with_mass != 0;
    cuda_dtype dtype = cuda_dtype_of(p.problem.logits.dtype);
    p.split_size = cuda_split_size(range, splits, CUDA_LOGITS_SPLIT_UNIT);
    p.splits = (int32_t)((range + p.split_size - 1) / p.split_size);
    GUMBEL_ASSERT(p.split_size % CUDA_LOGITS_SPLIT_UNIT == 0 && p.splits >= 1 &&
                  p.splits <= splits);
    GUMBEL_ASSERT((size_t)p.splits * (size_t)batch * (size_t)s->num_samples <=
                  job->workspace.summaries_max);
    p.tag = cuda_new_tag(job->cuda);
    void *arguments[] = {&p};
    cuda_shape shape = {p.splits * batch * groups, CUDA_LOGITS_THREADS,
                        cuda_logits_shared_bytes(mass, p.split_size, s->num_samples), 1};
    CUfunction kernel =
        edits ? job->cuda->logits_edited[dtype] : job->cuda->logits[dtype][mass][s->noise != NULL];
    return cuda_launch(job, kernel, shape, arguments);
}

gumbel_status cuda_run_draw(const cuda_job *job) { return launch_draw(job, 0); }

gumbel_status cuda_run_draw_edits(const cuda_job *job)
{
    return launch_draw(job, job->params.problem.features != 0);
}

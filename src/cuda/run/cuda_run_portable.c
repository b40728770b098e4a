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
    int64_t parts = cuda_max_parts((int64_t)job->cuda->multiprocessors * CUDA_NAIVE_CTAS, batch,
                                   p.problem.sampling.num_samples);
    p.chunk = cuda_chunk(block_range(&p.problem), parts, GUMBEL_BLOCK);
    p.parts = (int32_t)((block_range(&p.problem) + p.chunk - 1) / p.chunk);
    GUMBEL_ASSERT(p.chunk % GUMBEL_BLOCK == 0 && p.parts >= 1 && p.parts <= parts);
    GUMBEL_ASSERT((size_t)p.parts * (size_t)batch * (size_t)p.problem.sampling.num_samples <=
                  job->workspace.summaries_max);
    void *arguments[] = {&p};
    cuda_shape shape = {p.parts * groups, CUDA_THREADS, 0, 0};
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
    int64_t parts = cuda_max_parts((int64_t)job->cuda->multiprocessors * CUDA_LOGITS_CTAS, batch,
                                   s->num_samples);
    int mass = p.problem.with_mass != 0;
    cuda_dtype dtype = cuda_dtype_of(p.problem.logits.dtype);
    p.chunk = cuda_chunk(range, parts, CUDA_LOGITS_CHUNK);
    p.parts = (int32_t)((range + p.chunk - 1) / p.chunk);
    GUMBEL_ASSERT(p.chunk % CUDA_LOGITS_CHUNK == 0 && p.parts >= 1 && p.parts <= parts);
    GUMBEL_ASSERT((size_t)p.parts * (size_t)batch * (size_t)s->num_samples <=
                  job->workspace.summaries_max);
    p.tag = cuda_new_tag(job->cuda);
    void *arguments[] = {&p};
    cuda_shape shape = {p.parts * batch * groups, CUDA_LOGITS_THREADS,
                        cuda_logits_shared_bytes(mass, p.chunk, s->num_samples), 1};
    CUfunction kernel =
        edits ? job->cuda->logits_edited[dtype] : job->cuda->logits[dtype][mass][s->noise != NULL];
    return cuda_launch(job, kernel, shape, arguments);
}

gumbel_status cuda_run_draw(const cuda_job *job) { return launch_draw(job, 0); }

gumbel_status cuda_run_draw_edits(const cuda_job *job)
{
    return launch_draw(job, job->params.problem.features != 0);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a request where there are clusters: from few of their blocks by a CTA each, and what is
 * left by a cluster each; or drawn before they are cut.
 */
#include "core/fail.h"
#include "maths/edits.h"
#include "cuda/run/cuda_run.h"

/* --------------------------------------------------------------------------------- teams ---- */

int64_t cuda_team_bytes(const gumbel_problem *p)
{
    return CUDA_CLUSTER_SHARED_BYTES +
           cuda_cluster_slice(cuda_range_of(p)) * (int64_t)sizeof(float);
}

/* Clusters for rows of which there mostly is none, at most. */
#define FEW 64

/* Where rows may have been served already, as many clusters as keep the GPU busy look for those
 * that are left; where there mostly is none, three quarters of those that run at once. */
static gumbel_status run_clusters(const cuda_job *job, cuda_request_params *p)
{
    const gumbel_problem *q = &p->problem;
    int64_t clusters = q->batch;
    if (p->row_states)
        clusters =
            cuda_fallback_clusters(clusters, job->cuda->multiprocessors, p->has_block_maxima != 0);
    else if (job->mostly_none)
        clusters =
            cuda_fallback_clusters(clusters < FEW ? clusters : FEW, job->cuda->multiprocessors, 1);
    p->parts = CUDA_REQUEST_CLUSTER;
    p->chunk = cuda_cluster_slice(cuda_range_of(q));
    GUMBEL_ASSERT(p->chunk * CUDA_REQUEST_CLUSTER >= cuda_range_of(q));
    GUMBEL_ASSERT(clusters >= 1 && clusters <= q->batch);
    GUMBEL_ASSERT(cuda_team_bytes(q) <= job->cuda->shared_bytes);
    return cuda_launch_rows(job, p, clusters, job->cuda->request_cluster, CUDA_REQUEST_THREADS,
                            (int)cuda_team_bytes(q), 1);
}

gumbel_status cuda_run_team(const cuda_job *job)
{
    cuda_request_params p = cuda_request_of(job);
    return run_clusters(job, &p);
}

gumbel_status cuda_run_left(const cuda_job *job)
{
    cuda_request_params p = cuda_request_of(job);
    p.row_states = job->workspace.row_states;
    p.has_block_maxima = 1; /* as behind these */
    GUMBEL_ASSERT(p.row_states);
    return run_clusters(job, &p);
}

/* -------------------------------------------------------------------------------- blocks ---- */

void cuda_carve_blocks(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    (void)cuda;
    size_t batch = (size_t)p->batch;
    workspace->peaks = gumbel_carve(cursor, batch, (size_t)cuda_blocks_of(p), sizeof(float));
    workspace->row_states = gumbel_carve(cursor, batch, 1, sizeof(int32_t));
    workspace->counters =
        gumbel_carve(cursor, batch, CUDA_THRESHOLD_WORDS, sizeof *workspace->counters);
}

void cuda_carve_bounded(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                        cuda_workspace *workspace)
{
    size_t blocks = (size_t)cuda_blocks_of(p), rows = 32 * (size_t)gumbel_words_of(p->batch);
    cuda_carve_blocks(cursor, cuda, p, workspace);
    workspace->stored_subtiles =
        gumbel_carve(cursor, blocks, rows, sizeof *workspace->stored_subtiles);
    if (p->request & GUMBEL_REQUEST_PENALTIES)
        workspace->unseen_block_maxima =
            gumbel_carve(cursor, (size_t)p->batch, blocks, sizeof *workspace->unseen_block_maxima);
}

void cuda_find_blocks(const cuda_job *job, cuda_request_params *p)
{
    const cuda_workspace *workspace = &job->workspace;
    p->blocks = cuda_blocks_of(&p->problem);
    p->block_maxima = workspace->peaks;
    p->has_block_maxima = (job->handed & CUDA_HANDS_PEAKS) != 0;
    if (job->handed & CUDA_HANDS_STRIPS) {
        p->stored_subtiles = workspace->stored_subtiles;
        p->unseen_block_maxima = workspace->unseen_block_maxima;
        p->row_thresholds = workspace->floors;
    }
    GUMBEL_ASSERT(p->blocks >= 1 && p->block_maxima);
    GUMBEL_ASSERT(!(job->handed & CUDA_HANDS_STRIPS) || p->stored_subtiles);
    GUMBEL_ASSERT(cuda_request_blocks_bytes(p->blocks) <= CUDA_REQUEST_BLOCKS_BYTES);
}

gumbel_status cuda_run_blocks(const cuda_job *job)
{
    cuda_request_params p = cuda_request_of(job);
    const gumbel_problem *q = &p.problem;
    if (job->mostly_none)
        return run_clusters(job, &p);
    cuda_find_blocks(job, &p);
    const CUfunction kernel =
        p.stored_subtiles ? job->cuda->request_bounded : job->cuda->request_blocks;
    p.row_states = job->workspace.row_states;
    p.counters = job->workspace.counters;
    p.tag = cuda_tag(job->cuda);
    p.chunk = p.blocks;
    if (!p.has_block_maxima)
        p.chunk = cuda_blocks_per_part(p.blocks, q->batch, job->cuda->multiprocessors);
    p.parts = (int32_t)((p.blocks + p.chunk - 1) / p.chunk);
    GUMBEL_ASSERT(p.chunk >= 1 && p.parts >= 1 && p.row_states && p.counters);
    GUMBEL_FORWARD(cuda_launch_rows(job, &p, q->batch, kernel, CUDA_REQUEST_THREADS,
                                    (int)cuda_request_blocks_bytes(p.blocks), 1));
    return run_clusters(job, &p);
}

/* -------------------------------------------------------------------------------- pivots ---- */

int64_t cuda_pivot_parts(const gumbel_problem *p)
{
    return cuda_request_pivot_parts(cuda_range_of(p));
}

static size_t exchange_words(const gumbel_problem *p)
{
    return (size_t)cuda_request_exchange_words(p->batch, cuda_pivot_parts(p));
}

void cuda_carve_pivots(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    (void)cuda;
    workspace->exchange = gumbel_carve(cursor, exchange_words(p), 1, sizeof *workspace->exchange);
}

void cuda_clear_exchange(cuda_params *draw, const cuda_workspace *workspace)
{
    draw->zero_after_draw = workspace->exchange;
    draw->zero_after_draw_words = (int64_t)exchange_words(&draw->problem);
}

/* By a plain draw, unless the product has made it, and pivots from its tokens on. */
gumbel_status cuda_run_pivots(const cuda_job *job)
{
    cuda_request_params p = cuda_request_of(job);
    cuda_job draw = *job;
    draw.params.problem.request = 0;
    cuda_clear_exchange(&draw.params, &job->workspace);
    if (!(job->handed & CUDA_HANDS_DRAWS))
        GUMBEL_FORWARD(cuda_run_logits(&draw));
    p.exchange = job->workspace.exchange;
    p.parts = (int32_t)cuda_pivot_parts(&p.problem);
    GUMBEL_ASSERT(p.exchange && p.parts >= 1);
    return cuda_launch_rows(job, &p, p.problem.batch, job->cuda->request_pivots,
                            CUDA_REQUEST_PIVOT_THREADS, CUDA_REQUEST_PIVOT_BYTES, 1);
}

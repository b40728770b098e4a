/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels that truncate rows on GPUs with thread-block clusters: a CTA a row from few
 * blocks, with fallback rows drawn by a cluster each; a cluster a row; or rows drawn before they
 * are truncated. Kernels that draw by programs take cuda_program_params, whose first member is the
 * call.
 */
#include "core/fail.h"
#include "maths/edits.h"
#include "cuda/run/cuda_run.h"

#include <string.h>

/* ------------------------------------------------------------------------------- clusters ---- */

int64_t cuda_cluster_bytes(const gumbel_problem *p)
{
    return CUDA_CLUSTER_SHARED_BYTES +
           cuda_cluster_slice(cuda_range_of(p)) * (int64_t)sizeof(float);
}

/* Maximum clusters if few rows are expected. */
#define FEW_ROWS_CLUSTERS 64

/* The number of clusters if few rows of the batch need one. */
static int64_t count_few_clusters(const cuda_job *job)
{
    const int64_t batch = job->params.problem.batch;
    return cuda_fallback_clusters(batch < FEW_ROWS_CLUSTERS ? batch : FEW_ROWS_CLUSTERS,
                                  job->cuda->multiprocessors, 1);
}

/* Launch clusters, which loop over the rows of the batch that they have to serve. */
static gumbel_status launch_some_clusters(const cuda_job *job, cuda_truncated_params *p,
                                          CUfunction kernel, int64_t clusters)
{
    const gumbel_problem *q = &p->problem;
    p->splits = CUDA_CLUSTER_CTAS;
    p->split_size = cuda_cluster_slice(cuda_range_of(q));
    GUMBEL_ASSERT(p->split_size * CUDA_CLUSTER_CTAS >= cuda_range_of(q));
    GUMBEL_ASSERT(clusters >= 1 && clusters <= q->batch);
    GUMBEL_ASSERT(cuda_cluster_bytes(q) <= job->cuda->shared_bytes);
    return cuda_launch_rows(job, p, clusters, kernel, CUDA_TRUNCATED_THREADS,
                            (int)cuda_cluster_bytes(q), 1);
}

/* Launch a cluster for each row; if most rows are resolved already or few are live, fewer. */
static gumbel_status launch_clusters(const cuda_job *job, cuda_truncated_params *p,
                                     CUfunction kernel)
{
    int64_t clusters = p->problem.batch;
    if (p->row_states)
        clusters =
            cuda_fallback_clusters(clusters, job->cuda->multiprocessors, p->has_block_maxima != 0);
    else if (job->expect_few_live_rows)
        clusters = count_few_clusters(job);
    return launch_some_clusters(job, p, kernel, clusters);
}

gumbel_status cuda_run_cluster(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    return launch_clusters(job, &p, job->cuda->truncated_cluster);
}

gumbel_status cuda_run_fallback_rows(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    p.row_states = job->workspace.row_states;
    p.has_block_maxima = 1; /* as after a product that stores them */
    GUMBEL_ASSERT(p.row_states);
    return launch_clusters(job, &p, job->cuda->truncated_cluster);
}

cuda_program_params cuda_get_program_params(const cuda_job *job)
{
    cuda_program_params p = {.call = cuda_get_truncated_params(job)};
    const gumbel_programs *programs = &p.call.problem.programs;
    memcpy(p.rules, programs->rules, (size_t)programs->count * GUMBEL_PROGRAM_LENGTH);
    GUMBEL_ASSERT(p.call.problem.features & GUMBEL_FEATURE_PROGRAM);
    return p;
}

gumbel_status cuda_run_program(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    return launch_clusters(job, &p.call, job->cuda->program_cluster);
}

/* --------------------------------------------------------------------------------- blocks ---- */

void cuda_carve_blocks(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    (void)cuda;
    size_t batch = (size_t)p->batch;
    workspace->block_maxima =
        gumbel_carve_array(cursor, batch, (size_t)cuda_blocks_of(p), sizeof(float));
    workspace->row_states = gumbel_carve_array(cursor, batch, 1, sizeof(int32_t));
    workspace->counters =
        gumbel_carve_array(cursor, batch, CUDA_THRESHOLD_WORDS, sizeof *workspace->counters);
}

void cuda_carve_bounded(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                        cuda_workspace *workspace)
{
    size_t blocks = (size_t)cuda_blocks_of(p), rows = 32 * (size_t)gumbel_mask_words_of(p->batch);
    cuda_carve_blocks(cursor, cuda, p, workspace);
    workspace->stored_subtiles =
        gumbel_carve_array(cursor, blocks, rows, sizeof *workspace->stored_subtiles);
    if (p->features & GUMBEL_FEATURE_PENALTIES)
        workspace->unseen_block_maxima = gumbel_carve_array(cursor, (size_t)p->batch, blocks,
                                                            sizeof *workspace->unseen_block_maxima);
}

void cuda_set_blocks(const cuda_job *job, cuda_truncated_params *p)
{
    const cuda_workspace *workspace = &job->workspace;
    p->blocks = cuda_blocks_of(&p->problem);
    p->block_maxima = workspace->block_maxima;
    p->has_block_maxima = (job->product_outputs & CUDA_OUTPUT_BLOCK_MAXIMA) != 0;
    if (job->product_outputs & CUDA_OUTPUT_SUBTILES) {
        p->stored_subtiles = workspace->stored_subtiles;
        p->unseen_block_maxima = workspace->unseen_block_maxima;
        p->row_thresholds = workspace->row_thresholds;
    }
    GUMBEL_ASSERT(p->blocks >= 1 && p->block_maxima);
    GUMBEL_ASSERT(!(job->product_outputs & CUDA_OUTPUT_SUBTILES) || p->stored_subtiles);
    GUMBEL_ASSERT(cuda_blocks_bytes(p->blocks) <= CUDA_BLOCKS_BYTES_MAX);
}

gumbel_status cuda_launch_blocks(const cuda_job *job, cuda_truncated_params *p, CUfunction kernel)
{
    const gumbel_problem *q = &p->problem;
    cuda_set_blocks(job, p);
    p->row_states = job->workspace.row_states;
    p->counters = job->workspace.counters;
    p->tag = cuda_new_tag(job->cuda);
    p->split_size = p->blocks;
    if (!p->has_block_maxima)
        p->split_size = cuda_blocks_per_split(p->blocks, q->batch, job->cuda->multiprocessors);
    p->splits = (int32_t)((p->blocks + p->split_size - 1) / p->split_size);
    GUMBEL_ASSERT(p->split_size >= 1 && p->splits >= 1 && p->row_states && p->counters);
    return cuda_launch_rows(job, p, q->batch, kernel, CUDA_TRUNCATED_THREADS,
                            (int)cuda_blocks_bytes(p->blocks), 1);
}

gumbel_status cuda_run_blocks(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    GUMBEL_FORWARD(cuda_launch_blocks(job, &p, job->cuda->truncated_blocks));
    return launch_clusters(job, &p, job->cuda->truncated_cluster);
}

gumbel_status cuda_run_bounded(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    GUMBEL_ASSERT(job->product_outputs & CUDA_OUTPUT_SUBTILES);
    GUMBEL_FORWARD(cuda_launch_blocks(job, &p, job->cuda->truncated_bounded));
    return launch_clusters(job, &p, job->cuda->truncated_cluster);
}

gumbel_status cuda_run_program_blocks(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    GUMBEL_FORWARD(cuda_launch_blocks(job, &p.call, job->cuda->program_blocks));
    return launch_clusters(job, &p.call, job->cuda->program_cluster);
}

/* --------------------------------------------------------------------------------- pivots ---- */

int64_t cuda_count_pivot_splits(const gumbel_problem *p)
{
    return cuda_pivot_splits(cuda_range_of(p));
}

size_t cuda_count_pivot_words(const gumbel_problem *p)
{
    return (size_t)cuda_pivot_exchange_words(p->batch, cuda_count_pivot_splits(p));
}

void cuda_carve_pivots(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    (void)cuda;
    workspace->exchange =
        gumbel_carve_array(cursor, cuda_count_pivot_words(p), 1, sizeof *workspace->exchange);
}

void cuda_zero_exchange(cuda_params *draw, const cuda_workspace *workspace)
{
    draw->zero_after_draw = workspace->exchange;
    draw->zero_after_draw_words = (int64_t)cuda_count_pivot_words(&draw->problem);
}

gumbel_status cuda_launch_pivots(const cuda_job *job, cuda_truncated_params *p, CUfunction kernel)
{
    cuda_job draw = *job;
    draw.params.problem.features = 0;
    cuda_zero_exchange(&draw.params, &job->workspace);
    if (!(job->product_outputs & CUDA_OUTPUT_DRAWS))
        GUMBEL_FORWARD(cuda_run_draw(&draw));
    p->exchange = job->workspace.exchange;
    p->row_states = job->workspace.row_states;
    p->splits = (int32_t)cuda_count_pivot_splits(&p->problem);
    GUMBEL_ASSERT(p->exchange && p->splits >= 1);
    return cuda_launch_rows(job, p, p->problem.batch, kernel, CUDA_PIVOT_THREADS, CUDA_PIVOT_BYTES,
                            1);
}

gumbel_status cuda_run_pivots(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    return cuda_launch_pivots(job, &p, job->cuda->truncated_pivots);
}

void cuda_carve_program_pivots(gumbel_cursor *cursor, const cuda_device *cuda,
                               const gumbel_problem *p, cuda_workspace *workspace)
{
    cuda_carve_pivots(cursor, cuda, p, workspace);
    workspace->row_states = gumbel_carve_array(cursor, (size_t)p->batch, 1, sizeof(int32_t));
}

gumbel_status cuda_run_program_pivots(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    GUMBEL_FORWARD(cuda_launch_pivots(job, &p.call, job->cuda->program_pivots));
    return launch_some_clusters(job, &p.call, job->cuda->program_cluster, count_few_clusters(job));
}

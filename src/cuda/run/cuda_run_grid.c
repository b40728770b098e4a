/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels that hold a row in the shared memory of several CTAs on GPUs without clusters:
 * cooperative launches, whose groups of CTAs loop over the rows of the batch. They serve all rows,
 * or the fallback rows of kernels that try each row first, as clusters do (cuda_run_cluster.c).
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

int64_t cuda_grid_bytes(const gumbel_problem *p)
{
    return CUDA_CLUSTER_SHARED_BYTES + cuda_grid_slice(cuda_range_of(p)) * (int64_t)sizeof(float);
}

/* The number of groups that registers and shared memory allow, at most one a row. */
static int64_t count_groups_max(const cuda_device *cuda, const gumbel_problem *p)
{
    const int64_t rows =
        cuda_grid_rows(cuda_grid_bytes(p), cuda->multiprocessors, cuda->shared_bytes);
    return p->batch < rows ? p->batch : rows;
}

/* Words of the exchanges of a launch. */
static size_t count_grid_words(const cuda_device *cuda, const gumbel_problem *p)
{
    return (size_t)count_groups_max(cuda, p) * (CUDA_GRID_STEP_WORDS + CUDA_GRID_MEMORY_WORDS);
}

void cuda_carve_grid(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                     cuda_workspace *workspace)
{
    workspace->exchange =
        gumbel_carve_array(cursor, count_grid_words(cuda, p), 1, sizeof *workspace->exchange);
}

void cuda_carve_blocks_grid(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                            cuda_workspace *workspace)
{
    cuda_carve_blocks(cursor, cuda, p, workspace);
    cuda_carve_grid(cursor, cuda, p, workspace);
}

/* The pivots' exchanges have ended when those of the cooperative launch begin. */
void cuda_carve_pivots_grid(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                            cuda_workspace *workspace)
{
    const size_t pivots = cuda_count_pivot_words(p), grid = count_grid_words(cuda, p);
    workspace->exchange =
        gumbel_carve_array(cursor, pivots > grid ? pivots : grid, 1, sizeof *workspace->exchange);
    workspace->row_states = gumbel_carve_array(cursor, (size_t)p->batch, 1, sizeof(int32_t));
}

/* Set the number of groups of a launch: as many as the driver runs at the same time. */
static gumbel_status count_groups(const cuda_job *job, const gumbel_problem *p, CUfunction kernel,
                                  int64_t *groups)
{
    int ctas = 0;
    CUDA_TRY(&job->cuda->driver, job->error, cuOccupancyMaxActiveBlocksPerMultiprocessor, &ctas,
             kernel, CUDA_TRUNCATED_THREADS, (size_t)cuda_grid_bytes(p));
    const int64_t resident = (int64_t)ctas * job->cuda->multiprocessors / CUDA_GRID_CTAS;
    const int64_t max_groups = count_groups_max(job->cuda, p);
    *groups = resident < max_groups ? resident : max_groups;
    if (*groups < 1)
        return gumbel_fail(job->error, GUMBEL_ERROR_DEVICE, "device",
                           "the GPU runs %d CTAs of a row at the same time, and %d are required; "
                           "open it with the rungs '-blocks-grid,-grid,-program-blocks-grid,"
                           "-program-pivots-grid,-program-grid'",
                           ctas * job->cuda->multiprocessors, CUDA_GRID_CTAS);
    return GUMBEL_OK;
}

/* Zero the words of all steps and launch groups of CTAs. A memset precedes each launch, also in a
 * replay of a captured graph: a workspace may hold anything, even the words of a call that was
 * interrupted. *p is the kernel's argument, or its beginning. */
static gumbel_status launch_grid(const cuda_job *job, cuda_truncated_params *p, CUfunction kernel)
{
    const gumbel_problem *q = &p->problem;
    int64_t groups = 0;
    GUMBEL_FORWARD(count_groups(job, q, kernel, &groups));
    p->splits = CUDA_GRID_CTAS;
    p->split_size = cuda_grid_slice(cuda_range_of(q));
    p->exchange = job->workspace.exchange;
    GUMBEL_ASSERT(p->split_size * CUDA_GRID_CTAS >= cuda_range_of(q));
    GUMBEL_ASSERT(p->exchange);
    GUMBEL_ASSERT(q->hidden_size == 0 && q->logits.data && q->logits.stride >= q->vocab);
    GUMBEL_ASSERT(!p->processed || p->processed_stride >= q->vocab);
    CUDA_TRY(&job->cuda->driver, job->error, cuMemsetD32Async, (CUdeviceptr)p->exchange, 0,
             (size_t)groups * CUDA_GRID_STEP_WORDS * 2, job->stream);
    void *arguments[] = {p};
    const cuda_shape shape = {groups * CUDA_GRID_CTAS, CUDA_TRUNCATED_THREADS,
                              (int)cuda_grid_bytes(q), 0};
    return cuda_launch_cooperatively(job, kernel, shape, arguments);
}

gumbel_status cuda_run_grid(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    return launch_grid(job, &p, job->cuda->truncated_grid);
}

gumbel_status cuda_run_program_grid(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    return launch_grid(job, &p.call, job->cuda->program_grid);
}

gumbel_status cuda_run_blocks_grid(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    GUMBEL_FORWARD(cuda_launch_blocks(job, &p, job->cuda->truncated_blocks));
    return launch_grid(job, &p, job->cuda->truncated_grid);
}

gumbel_status cuda_run_program_blocks_grid(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    GUMBEL_FORWARD(cuda_launch_blocks(job, &p.call, job->cuda->program_blocks));
    return launch_grid(job, &p.call, job->cuda->program_grid);
}

gumbel_status cuda_run_program_pivots_grid(const cuda_job *job)
{
    cuda_program_params p = cuda_get_program_params(job);
    GUMBEL_FORWARD(cuda_launch_pivots(job, &p.call, job->cuda->program_pivots));
    return launch_grid(job, &p.call, job->cuda->program_grid);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels that hold a row in the shared memory of several CTAs on GPUs without clusters:
 * cooperative launches, whose groups of CTAs loop over the rows of the batch.
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

void cuda_carve_grid(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                     cuda_workspace *workspace)
{
    workspace->exchange = gumbel_carve_array(cursor, (size_t)count_groups_max(cuda, p),
                                             CUDA_GRID_STEP_WORDS + CUDA_GRID_MEMORY_WORDS,
                                             sizeof *workspace->exchange);
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
                           "open it with the rungs '-grid,-program-grid'",
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
    GUMBEL_ASSERT(p->exchange && !p->row_states);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the portable fused kernels, with the vocabulary split among CTAs: one launch for each
 * group of rows, or for several groups with a wide kernel.
 */
#include "core/fail.h"
#include "cuda/policy/wide_policy.h"
#include "cuda/run/cuda_run.h"

static int64_t count_units(const gumbel_problem *p, int64_t unit)
{
    return (p->end_token - p->first_token / unit * unit + unit - 1) / unit;
}

static gumbel_status launch_kernel(const cuda_job *job, cuda_params *p, CUfunction kernel,
                                   cuda_shape shape)
{
    void *arguments[] = {p};
    GUMBEL_ASSERT(p->splits >= 1 && shape.shared_bytes <= job->cuda->shared_bytes);
    GUMBEL_ASSERT((size_t)p->splits * (size_t)p->problem.batch *
                      (size_t)p->problem.sampling.num_samples <=
                  job->workspace.summaries_max);
    p->tag = cuda_new_tag(job->cuda);
    GUMBEL_FORWARD(cuda_launch(job, kernel, shape, arguments));
    return cuda_launch_finish(job, p);
}

/* Draws for rows that one CTA's width holds. */
static gumbel_status launch_narrow(const cuda_job *job, cuda_params *p)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *q = &p->problem;
    const int mixed = cuda_sm80_is_mixed(q), width = cuda_sm80_width_for(q->batch);
    const int n = cuda_sm80_widths[width];
    const int bytes = cuda_sm80_shared_bytes(n, q->sampling.num_samples, q->with_mass, mixed);
    const int64_t ctas =
        cuda->multiprocessors * cuda_sm80_ctas(n, cuda->shared_bytes, bytes, mixed);
    const int64_t units = count_units(q, CUDA_SM80_WARP_TILE);
    const cuda_dtype dtype = cuda_dtype_of(q->weight.dtype);
    const cuda_shape shape = {units < ctas ? units : ctas, CUDA_SM80_THREADS, bytes, 0};
    GUMBEL_ASSERT(q->batch <= n);
    p->splits = (int32_t)shape.ctas;
    return launch_kernel(job, p, mixed ? cuda->mixed_sm80[dtype] : cuda->fused_sm80[dtype][width],
                         shape);
}

/* Draws for one or more groups of rows; `index` is of cuda_wide_kernels. */
static gumbel_status launch_wide(const cuda_job *job, cuda_params *p, int index)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *q = &p->problem;
    const cuda_wide_kernel k = cuda_wide_kernels[index];
    const int samples = q->sampling.num_samples;
    const int64_t groups = (q->batch + k.columns - 1) / k.columns;
    const int64_t ctas = cuda->multiprocessors > groups ? cuda->multiprocessors / groups : 1;
    const int64_t units = count_units(q, CUDA_WIDE_WARP_TILE);
    p->splits = (int32_t)(units < ctas ? units : ctas);
    p->stages = cuda_wide_stages(k, samples, q->with_mass, cuda->shared_bytes);
    const cuda_shape shape = {p->splits * groups, CUDA_WIDE_THREADS,
                              cuda_wide_bytes(k, samples, q->with_mass, p->stages), 0};
    return launch_kernel(job, p, cuda->wide_sm80[cuda_dtype_of(q->weight.dtype)][index], shape);
}

gumbel_status cuda_run_sm80(const cuda_job *job)
{
    const gumbel_problem *whole = &job->params.problem;
    const int64_t narrow_rows = cuda_sm80_rows_of(whole, job->cuda->shared_bytes);
    int64_t rows;
    for (int64_t first = 0; first < whole->batch; first += rows) {
        const int64_t remaining = whole->batch - first;
        const int wide = cuda_wide_kernel_for(whole, remaining, job->cuda->shared_bytes);
        const int64_t most =
            wide < 0 ? narrow_rows : CUDA_WIDE_GROUPS_MAX * cuda_wide_kernels[wide].columns;
        rows = remaining < most ? remaining : most;
        cuda_params p = cuda_select_rows(&job->params, first, rows);
        GUMBEL_FORWARD(wide < 0 ? launch_narrow(job, &p) : launch_wide(job, &p, wide));
    }
    return GUMBEL_OK;
}

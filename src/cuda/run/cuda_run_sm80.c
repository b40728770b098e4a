/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the portable fused kernel: one launch for each group of rows, with the vocabulary split
 * among CTAs.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_run_sm80(const cuda_job *job)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *whole = &job->params.problem;
    int samples = whole->sampling.num_samples, mixed = cuda_sm80_is_mixed(whole);
    int max_rows = cuda_sm80_max_rows(samples, mixed);
    int64_t origin = whole->first_token / CUDA_SM80_WARP_TILE * CUDA_SM80_WARP_TILE;
    int64_t warp_tiles =
        (whole->end_token - origin + CUDA_SM80_WARP_TILE - 1) / CUDA_SM80_WARP_TILE;
    GUMBEL_ASSERT(max_rows > 0 && warp_tiles > 0);
    for (int64_t first = 0; first < whole->batch; first += max_rows) {
        int64_t rows = whole->batch - first < max_rows ? whole->batch - first : max_rows;
        int width = cuda_sm80_width_for(rows), n = cuda_sm80_widths[width];
        int bytes = cuda_sm80_shared_bytes(n, samples, whole->with_mass, mixed);
        int64_t ctas = cuda->multiprocessors * cuda_sm80_ctas(n, cuda->shared_bytes, bytes, mixed);
        cuda_params p = cuda_select_rows(&job->params, first, rows);
        p.splits = (int32_t)(warp_tiles < ctas ? warp_tiles : ctas);
        GUMBEL_ASSERT(rows <= n && bytes <= cuda->shared_bytes && p.splits >= 1);
        GUMBEL_ASSERT((size_t)p.splits * (size_t)rows * (size_t)samples <=
                      job->workspace.summaries_max);
        p.tag = cuda_new_tag(cuda);
        void *arguments[] = {&p};
        cuda_shape shape = {p.splits, CUDA_SM80_THREADS, bytes, 0};
        cuda_dtype dtype = cuda_dtype_of(whole->weight.dtype);
        CUfunction kernel = mixed ? cuda->mixed_sm80[dtype] : cuda->fused_sm80[dtype][width];
        GUMBEL_FORWARD(cuda_launch(job, kernel, shape, arguments));
        GUMBEL_FORWARD(cuda_launch_finish(job, &p));
    }
    return GUMBEL_OK;
}

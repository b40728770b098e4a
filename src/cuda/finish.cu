/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   merges the summaries of all parts of a row and writes the outputs, or the merged
 * summaries.
 * COST   48 bytes a part, row and sample, from the second-level cache.
 * MAP    a CTA of 128 threads a row and sample; threads merge every 128th part, then a tree.
 */
#include "cuda/cuda_params.h"
#include "cuda/cuda_policy.h"
#include "cuda/ptx.cuh"

#include "core/summary.h"

namespace
{

constexpr int kThreads = 128;

__device__ void write_output(const cuda_params &p, const gumbel_summary &s, int64_t b, int64_t at,
                             bool first)
{
    const gumbel_output &out = p.output;
    gumbel_row_status status = gumbel_summary_status(&s);
    bool ok = status == GUMBEL_ROW_OK;
    float lse = ok && (out.lse || out.logprobs) ? gumbel_summary_lse(&s) : NAN;
    out.tokens[at] = ok ? s.best_id : -1;
    if (out.logprobs)
        out.logprobs[at] = ok ? s.best_z - lse : NAN;
    if (out.scores)
        out.scores[at] = ok ? s.best_score : NAN;
    if (first && out.lse)
        out.lse[b] = lse;
    if (first && out.status)
        out.status[b] = (int32_t)status;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_finish_rows(const __grid_constant__ cuda_params p)
{
    __shared__ gumbel_summary merged[kThreads];
    int samples = p.problem.sampling.num_samples;
    int64_t at = blockIdx.x, count = p.problem.batch * samples;
    gumbel_summary own;
    gumbel_summary_empty(&own);
    ptx_wait_for_launch();
    for (int part = threadIdx.x; part < p.parts; part += kThreads)
        gumbel_summary_merge(&own, &p.summaries[part * count + at]);
    merged[threadIdx.x] = own;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            gumbel_summary_merge(&merged[threadIdx.x], &merged[threadIdx.x + half]);
    }
    if (threadIdx.x != 0)
        return;
    if (!gumbel_problem_row_valid(&p.problem, at / samples))
        merged[0].flags |= GUMBEL_FLAG_TEMPERATURE;
    if (p.shared_floors)
        p.shared_floors[CUDA_FLOOR_WORDS * at] = 0;
    if (p.partials)
        p.partials[at] = merged[0];
    else
        write_output(p, merged[0], at / samples, at, at % samples == 0);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   gathers the logits of the most likely tokens by their ids.
 * COST   10 or 12 bytes an id: the id, the logit in its dtype, the result; a launch.
 * MAP    a thread an id. For id -1 the result is -inf, or NaN in a row without a token.
 */
#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/widen.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_gather_logits(const __grid_constant__ cuda_params p)
{
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    int64_t at = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x, b = at / out.num_top;
    ptx_wait_for_launch();
    if (b >= q.batch)
        return;
    int32_t id = out.top_ids[at];
    if (id >= 0)
        out.top_logits[at] =
            widen_element(q.logits.data, q.logits.dtype, b * q.logits.stride + id - q.first_token);
    else
        out.top_logits[at] = out.top_ids[b * out.num_top] < 0 ? NAN : -INFINITY;
}

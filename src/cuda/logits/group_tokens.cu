/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   grouped draws of the FlashSampling paper (part_draw.h), whose caller has drawn a token
 *        from each part of a vocabulary. gumbel_draw_group_tokens draws a part of each row by its
 *        log-mass, and returns the part's token. gumbel_update_stream_draws adds one part to
 *        streaming draws.
 * COST   reads 4 bytes a part and row, shared by all draws of the row; two Philox blocks and two
 *        logarithms a part and draw, or four of each a streaming draw; a launch.
 * MAP    many parts: a warp a draw, lane l takes parts l, l + 32, ...; streaming: a thread a draw.
 * SYNC   no warp waits for another; lanes of a warp exchange results by shuffles.
 * NUMERICS  the host's bits (part_draw.h). Masses are summed part by part, redundantly in all
 *        lanes.
 */
#include "core/row.h"
#include "cuda/common/cuda_parts.h"
#include "cuda/common/ptx.cuh"
#include "cuda/policy/cuda_policy.h"
#include "gumbel/dist.h"
#include "maths/part_draw.h"

namespace
{

/* Merges the best of the lane at XOR distance `lanes`. */
__device__ void offer_from_lane(gumbel_summary &best, int lanes)
{
    const float score = __shfl_xor_sync(~0u, best.best_score, lanes);
    const float z = __shfl_xor_sync(~0u, best.best_z, lanes);
    const int32_t id = __shfl_xor_sync(~0u, best.best_id, lanes);
    if (id >= 0)
        gumbel_summary_offer(&best, score, z, id);
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_PARTS_THREADS)
    gumbel_draw_group_tokens(const __grid_constant__ cuda_parts_params p)
{
    const gumbel_problem &q = p.problem;
    const int lane = threadIdx.x % 32;
    const int64_t samples = q.sampling.num_samples, draws = q.batch * samples;
    const int64_t at = (int64_t)blockIdx.x * (CUDA_PARTS_THREADS / 32) + threadIdx.x / 32,
                  b = at / samples;
    if (at >= draws)
        return;
    const bool first = at % samples == 0, with_mass = first && p.lse;
    gumbel_stream stream = gumbel_problem_row(&q, b).stream;
    stream.sample += (uint32_t)(at % samples);
    gumbel_summary best;
    gumbel_summary_empty(&best);
    double log_mass = -INFINITY;
    uint32_t flags = gumbel_problem_row_flags(&q, b);
    for (int32_t base = 0; base < p.parts; base += 32) {
        const int32_t part = base + lane;
        const float l = part < p.parts ? p.log_masses[part * q.batch + b] : -INFINITY;
        flags |= gumbel_mass_flags(l);
        if (l > -INFINITY)
            gumbel_summary_offer_part(&best, stream, part, l);
        for (int i = 0; with_mass && i < 32 && base + i < p.parts; i++)
            log_mass = gumbel_log_add_exp(log_mass, __shfl_sync(~0u, l, i));
    }
    best.flags = __reduce_or_sync(~0u, flags);
    for (int lanes = 16; lanes > 0; lanes /= 2)
        offer_from_lane(best, lanes);
    const gumbel_row_status status = gumbel_summary_status(&best);
    if (lane != 0)
        return;
    const int32_t part = status == GUMBEL_ROW_OK ? best.best_id : -1;
    p.drawn[at] = part < 0 ? -1 : p.tokens[part * draws + at];
    if (p.which)
        p.which[at] = part;
    if (with_mass)
        p.lse[b] = status == GUMBEL_ROW_OK ? (float)log_mass : NAN;
    if (first && p.status)
        p.status[b] = (int32_t)status;
}

extern "C" __global__ void __launch_bounds__(CUDA_PARTS_THREADS)
    gumbel_update_stream_draws(const __grid_constant__ cuda_parts_params p)
{
    const gumbel_problem &q = p.problem;
    const int64_t samples = q.sampling.num_samples;
    const int64_t at = (int64_t)blockIdx.x * CUDA_PARTS_THREADS + threadIdx.x, b = at / samples;
    if (b >= q.batch || gumbel_problem_row_flags(&q, b))
        return;
    gumbel_stream stream = gumbel_problem_row(&q, b).stream;
    stream.sample += (uint32_t)(at % samples);
    const float l = p.log_masses[b];
    gumbel_stream_draw d = p.draws[at];
    d.flags |= gumbel_mass_flags(l);
    if (d.flags) {
        d.token = -1;
    } else if (l > -INFINITY) {
        if (d.token < 0 || gumbel_stream_chooses_part(stream, p.parts, l, d.log_mass))
            d.token = p.tokens[at];
        d.log_mass = gumbel_log_add_exp(d.log_mass, l);
    }
    p.draws[at] = d;
}

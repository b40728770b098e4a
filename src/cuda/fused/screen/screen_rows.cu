/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the end of a screened draw of rows that are cut: from the logits of the tokens that are
 *        scored of a row, which hold all that can matter, its cut, its draws, and whatever else is
 *        asked of it. A row with too many of these is left, and each is where the screen does not
 *        tell the call.
 * COST   some 8 us of a CTA, as request_shortlist.cuh has it.
 * MAP    a CTA a row, a thread a token or two.
 * SMEM   as a team's (request_shared.cuh).
 * SYNC   describes its row while candidates are still scored. The full pass behind waits for the
 *        end of this launch, and so does what serves rows from its logits.
 * NUMERICS  those of the naive kernel, bit for bit: logits are the full product's.
 */
#include "cuda/fused/screen/screen_params.h"
#include "cuda/request/few/request_shortlist.cuh"

#include "cuda/common/row_thresholds.cuh"

namespace
{

constexpr int kEach = CUDA_SCREEN_EXACT_MAX / kThreads;
static_assert(kEach * kThreads == CUDA_SCREEN_EXACT_MAX, "all are looked at");

/* Describe row b, by two threads side by side, and begin with it; before a barrier. */
__device__ __forceinline__ void describe_cut_row(const gumbel_problem &q, int64_t b)
{
    if (threadIdx.x == 0) {
        set_draw(shared().row, q, b);
        shared().count = 0;
    }
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b);
        const gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        set_rules(shared().row, greedy ? without_cuts(rules) : rules);
    }
}

/* What is told of row b, and its tokens, of which nothing waits for another load. */
struct told_row {
    uint2 tokens[kEach];
    uint64_t counts, least;
    uint32_t again;

    __device__ __forceinline__ told_row(const cuda_screen_rows &p, int64_t b)
    {
        const cuda_screen_exact *exact = &p.exact[b * CUDA_SCREEN_EXACT_MAX + threadIdx.x];
        const uint64_t *words = &p.row_thresholds[CUDA_THRESHOLD_WORDS * b];
        again = __ldcg(&p.state->again);
        counts = load_threshold(&words[CUDA_TRUNCATED_COUNTS]);
        least = load_threshold(&words[CUDA_TRUNCATED_FIRST_THRESHOLD]);
#pragma unroll
        for (int i = 0; i < kEach; i++)
            tokens[i] = __ldcg((const uint2 *)(exact + i * kThreads));
    }
    __device__ __forceinline__ uint32_t scored() const { return (uint32_t)(counts >> 32); }
};

/* Put the tokens that may matter in the list, and tell whether one is infinite; for all threads.
 * Behind a barrier, and ends with one. */
__device__ __forceinline__ bool bring_tokens(const cuda_screen_rows &p, const told_row &told)
{
    const float least =
        told.least >> THRESHOLD_BITS == p.tag ? unpack_threshold(told.least) : -INFINITY;
    const request_row &row = shared().row;
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool infinite = false;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const float logit = __uint_as_float(told.tokens[i].x);
        const float y = scaled_logit(shared().call, logit);
        if (threadIdx.x + i * kThreads >= told.scored() || logit < least)
            continue;
        infinite |= !(values.z(y) < INFINITY);
        if (isnan(values.z(y))) /* of weights that changed since the screen was made */
            atomicOr(&shared().row.flags, GUMBEL_FLAG_NAN);
        if (!(values.z(y) > -INFINITY))
            continue;
        const uint32_t at = atomicAdd(&shared().count, 1);
        if (at < kShortlist)
            shared().bench.list[at] = {y, (int32_t)told.tokens[i].y};
    }
    return __syncthreads_or(infinite);
}

/* Say by a thread whether row b is left. */
__device__ __forceinline__ void tell_left(const cuda_screen_rows &p, int64_t b, bool left)
{
    p.left[b] = left;
    p.request.row_states[b] = left ? CUDA_ROW_FALLBACK_AFTER : CUDA_ROW_SERVED;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_REQUEST_CTAS)
    gumbel_screen_cut(const __grid_constant__ cuda_screen_rows p)
{
    const int64_t b = blockIdx.x;
    ptx_allow_launch();
    const cuda_request_params &call = bring_call(p.request);
    __syncthreads();
    describe_cut_row(call.problem, b);
    ptx_wait_for_launch();
    const told_row told(p, b);
    __syncthreads();
    const bool infinite = bring_tokens(p, told);
    const int count = (int)shared().count;
    const bool left = told.again || told.scored() > CUDA_SCREEN_EXACT_MAX || count > kShortlist;
    if (threadIdx.x == 0)
        tell_left(p, b, left);
    if (left)
        return;
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = shared().row.flags | (infinite ? GUMBEL_FLAG_INFINITE : 0);
    seen.best_id = count > 0 ? 0 : -1;
    serve_shortlist(b, count, seen, seen, nullptr); /* no raw mass is asked for */
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws by a cluster, before a row is truncated (cluster_pivot.cuh, program_pivot.cuh), from the
 * tokens that a filter accepts (pivot_filters.cuh).
 */
#ifndef GUMBEL_CUDA_PIVOT_DRAW_CUH
#define GUMBEL_CUDA_PIVOT_DRAW_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/truncated/cluster/cluster_offers.cuh"
#include "cuda/truncated/row/pivot.cuh"
#include "cuda/truncated/row/pivot_filters.cuh"

namespace
{

/* Whether a row requests only one token, drawn with the row's own noise, and keeps all ties at the
 * cutoff. The tokens above a token then determine whether each rule keeps it. */
__device__ __forceinline__ bool pivots_apply(const cuda_truncated_params &p,
                                             const truncated_row &row)
{
    const gumbel_output &out = p.output;
    const gumbel_problem &q = p.problem;
    const bool further = out.lse || out.logprobs || out.top_logprobs || out.ranks || out.kept ||
                         (q.features & GUMBEL_FEATURE_TOP) || needs_entropy(p);
    return !p.processed && !p.partials && !further && q.sampling.num_samples == 1 &&
           !q.sampling.noise && !row.draw.greedy && !row.rules.exact;
}

/* Result of one draw. */
struct pivot_draw {
    uint32_t flags;   /* of all values of the row */
    uint32_t highest; /* key of the largest y of the row */
    uint32_t offered; /* tokens queued by the CTA with the most */
    draw_winner best;

    static __device__ __forceinline__ pivot_draw empty() { return {0, 0, 0, draw_winner_none()}; }
    __device__ __forceinline__ void join_warp()
    {
        flags = __reduce_or_sync(~0u, flags);
        highest = __reduce_max_sync(~0u, highest);
        offered = __reduce_max_sync(~0u, offered);
        best = draw_winner_of_warp(best);
    }
};

/* Writes the token of row b, by the leader's first warp. */
__device__ __forceinline__ void write_winner(const cuda_truncated_params &p, int64_t b,
                                             const draw_winner &winner)
{
    row_result r = {};
    r.status = GUMBEL_ROW_OK;
    if (leads_cluster() && threadIdx.x < 32)
        write_draw(p, r, b, b, winner, -1);
}

/* z of a token with y; -inf if the filter does not accept it. */
template <class Filter>
__device__ __forceinline__ float filter_z(float y, logit_values values, const Filter &filter)
{
    return filter.accepts_value(y * values.scale()) ? values.to_z(y) : -INFINITY;
}

/* z of four tokens of a slice from `place` on, as filter_z(). */
template <class Filter>
__device__ __forceinline__ four load_accepted(const slice_source &source, int place,
                                              logit_values values, const Filter &filter)
{
    const float4 y = load_quad(source, place);
    return {filter_z(y.x, values, filter), filter_z(y.y, values, filter),
            filter_z(y.z, values, filter), filter_z(y.w, values, filter)};
}

/* A score that the row reaches: the largest lower bound on the scores of the tokens J
 * (cluster_offers.cuh) that the filter accepts, of all slices. With a threshold for each slice,
 * eight times as many tokens would pass, which takes the slowest warp of the cluster 5 us; the
 * exchange takes 1 us. */
template <class Filter>
__device__ __forceinline__ float find_cluster_threshold(const slice_source &source,
                                                        const turn_blocks &blocks,
                                                        logit_values values, const Filter &filter)
{
    const int64_t at = blocks.most_likely() - source.begin;
    const float y = at < source.size ? slice_logits()[at] : -INFINITY;
    const float bound =
        draw_score_bound_of_word(false, filter_z(y, values, filter), blocks.block.r);
    return ordered_float(
        join_cluster(joined_key{ordered_bits(draw_score_bound_of_warp(bound))}).value);
}

/* Draws from the tokens of the row that the filter accepts. Only the largest token of a quad is
 * tested unless the quad may win. The caller must have called reset_offers(), then a barrier. */
template <class Filter>
__device__ __noinline__ pivot_draw draw_accepted(slice_source source, logit_values values,
                                                 Filter filter)
{
    constexpr int stride = 4 * kThreads;
    const draw_philox philox = draw_philox_of(shared_state().row.draw.stream);
    const uint32_t first = (uint32_t)source.begin + threadIdx.x / 32 * 128;
    float highest = -INFINITY;
    turn_blocks blocks = turn_blocks::from_philox(philox, first, stride);
    const float threshold = find_cluster_threshold(source, blocks, values, filter);
#pragma unroll 1
    for (int turn = 0, at = 4 * threadIdx.x; at - 4 * (int)(threadIdx.x % 32) < source.size;
         turn++, at += stride) {
        if (turn > 0 && turn % kTurns == 0)
            blocks = turn_blocks::from_philox(philox, first + turn * stride, stride);
        const float reach = blocks.reach_of(turn);
        const float4 y = load_quad(source, at);
        const float high = largest_of({y.x, y.y, y.z, y.w});
        const float top = Filter::is_monotone
                              ? filter_z(high, values, filter)
                              : largest_of(load_accepted(source, at, values, filter));
        highest = ptx_max_nan(highest, high);
        if (!__any_sync(~0u,
                        top > -INFINITY && draw_passes_bound(top, draw_bound(threshold, reach))))
            continue;
        const four z = load_accepted(source, at, values, filter);
        const uint32_t id = (uint32_t)source.begin + at;
#pragma unroll 1
        for (uint32_t may = find_winners(philox, id, z.v, reach, threshold); may; may &= may - 1) {
            const int i = __ffs(may) - 1;
            offer_token(draw_select_of_four(z.v, i), (int32_t)id + i);
        }
    }
    __syncthreads();
    const float z = values.to_z(highest);
    const uint32_t flags = flags_of_z(z);
    pivot_draw own = {flags, 0, shared_state().offered, score_offers()};
    own.highest = z > -INFINITY ? gumbel_key_of_value(highest) : 0;
    return join_cluster(own);
}

/* The value of a winner; if z does not determine it, read from the CTA that holds the token. */
__device__ __forceinline__ float value_of_winner(const slice_source &source, logit_values values,
                                                 const draw_winner &winner)
{
    if (!values.before)
        return winner.z;
    int place = winner.id - (int)source.begin + cluster_rank() * source.size;
    return values.to_value(load_from_slice(place / source.size, place % source.size));
}

} // namespace

#endif

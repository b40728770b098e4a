/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that are drawn before they are truncated. The winner of a draw from a superset of the kept
 * set is the row's token if the rules keep it, and the tokens above it determine that. If the rules
 * drop the winner, they drop all tokens at or below it, and the winner among the tokens above it,
 * the pivot, is next. The noise stays the same, so the token equals that of truncation followed by
 * a draw. FlashInfer searches by pivots with fresh noise.
 *
 * A nucleus sums about 150,000 masses, of which floats determine 13 bits. Where these do not
 * decide, about one winner in 4000, another path serves the row.
 *
 * COST   top_p alone: a pass that draws and a pass that sums, each with a barrier of the cluster;
 *        at top_p = 0.95, one row in twenty repeats both. top_k: a pass that lists the tokens that
 *        may be kept, and two barriers a round.
 */
#ifndef GUMBEL_CUDA_CLUSTER_PIVOT_CUH
#define GUMBEL_CUDA_CLUSTER_PIVOT_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/truncated/row/pivot.cuh"
#include "cuda/truncated/cluster/cluster_offers.cuh"

namespace
{

/* Maximum number of winners tried: a fifth is as rare as (1 - top_p)^4 / 24. */
constexpr int kPivots = 4;
/* Smallest top_p: rows take 1 - ln(top_p) rounds of two passes each. */
constexpr float kPivotTopP = 0.7f;
/* Largest top_k for which CTAs can usually list all tokens that may be kept. */
constexpr int64_t kListedTarget = kClusterCtas * kOffers / 2;

/* Whether a row requests only one token, drawn with its own noise, and keeps all ties at the
 * cutoff: then the tokens above a token determine whether each rule keeps it. */
__device__ __forceinline__ bool pivots_apply(const cuda_truncated_params &p,
                                             const truncated_row &row)
{
    const gumbel_output &out = p.output;
    const gumbel_problem &q = p.problem;
    const bool further = out.lse || out.logprobs || out.top_logprobs || out.ranks || out.kept ||
                         (q.features & GUMBEL_FEATURE_TOP);
    return !p.processed && !p.partials && !further && q.sampling.num_samples == 1 &&
           !q.sampling.noise && !row.draw.greedy && !row.rules.exact;
}

/* Whether pivots among all tokens can serve a row: top_p is its only rule. */
__device__ __forceinline__ bool can_serve_by_pivots(const cuda_truncated_params &p,
                                                    const truncated_row &row)
{
    const float top_p = row.rules.top_p;
    return pivots_apply(p, row) && top_p < 1.0f && top_p >= kPivotTopP &&
           !truncates_by_value(row.rules);
}

/* Whether pivots among few tokens can serve a row: it has a top_k, and a top_p only jointly. */
__device__ __forceinline__ bool can_serve_few_by_pivots(const cuda_truncated_params &p,
                                                        const truncated_row &row)
{
    const gumbel_rules &r = row.rules;
    return pivots_apply(p, row) && r.top_k > 0 && r.top_k <= kListedTarget &&
           (r.joint || !(r.top_p < 1.0f));
}

/* Facts and winner of one draw. */
struct pivot_draw {
    uint32_t flags, highest; /* key of the largest y */
    uint32_t offered;        /* tokens queued by the CTA with the most */
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

/* ----------------------------------------------------------------------- among all tokens ---- */

/* z of four tokens of a slice from `place` on; -inf for tokens that are not above the pivot. */
__device__ __forceinline__ four load_above(const slice_source &source, int place,
                                           logit_values values, float pivot)
{
    const float4 raw = load_quad(source, place);
    const float y[4] = {raw.x, raw.y, raw.z, raw.w};
    four z;
#pragma unroll
    for (int i = 0; i < 4; i++)
        z.v[i] = y[i] * values.scale() > pivot ? values.to_z(y[i]) : -INFINITY;
    return z;
}

/* Raises the threshold by the J of the warp's blocks that lie above the pivot. */
__device__ __forceinline__ void raise_by_blocks(const slice_source &source,
                                                const turn_blocks &blocks, logit_values values,
                                                float pivot)
{
    const int64_t at = blocks.most_likely() - source.begin;
    const float y = at < source.size ? slice_logits()[at] : -INFINITY;
    const float z = y * values.scale() > pivot ? values.to_z(y) : -INFINITY;
    raise_slice_threshold(draw_score_bound_of_word(false, z, blocks.block.r));
}

/* Draws from the tokens of the row with a value above the pivot. Only the largest token of a quad
 * is tested unless the quad may win. After reset_offers() and a barrier. */
__device__ __noinline__ pivot_draw draw_above(slice_source source, logit_values values, float pivot)
{
    constexpr int stride = 4 * kThreads;
    const float scale = values.scale();
    const draw_philox philox = draw_philox_of(shared_state().row.draw.stream);
    const uint32_t first = (uint32_t)source.begin + threadIdx.x / 32 * 128;
    float highest = -INFINITY;
    turn_blocks blocks = turn_blocks::from_philox(philox, first, stride);
    raise_by_blocks(source, blocks, values, pivot);
    __syncthreads();
    const float threshold = ordered_float(shared_state().threshold);
#pragma unroll 1
    for (int turn = 0, at = 4 * threadIdx.x; at - 4 * (int)(threadIdx.x % 32) < source.size;
         turn++, at += stride) {
        if (turn > 0 && turn % kTurns == 0)
            blocks = turn_blocks::from_philox(philox, first + turn * stride, stride);
        const float reach = blocks.reach_of(turn);
        const float4 y = load_quad(source, at);
        const float high = largest_of({y.x, y.y, y.z, y.w});
        const float top = high * scale > pivot ? values.to_z(high) : -INFINITY;
        highest = ptx_max_nan(highest, high);
        if (!__any_sync(~0u,
                        top > -INFINITY && draw_passes_bound(top, draw_bound(threshold, reach))))
            continue;
        const four z = load_above(source, at, values, pivot);
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

/* Sums the masses of the tokens above the pivot, and of all tokens. */
__device__ __noinline__ pivot_sums sum_masses_above(slice_source source, float scale, float largest,
                                                    float pivot)
{
    pivot_sums own = pivot_sums::empty();
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 raw = load_quad(source, at);
        const float y[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = y[i] * scale, mass = pivot_sums::mass_of(v, largest);
            own.all += mass;
            own.mass += v > pivot ? mass : 0.0f;
        }
    }
    return join_cluster(own);
}

/* The value of a winner; if z does not determine it, from the CTA that holds the token. */
__device__ __forceinline__ float value_of_winner(const slice_source &source, logit_values values,
                                                 const draw_winner &winner)
{
    if (!values.before)
        return winner.z;
    int place = winner.id - (int)source.begin + cluster_rank() * source.size;
    return values.to_value(map_to_rank(slice_logits(), place / source.size)[place % source.size]);
}

/* Serves a row with top_p alone; returns false if another path has to. By all threads of the
 * cluster, after reset_offers() and a barrier of the cluster. */
__device__ __noinline__ bool serve_by_pivots(const cuda_truncated_params &p, slice_source source,
                                             int64_t b)
{
    const truncated_row &row = shared_state().row;
    const logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    float pivot = -INFINITY;
#pragma unroll 1
    for (int round = 0; round < kPivots; round++) {
        const pivot_draw found = draw_above(source, values, pivot);
        if (found.flags || row.flags || found.offered > kOffers || found.best.id < 0)
            return false;
        pivot = value_of_winner(source, values, found.best);
        const float largest = values.to_value(gumbel_value_of_key(found.highest));
        const pivot_verdict verdict = determine_pivot_verdict(
            row.rules, sum_masses_above(source, values.scale(), largest, pivot));
        if (verdict == PIVOT_KEPT)
            write_winner(p, b, found.best);
        if (verdict != PIVOT_TRUNCATED)
            return verdict == PIVOT_KEPT;
        if (threadIdx.x == 0)
            reset_offers();
        __syncthreads();
    }
    return false;
}

/* ----------------------------------------------------------------------- among few tokens ---- */

/* Queues the tokens of this slice with a value of at least `min_value`, with y instead of z.
 * Returns this thread's sum of masses, if requested. */
template <bool with_mass>
__device__ __noinline__ float list_tokens(slice_source source, float scale, float largest,
                                          float min_value)
{
    float all = 0.0f;
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 raw = load_quad(source, at);
        const float y[4] = {raw.x, raw.y, raw.z, raw.w};
        uint32_t hits = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = y[i] * scale;
            hits |= (uint32_t)(v >= min_value) << i;
            all += with_mass ? pivot_sums::mass_of(v, largest) : 0.0f;
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            int place = at + __ffs(hits) - 1;
            offer_token(slice_logits()[place], (int32_t)source.begin + place);
        }
    }
    __syncthreads();
    return all;
}

/* Serves a row with top_k from a list that holds all tokens that may be kept, at most one per
 * thread, each scored once; returns false if another path has to. By all threads of the cluster,
 * after reset_offers() and a barrier. */
__device__ __noinline__ bool serve_few_by_pivots(const cuda_truncated_params &p,
                                                 slice_source source, row_facts facts, int64_t b,
                                                 const gumbel_summary &seen)
{
    const truncated_row &row = shared_state().row;
    const logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    const float largest = values.to_value(gumbel_value_of_key(facts.highest)),
                scale = values.scale();
    const float min_value = fmaxf(gumbel_min_p_bound(largest, row.log_min_p),
                                  values.to_value(gumbel_value_of_key(facts.reached_key)));
    if (gumbel_summary_status(&seen) != GUMBEL_ROW_OK || facts.reached_key == 0)
        return false;
    const float all = row.rules.top_p < 1.0f
                          ? list_tokens<true>(source, scale, largest, min_value)
                          : list_tokens<false>(source, scale, largest, min_value);
    const uint32_t offered = shared_state().offered;
    cuda_candidate own = {-INFINITY, -1};
    float score = -INFINITY, pivot = -INFINITY;
    if (threadIdx.x < min(offered, (uint32_t)kOffers)) {
        own = shared_state().scratch.offers[threadIdx.x];
        score = values.to_z(own.y) + draw_token_noise_noinline(row.draw.stream, (uint32_t)own.id);
    }
    const float v = own.y * scale, mass = pivot_sums::mass_of(v, largest);
#pragma unroll 1
    for (int round = 0; round < kPivots; round++) {
        pivot_draw found = {0, 0, offered, draw_winner_none()};
        if (v > pivot)
            found.best = {score, own.y, own.id};
        found = join_cluster(found);
        if (found.offered > kOffers || found.best.id < 0)
            return false;
        pivot = found.best.z * scale;
        const pivot_sums above = {v > pivot, v > pivot ? mass : 0.0f, all};
        const pivot_verdict verdict = determine_pivot_verdict(row.rules, join_cluster(above));
        found.best.z = values.to_z(found.best.z);
        if (verdict == PIVOT_KEPT)
            write_winner(p, b, found.best);
        if (verdict != PIVOT_TRUNCATED)
            return verdict == PIVOT_KEPT;
    }
    return false;
}

} // namespace

#endif

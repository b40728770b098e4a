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

#include "cuda/truncated/cluster/pivot_draw.cuh"

namespace
{

/* Smallest top_p: rows take 1 - ln(top_p) rounds of two passes each. */
constexpr float kPivotTopP = 0.7f;
/* Largest top_k for which CTAs can usually list all tokens that may be kept. */
constexpr int64_t kListedTarget = kClusterCtas * kOffers / 2;

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

/* ----------------------------------------------------------------------- among all tokens ---- */

/* Sums the masses of the tokens above the pivot, and of all tokens. */
__device__ __noinline__ pivot_sums sum_masses_above(slice_source source, float scale, float largest,
                                                    float pivot)
{
    pivot_sums own = pivot_sums::empty();
    each_own_y(source, [&](float y) {
        const float v = y * scale, mass = pivot_sums::mass_of(v, largest);
        own.all += mass;
        own.mass += v > pivot ? mass : 0.0f;
    });
    return join_cluster(own);
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
        const pivot_draw found = draw_accepted(source, values, values_above{pivot});
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * A row that is drawn before it is cut: the winner among tokens of which none that may stay is
 * missing is the row's, if it stays itself, and what lies above it tells that. If it goes, nothing
 * at or below it stays, and the winner above it, the pivot, is next. The noise is the same each
 * time, so the token is the one that a cut and then a draw give; a search by pivots with fresh
 * noise is FlashInfer's.
 *
 * A nucleus is a sum of some 150,000 masses, of which floats know 13 bits for sure: where those do
 * not decide, as in one winner of 4000, the row is left to others.
 *
 * COST   of a top_p alone, a draw's pass over the share and one that weighs, with a barrier of the
 *        team behind each, and as much again in one row of twenty, where it is 0.95. Of a top_k, a
 *        pass that lists the tokens that may stay, and then two barriers a round.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_PIVOT_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_PIVOT_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/request/row/pivot.cuh"
#include "cuda/request/team/request_team_offers.cuh"

namespace
{

/* Winners of a row that are tried: a fifth one is as rare as (1 - top_p)^4 / 24. */
constexpr int kPivots = 4;
/* The least top_p: rows take 1 - ln(top_p) rounds of two passes each. */
constexpr float kPivotTopP = 0.7f;
/* The largest top_k of which CTAs can mostly list all tokens that may stay. */
constexpr int64_t kListedTarget = kRanks * kOffers / 2;

/* Whether no more than a token is asked for, by its own noise, and ties at the cut stay: then what
 * of all lies above a token tells whether it stays, if each rule looks at all. */
__device__ __forceinline__ bool takes_pivots(const cuda_request_params &p, const request_row &row)
{
    const gumbel_output &out = p.output;
    const gumbel_problem &q = p.problem;
    const bool further = out.lse || out.logprobs || out.top_logprobs || out.ranks || out.kept ||
                         (q.request & GUMBEL_REQUEST_TOP);
    return !p.processed && !p.partials && !further && q.sampling.num_samples == 1 &&
           !q.sampling.noise && !row.draw.greedy && !row.rules.exact;
}

/* Whether pivots among all tokens may serve a row: a top_p is its one rule. */
__device__ __forceinline__ bool can_pivot(const cuda_request_params &p, const request_row &row)
{
    const float top_p = row.rules.top_p;
    return takes_pivots(p, row) && top_p < 1.0f && top_p >= kPivotTopP && !cuts_by_value(row.rules);
}

/* Whether pivots among few tokens may: it has a top_k, and a top_p only beside that. */
__device__ __forceinline__ bool can_pivot_few(const cuda_request_params &p, const request_row &row)
{
    const gumbel_rules &r = row.rules;
    return takes_pivots(p, row) && r.top_k > 0 && r.top_k <= kListedTarget &&
           (r.joint || !(r.top_p < 1.0f));
}

/* What a draw has seen of a row, and the best token. */
struct pivot_draw {
    uint32_t flags, highest; /* key of the largest y */
    uint32_t offered;        /* tokens that had to be scored by the CTA that had most */
    draw_winner best;

    static __device__ __forceinline__ pivot_draw none() { return {0, 0, 0, draw_winner_none()}; }
    __device__ __forceinline__ void join_warp()
    {
        flags = __reduce_or_sync(~0u, flags);
        highest = __reduce_max_sync(~0u, highest);
        offered = __reduce_max_sync(~0u, offered);
        best = draw_winner_of_warp(best);
    }
};

/* End row b with its token, by the leader's first warp. */
__device__ __forceinline__ void write_winner(const cuda_request_params &p, int64_t b,
                                             const draw_winner &winner)
{
    request_result r = {};
    r.status = GUMBEL_ROW_OK;
    if (team_leads() && threadIdx.x < 32)
        write_draw(p, r, b, b, winner, -1);
}

/* ----------------------------------------------------------------------- among all tokens ---- */

/* z of the four tokens from a place of the share on, -inf for those that a pivot is not below. */
__device__ __forceinline__ four load_above(const share_source &source, int place,
                                           request_values values, float pivot)
{
    const float4 raw = load_quad(source, place);
    const float y[4] = {raw.x, raw.y, raw.z, raw.w};
    four z;
#pragma unroll
    for (int i = 0; i < 4; i++)
        z.v[i] = y[i] * values.scale() > pivot ? values.z(y[i]) : -INFINITY;
    return z;
}

/* Raise what is sure by J of the warp's blocks, where they lie above a pivot. */
__device__ __forceinline__ void raise_by_blocks(const share_source &source,
                                                const turn_blocks &blocks, request_values values,
                                                float pivot)
{
    const int64_t at = blocks.most_likely() - source.begin;
    const float y = at < source.size ? share()[at] : -INFINITY;
    const float z = y * values.scale() > pivot ? values.z(y) : -INFINITY;
    raise_sure(draw_score_bound_of_word(false, z, blocks.block.r));
}

/* Draw from the tokens of the row whose value lies above a pivot. Of a quad only the largest is
 * looked at, unless one of its tokens may win. Behind reset_offers() and a barrier. */
__device__ __noinline__ pivot_draw draw_above(share_source source, request_values values,
                                              float pivot)
{
    constexpr int stride = 4 * kThreads;
    const float scale = values.scale();
    const draw_philox philox = draw_philox_of(shared().row.draw.stream);
    const uint32_t first = (uint32_t)source.begin + threadIdx.x / 32 * 128;
    float highest = -INFINITY;
    turn_blocks blocks = turn_blocks::from_philox(philox, first, stride);
    raise_by_blocks(source, blocks, values, pivot);
    __syncthreads();
    const float sure = ordered_float(shared().sure);
#pragma unroll 1
    for (int turn = 0, at = 4 * threadIdx.x; at - 4 * (int)(threadIdx.x % 32) < source.size;
         turn++, at += stride) {
        if (turn > 0 && turn % kTurns == 0)
            blocks = turn_blocks::from_philox(philox, first + turn * stride, stride);
        const float reach = blocks.reach_of(turn);
        const float4 y = load_quad(source, at);
        const float high = largest_of({y.x, y.y, y.z, y.w});
        const float top = high * scale > pivot ? values.z(high) : -INFINITY;
        highest = ptx_max_nan(highest, high);
        if (!__any_sync(~0u, top > -INFINITY && draw_passes_bound(top, draw_bound(sure, reach))))
            continue;
        const four z = load_above(source, at, values, pivot);
        const uint32_t id = (uint32_t)source.begin + at;
#pragma unroll 1
        for (uint32_t may = find_winners(philox, id, z.v, reach, sure); may; may &= may - 1) {
            const int i = __ffs(may) - 1;
            offer_token(draw_select_of_four(z.v, i), (int32_t)id + i);
        }
    }
    __syncthreads();
    const float z = values.z(highest);
    const uint32_t flags = isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
    pivot_draw own = {flags, 0, shared().offered, score_offers()};
    own.highest = z > -INFINITY ? gumbel_key(highest) : 0;
    return team_over(own);
}

/* The masses of the tokens of the row whose value lies above a pivot, and of all. */
__device__ __noinline__ pivot_above weigh_above(share_source source, float scale, float largest,
                                                float pivot)
{
    pivot_above own = pivot_above::none();
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < source.size; at += 4 * kThreads) {
        const float4 raw = load_quad(source, at);
        const float y[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = y[i] * scale, mass = pivot_above::mass_of(v, largest);
            own.all += mass;
            own.mass += v > pivot ? mass : 0.0f;
        }
    }
    return team_over(own);
}

/* The value of a token of the row, by whichever CTA has it where z does not tell. */
__device__ __forceinline__ float value_of_winner(const share_source &source, request_values values,
                                                 const draw_winner &winner)
{
    if (!values.before)
        return winner.z;
    int place = winner.id - (int)source.begin + team_rank() * source.size;
    return values.of(team_at(share(), place / source.size)[place % source.size]);
}

/* Serve a row of a top_p alone; whether that served it. By all threads of the team, behind
 * reset_offers() and a barrier of the team. */
__device__ __noinline__ bool serve_by_pivots(const cuda_request_params &p, share_source source,
                                             int64_t b)
{
    const request_row &row = shared().row;
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    float pivot = -INFINITY;
#pragma unroll 1
    for (int round = 0; round < kPivots; round++) {
        const pivot_draw found = draw_above(source, values, pivot);
        if (found.flags || row.flags || found.offered > kOffers || found.best.id < 0)
            return false;
        pivot = value_of_winner(source, values, found.best);
        const float largest = values.of(gumbel_of_key(found.highest));
        const pivot_verdict verdict =
            judge_pivot(row.rules, weigh_above(source, values.scale(), largest, pivot));
        if (verdict == PIVOT_STAYS)
            write_winner(p, b, found.best);
        if (verdict != PIVOT_GOES)
            return verdict == PIVOT_STAYS;
        if (threadIdx.x == 0)
            reset_offers();
        __syncthreads();
    }
    return false;
}

/* ----------------------------------------------------------------------- among few tokens ---- */

/* Offer the tokens of this share whose value reaches `least`, with y in the place of z; the mass of
 * all its tokens, if that is wanted. */
template <bool weighs>
__device__ __noinline__ float list_tokens(share_source source, float scale, float largest,
                                          float least)
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
            hits |= (uint32_t)(v >= least) << i;
            all += weighs ? pivot_above::mass_of(v, largest) : 0.0f;
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            int place = at + __ffs(hits) - 1;
            offer_token(share()[place], (int32_t)source.begin + place);
        }
    }
    __syncthreads();
    return all;
}

/* Serve a row of a top_k, of whose tokens a list has all that may stay: at most one a thread, of
 * which each is scored once; whether that served it. By all threads of the team, behind
 * reset_offers() and a barrier. */
__device__ __noinline__ bool serve_few_by_pivots(const cuda_request_params &p, share_source source,
                                                 team_facts facts, int64_t b,
                                                 const gumbel_summary &seen)
{
    const request_row &row = shared().row;
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    const float largest = values.of(gumbel_of_key(facts.highest)), scale = values.scale();
    const float least =
        fmaxf(gumbel_min_p_bound(largest, row.log_min_p), values.of(gumbel_of_key(facts.reached)));
    if (gumbel_summary_status(&seen) != GUMBEL_ROW_OK || facts.reached == 0)
        return false;
    const float all = row.rules.top_p < 1.0f ? list_tokens<true>(source, scale, largest, least)
                                             : list_tokens<false>(source, scale, largest, least);
    const uint32_t offered = shared().offered;
    cuda_candidate own = {-INFINITY, -1};
    float score = -INFINITY, pivot = -INFINITY;
    if (threadIdx.x < min(offered, (uint32_t)kOffers)) {
        own = shared().bench.offers[threadIdx.x];
        score = values.z(own.y) + draw_token_noise_noinline(row.draw.stream, (uint32_t)own.id);
    }
    const float v = own.y * scale, mass = pivot_above::mass_of(v, largest);
#pragma unroll 1
    for (int round = 0; round < kPivots; round++) {
        pivot_draw found = {0, 0, offered, draw_winner_none()};
        if (v > pivot)
            found.best = {score, own.y, own.id};
        found = team_over(found);
        if (found.offered > kOffers || found.best.id < 0)
            return false;
        pivot = found.best.z * scale;
        const pivot_above above = {v > pivot, v > pivot ? mass : 0.0f, all};
        const pivot_verdict verdict = judge_pivot(row.rules, team_over(above));
        found.best.z = values.z(found.best.z);
        if (verdict == PIVOT_STAYS)
            write_winner(p, b, found.best);
        if (verdict != PIVOT_GOES)
            return verdict == PIVOT_STAYS;
    }
    return false;
}

} // namespace

#endif

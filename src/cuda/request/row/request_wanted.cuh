/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a row's largest tokens its request wants, and how many of its blocks may hold them.
 */
#ifndef GUMBEL_CUDA_REQUEST_WANTED_CUH
#define GUMBEL_CUDA_REQUEST_WANTED_CUH

#include "cuda/request/row/request_row.cuh"

namespace
{

/* The product keeps bounds where a token below one has a smaller z than those that reach it,
 * whatever is rounded: of rows that scale logits by a factor between 1 / kScaleMost and kScaleMost.
 */
constexpr float kScaleMost = 0x1p60f;

/* How the rules look at a token: its value, z or y; NaN for one that cannot be drawn. */
struct request_values {
    float inverse_temperature;
    bool before;

    __device__ __forceinline__ float z(float y) const { return y * inverse_temperature; }

    /* The value of a y of 1. */
    __device__ __forceinline__ float scale() const { return before ? 1.0f : inverse_temperature; }

    __device__ __forceinline__ float of(float y) const
    {
        float own = z(y);
        return own > -INFINITY ? (before ? y : own) : NAN;
    }
};

/* What a row must be screened for. */
struct request_wanted {
    uint32_t target; /* tokens that the bound must leave; 0: it comes from min_p alone */
    float log_min_p; /* -inf: it comes from the target alone */
    bool both;       /* what either leaves is wanted; else what both leave */

    /* The z that a token must reach to be wanted, where the target's last one has z `nth` and the
     * largest value is known. */
    __device__ __forceinline__ float bound(float nth, request_values values, float largest) const
    {
        float by_min_p = gumbel_min_p_bound(largest, log_min_p);
        if (values.before)
            by_min_p = values.z(by_min_p);
        if (target == 0)
            return by_min_p;
        if (log_min_p == -INFINITY)
            return nth;
        return both ? fminf(nth, by_min_p) : fmaxf(nth, by_min_p);
    }
};

/* What the rules of a row and the most likely tokens want of it; `params` are a request's, or the
 * product's. */
template <class params>
__device__ __forceinline__ request_wanted wanted_of(const params &p, const request_row &row,
                                                    bool greedy)
{
    bool top = p.problem.request & GUMBEL_REQUEST_TOP;
    int64_t k = greedy ? 1 : row.rules.top_k;
    uint32_t target = (uint32_t)(top && p.output.num_top > k ? p.output.num_top : k);
    const bool by_k = k > 0 && (top || row.rules.last); /* all of the k are */
    return {target, by_k ? -INFINITY : row.log_min_p, k == 0 && top};
}

/* Whether candidates can serve a row, by its rules, and which are wanted. What is dropped has no
 * mass to tell. */
template <class params>
__device__ __forceinline__ bool can_screen(const params &p, const request_row &row, bool greedy,
                                           request_wanted &wanted)
{
    const gumbel_rules &rules = row.rules;
    const gumbel_output &out = p.output;
    bool mass =
        out.logprobs_of == GUMBEL_PROCESSED && (out.lse || out.logprobs || out.top_logprobs);
    int64_t k = greedy ? 1 : rules.top_k;
    wanted = wanted_of(p, row, greedy);
    if (p.partials || k > CUDA_REQUEST_TOP_MAX || (rules.joint && rules.top_p < 1.0f))
        return false;
    return greedy ? !mass && !out.kept : cuts_by_value(rules);
}

/* Whether nothing that edits a row raises a token above what its block's largest logit becomes. */
__device__ __forceinline__ bool edits_lower(const gumbel_problem &q, const request_row &row)
{
    return !row.lists && q.scale > 0.0f && (!row.edits.act || penalties_lower(row.edits.penalties));
}

/* Whether a block's largest logit bounds its tokens. */
__device__ __forceinline__ bool blocks_bound(const gumbel_problem &q, const request_row &row)
{
    return !row.flags && edits_lower(q, row);
}

/* Blocks whose largest logits a first guess goes by, where some of what they promise may be edited
 * away or not. */
__device__ __forceinline__ uint32_t blocks_guessed(uint32_t target, bool lowered)
{
    return lowered ? target + target / 4 + 8 : target;
}

/* Which of these stands for the largest token, by which min_p cuts: edits may take the first ones
 * away. Where the target cuts too, deeper ones add few blocks. */
__device__ __forceinline__ int top_guessed(uint32_t target, bool lowered)
{
    return !lowered ? 1 : target > 0 ? 4 : 2;
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of a row's largest tokens its truncation and outputs require, and how many blocks may hold
 * them.
 */
#ifndef GUMBEL_CUDA_REQUIRED_TOKENS_CUH
#define GUMBEL_CUDA_REQUIRED_TOKENS_CUH

#include "cuda/truncated/row/truncated_row.cuh"

namespace
{

/* Range of the scale, [1 / kScaleMax, kScaleMax], in which rounding keeps order: a token below a
 * bound of the product has a smaller z than the tokens that reach the bound. */
constexpr float kScaleMax = 0x1p60f;

/* Maps y to the value that the rules compare: z, or y with rules before temperature. NaN for a
 * token that cannot be drawn. */
struct logit_values {
    float inverse_temperature;
    bool before;

    __device__ __forceinline__ float to_z(float y) const { return y * inverse_temperature; }

    /* The value of y = 1. */
    __device__ __forceinline__ float scale() const { return before ? 1.0f : inverse_temperature; }

    __device__ __forceinline__ float to_value(float y) const
    {
        float own = to_z(y);
        return own > -INFINITY ? (before ? y : own) : NAN;
    }
};

/* Tokens that a candidate filter must keep. */
struct required_tokens {
    uint32_t target; /* the largest `target` tokens; 0: min_p alone applies */
    float log_min_p; /* -inf: the target alone applies */
    bool either;     /* keep tokens that pass either bound; otherwise both */

    /* The z that a required token reaches, where the target-th largest z is `nth`, and `largest` is
     * the largest value. */
    __device__ __forceinline__ float lower_bound(float nth, logit_values values,
                                                 float largest) const
    {
        float by_min_p = gumbel_min_p_bound(largest, log_min_p);
        if (values.before)
            by_min_p = values.to_z(by_min_p);
        if (target == 0)
            return by_min_p;
        if (log_min_p == -INFINITY)
            return nth;
        return either ? fminf(nth, by_min_p) : fmaxf(nth, by_min_p);
    }
};

/* Determines the required tokens of a row from its rules and num_top. `params` are
 * cuda_truncated_params or cuda_params. */
template <class params>
__device__ __forceinline__ required_tokens find_required_tokens(const params &p,
                                                                const truncated_row &row,
                                                                bool greedy)
{
    bool top = p.problem.features & GUMBEL_FEATURE_TOP;
    int64_t k = greedy ? 1 : row.rules.top_k;
    uint32_t target = (uint32_t)(top && p.output.num_top > k ? p.output.num_top : k);
    const bool by_k = k > 0 && (top || row.rules.last); /* all k tokens are required */
    return {target, by_k ? -INFINITY : row.log_min_p, k == 0 && top};
}

/* Whether a kernel writes the entropy of z over the kept set; that of raw logits has its own
 * launch. */
template <class params> __device__ __forceinline__ bool needs_entropy(const params &p)
{
    return p.output.entropy && !(p.problem.features & GUMBEL_FEATURE_RAW);
}

/* Whether candidates suffice to serve a row by its rules; sets the tokens that are required. The
 * mass of dropped tokens is unknown, so outputs that depend on it need another path. */
template <class params>
__device__ __forceinline__ bool candidates_suffice(const params &p, const truncated_row &row,
                                                   bool greedy, required_tokens &required)
{
    const gumbel_rules &rules = row.rules;
    const gumbel_output &out = p.output;
    bool mass = out.logprobs_of == GUMBEL_PROCESSED &&
                (out.lse || out.logprobs || out.top_logprobs || out.kept_logprobs);
    mass |= needs_entropy(p);
    int64_t k = greedy ? 1 : rules.top_k;
    required = find_required_tokens(p, row, greedy);
    if (p.partials || k > CUDA_TRUNCATED_TOP_MAX || (rules.joint && rules.top_p < 1.0f))
        return false;
    return greedy ? !mass && !out.kept : truncates_by_value(rules);
}

/* Whether no edit raises a token above the y of its block's largest logit. */
__device__ __forceinline__ bool edits_only_lower(const gumbel_problem &q, const truncated_row &row)
{
    return !row.lists && q.scale > 0.0f && (!row.edits.act || penalties_lower(row.edits.penalties));
}

/* Whether the largest logit of a block bounds its tokens. */
__device__ __forceinline__ bool block_maxima_bound_tokens(const gumbel_problem &q,
                                                          const truncated_row &row)
{
    return !row.flags && edits_only_lower(q, row);
}

/* Number of largest block maxima that a first guess uses: more if edits may lower some tokens of
 * those blocks. */
__device__ __forceinline__ uint32_t count_guessed_blocks(uint32_t target, bool lowered)
{
    return lowered ? target + target / 4 + 8 : target;
}

/* Rank of the block maximum that estimates the largest token, for min_p: edits may lower the
 * largest ones. With a target, a deeper rank adds few blocks. */
__device__ __forceinline__ int rank_of_guessed_max(uint32_t target, bool lowered)
{
    return !lowered ? 1 : target > 0 ? 4 : 2;
}

} // namespace

#endif

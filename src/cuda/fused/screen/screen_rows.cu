/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the last kernel of a draw with a screen for truncated rows: truncates each row, draws from
 *        it and computes its other outputs, from the scored tokens, which include all tokens that
 *        can affect the outputs. A row with too many scored tokens is a fallback row; all rows are
 *        fallback rows if the screen does not determine the call.
 * COST   some 8 us of a CTA (shortlist.cuh).
 * MAP    one CTA a row, one or two tokens a thread.
 * SMEM   that of truncated_shared.cuh.
 * SYNC   reads its row's parameters while candidates are still scored. The full pass, and the
 *        kernel that serves rows from its logits, wait for the end of this launch.
 * NUMERICS  as the naive kernel, bit for bit: logits are the full product's.
 */
#include "cuda/fused/screen/screen_params.h"
#include "cuda/truncated/few/shortlist.cuh"

#include "cuda/common/row_thresholds.cuh"

namespace
{

constexpr int kEach = CUDA_SCREEN_EXACT_MAX / kThreads;
static_assert(kEach * kThreads == CUDA_SCREEN_EXACT_MAX, "each thread loads kEach tokens");

/* Loads the parameters of row b, by two threads at once, and resets its counter; before a barrier.
 */
__device__ __forceinline__ void load_row_params(const gumbel_problem &q, int64_t b)
{
    if (threadIdx.x == 0) {
        set_draw(shared_state().row, q, b);
        shared_state().count = 0;
    }
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b);
        const gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        set_rules(shared_state().row, greedy ? without_truncation(rules) : rules);
    }
}

/* Counters and scored tokens of row b; the loads are independent of each other. */
struct row_tokens {
    uint2 tokens[kEach];
    uint64_t counts, min_word; /* words of the row's counters and of the first threshold */
    uint32_t needs_full_pass;

    __device__ __forceinline__ row_tokens(const cuda_screen_rows &p, int64_t b)
    {
        const cuda_screen_exact *exact = &p.exact[b * CUDA_SCREEN_EXACT_MAX + threadIdx.x];
        const uint64_t *words = &p.row_thresholds[CUDA_THRESHOLD_WORDS * b];
        needs_full_pass = __ldcg(&p.state->again);
        counts = load_threshold(&words[CUDA_TRUNCATED_COUNTS]);
        min_word = load_threshold(&words[CUDA_TRUNCATED_FIRST_THRESHOLD]);
#pragma unroll
        for (int i = 0; i < kEach; i++)
            tokens[i] = __ldcg((const uint2 *)(exact + i * kThreads));
    }
    __device__ __forceinline__ uint32_t scored_count() const
    {
        return cuda_count_scored((uint32_t)(counts >> 32));
    }
};

/* Appends the tokens that may be kept to the list, and returns whether one is infinite; for all
 * threads, after a barrier; ends with one. */
__device__ __forceinline__ bool load_tokens(const cuda_screen_rows &p,
                                            const row_tokens &tokens_found)
{
    const float min_logit = tokens_found.min_word >> THRESHOLD_BITS == p.tag
                                ? unpack_threshold(tokens_found.min_word)
                                : -INFINITY;
    const truncated_row &row = shared_state().row;
    const logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool infinite = false;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const float logit = __uint_as_float(tokens_found.tokens[i].x);
        const float y = scale_logit(shared_state().call, logit);
        if (threadIdx.x + i * kThreads >= tokens_found.scored_count() || logit < min_logit)
            continue;
        infinite |= !(values.to_z(y) < INFINITY);
        if (isnan(values.to_z(y))) /* of weights that changed since the screen was made */
            atomicOr(&shared_state().row.flags, GUMBEL_FLAG_NAN);
        if (!(values.to_z(y) > -INFINITY))
            continue;
        const uint32_t at = atomicAdd(&shared_state().count, 1);
        if (at < kShortlist)
            shared_state().scratch.list[at] = {y, (int32_t)tokens_found.tokens[i].y};
    }
    return __syncthreads_or(infinite);
}

/* Records whether row b is a fallback row; by one thread. */
__device__ __forceinline__ void set_row_state(const cuda_screen_rows &p, int64_t b,
                                              bool is_fallback)
{
    p.fallback_rows[b] = is_fallback;
    p.request.row_states[b] = is_fallback ? CUDA_ROW_FALLBACK_AFTER : CUDA_ROW_SERVED;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_screen_truncate(const __grid_constant__ cuda_screen_rows p)
{
    const int64_t b = blockIdx.x;
    ptx_allow_launch();
    const cuda_truncated_params &call = load_call(p.request);
    __syncthreads();
    load_row_params(call.problem, b);
    ptx_wait_for_launch();
    const row_tokens tokens_found(p, b);
    __syncthreads();
    const bool infinite = load_tokens(p, tokens_found);
    const int count = (int)shared_state().count;
    const bool is_fallback = tokens_found.needs_full_pass ||
                             tokens_found.scored_count() > CUDA_SCREEN_EXACT_MAX ||
                             count > kShortlist;
    if (threadIdx.x == 0)
        set_row_state(p, b, is_fallback);
    if (is_fallback)
        return;
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = shared_state().row.flags | (infinite ? GUMBEL_FLAG_INFINITE : 0);
    seen.best_id = count > 0 ? 0 : -1;
    serve_shortlist(b, count, seen, seen, nullptr); /* the call needs no mass before truncation */
}

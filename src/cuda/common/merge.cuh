/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a call: a warp merges summaries and writes outputs.
 */
#ifndef GUMBEL_CUDA_MERGE_CUH
#define GUMBEL_CUDA_MERGE_CUH

#include "cuda/policy/cuda_policy.h"
#include "cuda/common/draw.cuh"

/* Merge the masses and largest z of `lanes` neighbouring lanes of a converged warp; every lane gets
 * the result. All masses are shifted to the largest exponent, so that their words add as in
 * gumbel_summary_merge(). */
template <int lanes> static __device__ __forceinline__ void merge_masses_of_lanes(gumbel_summary *s)
{
    int32_t exponent = s->mass_exponent;
#pragma unroll
    for (int half = lanes / 2; half > 0; half /= 2)
        exponent = max(exponent, __shfl_xor_sync(~0u, exponent, half));
    gumbel_mass_shift_to(s, exponent);
#pragma unroll
    for (int half = lanes / 2; half > 0; half /= 2) {
        s->max_z = fmaxf(s->max_z, __shfl_xor_sync(~0u, s->max_z, half));
#pragma unroll
        for (int i = 0; i < 3; i++)
            s->mass[i] += __shfl_xor_sync(~0u, (unsigned long long)s->mass[i], half);
    }
}

/* Merge the best tokens and flags of 32 lanes; every lane gets the result. */
static __device__ __forceinline__ void merge_winners_of_warp(gumbel_summary *s)
{
    draw_winner best = draw_winner_of_warp({s->best_score, s->best_z, s->best_id});
    s->best_score = best.score;
    s->best_z = best.z;
    s->best_id = best.id;
    s->flags = __reduce_or_sync(~0u, s->flags);
}

/* Write the summaries of a CTA's samples, by its first warp, a lane per sample. `state` has the
 * mass and flags of each warp, and its best token of each sample. */
template <class State>
static __device__ __forceinline__ void write_summaries_of_warps(const State &state, bool with_mass,
                                                                gumbel_summary *out, int samples)
{
    constexpr int warps = sizeof state.masses / sizeof state.masses[0];
    static_assert(warps <= 32, "a lane has a warp's mass");
    const int lane = threadIdx.x;
    gumbel_summary own;
    gumbel_summary_empty(&own);
    if (with_mass) {
        if (lane < warps)
            own = state.masses[lane];
        merge_masses_of_lanes<32>(&own);
    }
    if (lane >= samples)
        return;
    draw_winner best = draw_winner_none();
#pragma unroll
    for (int w = 0; w < warps; w++) {
        const draw_winner &other = state.best[w][lane];
        draw_winner_offer(best, other.score, other.z, other.id);
        own.flags |= state.flags[w];
    }
    own.best_score = best.score;
    own.best_z = best.z;
    own.best_id = best.id;
    out[lane] = own;
}

/* Merge `count` summaries, `stride` apart, by a warp; every lane gets the result. Loads bypass L1,
 * as other CTAs wrote the summaries. */
static __device__ __forceinline__ gumbel_summary merge_summaries(const gumbel_summary *from,
                                                                 int count, int64_t stride,
                                                                 bool with_mass)
{
    constexpr int words = sizeof(gumbel_summary) / sizeof(uint4);
    static_assert(sizeof(gumbel_summary) % sizeof(uint4) == 0,
                  "a summary is loaded 16 bytes a time");
    gumbel_summary own, other;
    gumbel_summary_empty(&own);
    constexpr int ahead = 4; /* loads in flight, to hide their latency */
    for (int i = threadIdx.x % 32; i < count; i += 32 * ahead) {
        uint4 raw[ahead][words];
#pragma unroll
        for (int j = 0; j < ahead; j++)
#pragma unroll
            for (int k = 0; k < words; k++)
                if (i + 32 * j < count)
                    raw[j][k] = __ldcg((const uint4 *)&from[(i + 32 * j) * stride] + k);
#pragma unroll
        for (int j = 0; j < ahead; j++) {
            if (i + 32 * j >= count)
                continue;
            memcpy(&other, raw[j], sizeof other);
            if (with_mass)
                gumbel_summary_merge(&own, &other);
            else if (other.best_id >= 0)
                gumbel_summary_offer(&own, other.best_score, other.best_z, other.best_id);
            own.flags |= other.flags;
        }
    }
    __syncwarp();
    merge_winners_of_warp(&own);
    if (with_mass)
        merge_masses_of_lanes<32>(&own);
    return own;
}

/* Write the requested outputs of draw `at` of the batch, or its summary, by one thread. */
static __device__ __forceinline__ void write_draw(const cuda_params &p, gumbel_summary s,
                                                  int64_t at)
{
    const gumbel_output &out = p.output;
    int samples = p.problem.sampling.num_samples;
    int64_t b = at / samples;
    s.flags |= gumbel_problem_row_flags(&p.problem, b);
    if (s.flags & GUMBEL_FLAG_UNUSED) {
        gumbel_summary_empty(&s);
        s.flags = GUMBEL_FLAG_UNUSED;
    }
    if (p.partials) {
        p.partials[at] = s;
        return;
    }
    gumbel_row_status status = gumbel_summary_status(&s);
    bool ok = status == GUMBEL_ROW_OK, first = at % samples == 0;
    float lse = ok && (out.lse || out.logprobs) ? gumbel_summary_lse(&s) : NAN;
    out.tokens[at] = ok ? s.best_id : -1;
    if (out.logprobs)
        out.logprobs[at] = ok ? gumbel_logprob(s.best_z, lse) : NAN;
    if (out.scores)
        out.scores[at] = ok ? s.best_score : NAN;
    if (first && out.lse)
        out.lse[b] = lse;
    if (first && out.status)
        out.status[b] = (int32_t)status;
}

/* Write the outputs of draw `at` from its merged summary, by one thread. The row's status and
 * log-normaliser come from the summary of its `first` draw. */
static __device__ __forceinline__ void write_merged(const gumbel_output &out, int64_t at,
                                                    int64_t samples, const gumbel_summary &own,
                                                    const gumbel_summary &first)
{
    gumbel_row_status status = gumbel_summary_status(&first);
    const bool ok = status == GUMBEL_ROW_OK, drawn = ok && own.best_id >= 0;
    float lse = ok && (out.lse || out.logprobs) ? gumbel_summary_lse(&first) : NAN;
    out.tokens[at] = drawn ? own.best_id : -1;
    if (out.logprobs)
        out.logprobs[at] = drawn ? gumbel_logprob(own.best_z, lse) : NAN;
    if (out.scores)
        out.scores[at] = drawn ? own.best_score : NAN;
    if (at % samples == 0 && out.lse)
        out.lse[at / samples] = lse;
    if (at % samples == 0 && out.status)
        out.status[at / samples] = (int32_t)status;
}

/* Merge the summaries of draw `at` and write it, by a warp. */
static __device__ __forceinline__ void finish_draw(const cuda_params &p, int64_t at, bool with_mass)
{
    int64_t stride = p.problem.batch * p.problem.sampling.num_samples;
    gumbel_summary whole = merge_summaries(&p.summaries[at], p.splits, stride, with_mass);
    if (threadIdx.x % 32 == 0)
        write_draw(p, whole, at);
}

/* Zero the words that the next launch expects to be zero, by `threads` threads of each CTA. */
static __device__ __forceinline__ void clear_words(const cuda_params &p, uint32_t thread,
                                                   int threads)
{
    for (int64_t i = blockIdx.x * threads + thread; i < p.zero_after_draw_words;
         i += (int64_t)gridDim.x * threads)
        p.zero_after_draw[i] = 0;
}

/* The counter of a draw's finished CTAs (cta_counter.cuh): the word after the threshold of the
 * draw. */
static __device__ __forceinline__ unsigned long long *cta_counter_of_draw(const cuda_params &p,
                                                                          int64_t at)
{
    return (unsigned long long *)&p.row_thresholds[CUDA_THRESHOLD_WORDS * at + 1];
}

#endif

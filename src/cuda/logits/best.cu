/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   lists the best scores of a draw: k draws without replacement, from truncated and edited
 *        rows.
 * COST   reads 4 bytes a token. A thread computes the Philox words of a block for every 64 tokens,
 *        and the noise of tokens that may exceed the smallest of the best scores.
 * MAP    a CTA a row. Its threads score four tokens each at a time; tokens above the smallest of
 *        the best scores go to a list, which is reduced to the best when it might overflow.
 * SMEM   the list, 16 KB.
 * SYNC   a __syncthreads() before and after each step of 4 * threads tokens, and three for each of
 *        the best scores when the list is reduced: twice a row, and once per 1024 listed tokens.
 */
#include "core/row.h"
#include "cuda/common/turn_blocks.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kThreads = CUDA_THREADS, kBestStep = 4 * kThreads;

struct scored_token {
    float score;
    int32_t id;
};

struct best_shared {
    scored_token
        list[GUMBEL_BEST_MAX + 2 * kBestStep]; /* the best tokens, then those listed since */
    scored_token warps[kThreads / 32];
    int count;
    float threshold; /* scores at or below it are not among the best; NaN: no threshold yet */
};

__device__ __forceinline__ best_shared &best_state()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(best_shared *)shared_memory;
}

/* Orders by score, then by lower id; id -1 comes last. */
__device__ __forceinline__ bool is_before(scored_token a, scored_token b)
{
    if (a.id < 0 || b.id < 0)
        return b.id < 0 && a.id >= 0;
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

__device__ __forceinline__ scored_token first_of_warp(scored_token own)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        scored_token other = {__shfl_xor_sync(~0u, own.score, lanes),
                              __shfl_xor_sync(~0u, own.id, lanes)};
        own = is_before(other, own) ? other : own;
    }
    return own;
}

/* Reduces the list to its `most` best tokens, sorted. By all threads, between barriers. */
__device__ void keep_best(int most)
{
    best_shared &s = best_state();
    const int count = s.count;
    for (int k = 0; k < most && k < count; k++) {
        scored_token own = {0.0f, -1};
        for (int i = k + threadIdx.x; i < count; i += kThreads)
            own = is_before(s.list[i], own) ? s.list[i] : own;
        own = first_of_warp(own);
        if (threadIdx.x % 32 == 0)
            s.warps[threadIdx.x / 32] = own;
        __syncthreads();
        own = s.warps[0];
        for (int w = 1; w < kThreads / 32; w++)
            own = is_before(s.warps[w], own) ? s.warps[w] : own;
        /* The token at index k moves to the winner's index. */
        for (int i = k + threadIdx.x; i < count; i += kThreads)
            if (i > k && s.list[i].id == own.id)
                s.list[i] = s.list[k];
        __syncthreads();
        if (threadIdx.x == 0)
            s.list[k] = own;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        s.count = min(count, most);
        s.threshold = count >= most ? s.list[most - 1].score : NAN;
    }
    __syncthreads();
}

/* Scores four tokens with given noise, or with none, and lists those above the threshold. */
__device__ void score_with_given_noise(const cuda_best_params &p, const gumbel_row &row, int64_t b,
                                       const float (&z)[4], int64_t token)
{
    const gumbel_sampling &sampling = p.problem.sampling;
    best_shared &s = best_state();
    const float threshold = s.threshold;
    const float *ahead =
        row.greedy ? nullptr : sampling.noise + b * sampling.noise_stride - p.problem.first_token;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!(z[i] > -INFINITY))
            continue;
        const float score = z[i] + (ahead ? ahead[token + i] : 0.0f);
        if (!(score <= threshold))
            s.list[atomicAdd(&s.count, 1)] = {score, (int32_t)token + i};
    }
}

/* Scores four tokens with drawn noise, and lists those above the threshold. `reach` is the packed
 * upper bound of the block's noise. */
__device__ void score_with_drawn_noise(const draw_philox &philox, const gumbel_row &row,
                                       const float (&z)[4], int64_t token, float reach)
{
    best_shared &s = best_state();
    const float threshold = s.threshold;
#pragma unroll 1
    for (uint32_t may = find_winners(philox, (uint32_t)token, z, reach, draw_threshold(threshold));
         may; may &= may - 1) {
        const int i = __ffs(may) - 1;
        const float own = draw_select_of_four(z, i);
        const float score = own + draw_token_noise_noinline(row.stream, (uint32_t)token + i);
        if (!(score <= threshold))
            s.list[atomicAdd(&s.count, 1)] = {score, (int32_t)token + i};
    }
}

/* Scores the tokens of row b that may be among the best. */
__device__ void score_row(const cuda_best_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const gumbel_row row = gumbel_problem_row(&q, b);
    const bool draws = !row.greedy && !q.sampling.noise;
    const draw_philox philox = draw_philox_of(row.stream);
    const float *from = p.rows + b * p.stride - q.first_token;
    best_shared &s = best_state();
    turn_blocks blocks = {};
    int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    for (int turn = 0; begin < q.end_token; turn++, begin += kBestStep) {
        const int64_t token = begin + 4 * (int64_t)threadIdx.x;
        if (draws && turn % kTurns == 0)
            blocks = turn_blocks::from_philox(philox, (uint32_t)(begin + threadIdx.x / 32 * 128),
                                              kBestStep);
        const float reach = blocks.reach_of(turn);
        float z[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            z[i] =
                token + i >= q.first_token && token + i < q.end_token ? from[token + i] : -INFINITY;
        if (draws)
            score_with_drawn_noise(philox, row, z, token, reach);
        else
            score_with_given_noise(p, row, b, z, token);
        __syncthreads();
        if (s.count > GUMBEL_BEST_MAX + kBestStep || isnan(s.threshold))
            keep_best(p.output.num_best);
        __syncthreads();
    }
    keep_best(p.output.num_best);
}

} // namespace

static_assert(sizeof(best_shared) <= CUDA_BEST_BYTES, "the launcher reserves that much");

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_list_best(const __grid_constant__ cuda_best_params p)
{
    const gumbel_output &out = p.output;
    const int64_t b = blockIdx.x;
    const bool ok = out.tokens[b] >= 0;
    best_shared &s = best_state();
    if (threadIdx.x == 0) {
        s.count = 0;
        s.threshold = NAN;
    }
    __syncthreads();
    if (ok)
        score_row(p, b);
    for (int i = threadIdx.x; i < out.num_best; i += kThreads) {
        const int64_t at = b * out.num_best + i;
        const bool found = i < s.count;
        if (out.best_ids)
            out.best_ids[at] = found ? s.list[i].id : -1;
        if (out.best_scores)
            out.best_scores[at] = found ? s.list[i].score : ok ? -INFINITY : NAN;
    }
}

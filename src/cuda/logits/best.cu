/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the best scores of a draw: k draws without replacement, from rows that the draw sees, cut
 *        and edited.
 * COST   4 bytes a token read. A thread makes the words of a block for every 64 tokens that it
 *        looks at; the noise of tokens is made where they may come above the least of the best.
 * MAP    a CTA a row. Its threads score four tokens each at a time; what is above the least of the
 *        best goes to a list, which is cut to the best when it might overflow.
 * SMEM   the list, 16 KB.
 * SYNC   a __syncthreads() before and after each step of 4 * threads tokens, and three for each of
 *        the best when the list is cut: twice a row, and once for every 1024 tokens that pass.
 */
#include "core/row.h"
#include "cuda/common/turn_blocks.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kThreads = CUDA_THREADS, kBestStep = 4 * kThreads;

struct scored {
    float score;
    int32_t id;
};

struct best_shared {
    scored list[GUMBEL_BEST_MOST + 2 * kBestStep]; /* the best, and behind them what passed since */
    scored warps[kThreads / 32];
    int count;
    float floor; /* what is not above it cannot be among the best; NaN: all are */
};

__device__ __forceinline__ best_shared &shared()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(best_shared *)shared_memory;
}

/* Whether a comes before b: the larger score, then the lower id. What has id -1 comes last. */
__device__ __forceinline__ bool is_before(scored a, scored b)
{
    if (a.id < 0 || b.id < 0)
        return b.id < 0 && a.id >= 0;
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

__device__ __forceinline__ scored first_of_warp(scored own)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        scored other = {__shfl_xor_sync(~0u, own.score, lanes),
                        __shfl_xor_sync(~0u, own.id, lanes)};
        own = is_before(other, own) ? other : own;
    }
    return own;
}

/* Bring the first `most` of the list to its front, in order, and forget the others. By all threads,
 * between barriers. */
__device__ void cut_list(int most)
{
    best_shared &s = shared();
    const int count = s.count;
    for (int k = 0; k < most && k < count; k++) {
        scored own = {0.0f, -1};
        for (int i = k + threadIdx.x; i < count; i += kThreads)
            own = is_before(s.list[i], own) ? s.list[i] : own;
        own = first_of_warp(own);
        if (threadIdx.x % 32 == 0)
            s.warps[threadIdx.x / 32] = own;
        __syncthreads();
        own = s.warps[0];
        for (int w = 1; w < kThreads / 32; w++)
            own = is_before(s.warps[w], own) ? s.warps[w] : own;
        /* The one that is there goes to the winner's place. */
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
        s.floor = count >= most ? s.list[most - 1].score : NAN;
    }
    __syncthreads();
}

/* Score four tokens by noise that is given, or by none, and list those above the floor. */
__device__ void score_plainly(const cuda_best_params &p, const gumbel_row &row, int64_t b,
                              const float (&z)[4], int64_t token)
{
    const gumbel_sampling &sampling = p.problem.sampling;
    best_shared &s = shared();
    const float floor = s.floor;
    const float *ahead =
        row.greedy ? nullptr : sampling.noise + b * sampling.noise_stride - p.problem.first_token;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!(z[i] > -INFINITY))
            continue;
        const float score = z[i] + (ahead ? ahead[token + i] : 0.0f);
        if (!(score <= floor))
            s.list[atomicAdd(&s.count, 1)] = {score, (int32_t)token + i};
    }
}

/* The same by noise that is made, of a block of that reach, packed. */
__device__ void score_drawn(const draw_philox &philox, const gumbel_row &row, const float (&z)[4],
                            int64_t token, float reach)
{
    best_shared &s = shared();
    const float floor = s.floor;
#pragma unroll 1
    for (uint32_t may = find_winners(philox, (uint32_t)token, z, reach, draw_threshold(floor)); may;
         may &= may - 1) {
        const int i = __ffs(may) - 1;
        const float own = draw_select_of_four(z, i);
        const float score = own + draw_token_noise_noinline(row.stream, (uint32_t)token + i);
        if (!(score <= floor))
            s.list[atomicAdd(&s.count, 1)] = {score, (int32_t)token + i};
    }
}

/* Score all tokens of row b that may be among the best. */
__device__ void score_row(const cuda_best_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    const gumbel_row row = gumbel_problem_row(&q, b);
    const bool draws = !row.greedy && !q.sampling.noise;
    const draw_philox philox = draw_philox_of(row.stream);
    const float *from = p.rows + b * p.stride - q.first_token;
    best_shared &s = shared();
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
            score_drawn(philox, row, z, token, reach);
        else
            score_plainly(p, row, b, z, token);
        __syncthreads();
        if (s.count > GUMBEL_BEST_MOST + kBestStep || isnan(s.floor))
            cut_list(p.output.num_best);
        __syncthreads();
    }
    cut_list(p.output.num_best);
}

} // namespace

static_assert(sizeof(best_shared) <= CUDA_BEST_BYTES, "the launcher reserves that much");

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_list_best(const __grid_constant__ cuda_best_params p)
{
    const gumbel_output &out = p.output;
    const int64_t b = blockIdx.x;
    const bool ok = out.tokens[b] >= 0;
    best_shared &s = shared();
    if (threadIdx.x == 0) {
        s.count = 0;
        s.floor = NAN;
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

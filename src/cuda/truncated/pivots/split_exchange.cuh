/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchange of results among the CTAs of a row, each of which holds a split of its logits. In
 * each step a CTA publishes its result and waits for the results of all other CTAs of its row.
 * Words carry the step number; the previous launch has set them to zero. Two sets of words
 * alternate: a CTA that publishes a step has read all results of the previous one. CTAs of a row
 * have adjacent indices and usually run at the same time, which CUDA does not guarantee: the wait
 * ends after kSplitPollsMax polls of another CTA's words, and the row is abandoned.
 */
#ifndef GUMBEL_CUDA_SPLIT_EXCHANGE_CUH
#define GUMBEL_CUDA_SPLIT_EXCHANGE_CUH

#include "cuda/truncated/pivots/split_draw.cuh"

namespace
{

/* Words of a T; each is published with the number of its step. */
template <class T> constexpr int words_of = sizeof(T) / sizeof(uint32_t);

/* Publishes this CTA's result of a step, by a warp. */
template <class T>
__device__ __forceinline__ void publish_split(uint64_t *place, uint32_t step, const T &own)
{
    uint32_t words[words_of<T>];
    memcpy(words, &own, sizeof own);
#pragma unroll
    for (int i = 0; i < words_of<T>; i++)
        if (threadIdx.x == i)
            *(volatile uint64_t *)&place[i] = (uint64_t)words[i] << 32 | step;
}

/* Polls of another CTA's words, 0.5 us or more each: ten times the delay of a CTA in the next wave.
 */
constexpr int kSplitPollsMax = 250;

/* Joins a CTA's result of a step to `own`, by any thread; returns false on timeout. */
template <class T>
__device__ __forceinline__ bool read_split_result(const uint64_t *place, uint32_t step, T &own)
{
    uint32_t words[words_of<T>];
    T split;
    bool there = false;
#pragma unroll 1
    for (int polls = 0; !there && polls < kSplitPollsMax; polls++) {
        there = true;
#pragma unroll
        for (int i = 0; i < words_of<T>; i++) {
            uint64_t word = ptx_load_relaxed_8(&place[i]);
            words[i] = (uint32_t)(word >> 32);
            there &= (uint32_t)word == step;
        }
    }
    memcpy(&split, words, sizeof split);
    own.join(split);
    return there;
}

/* Joins the results `own` of all CTAs of a row in a step, numbered from 1 on; for all threads of
 * all CTAs. The result is meaningless if the row is abandoned (split_memory().is_abandoned). */
template <class T>
__device__ __forceinline__ T join_row(const cuda_truncated_params &p, int64_t b, uint32_t step,
                                      T own)
{
    static_assert(sizeof(T) <= sizeof split_memory().warps[0] &&
                      words_of<T> <= CUDA_PIVOT_EXCHANGE_WORDS,
                  "fits");
    uint64_t *row =
        p.exchange + p.problem.batch + (2 * b + step % 2) * p.splits * CUDA_PIVOT_EXCHANGE_WORDS;
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)split_memory().warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
        own =
            threadIdx.x < kGroupWarps ? *(const T *)split_memory().warps[threadIdx.x] : T::empty();
        own.join_warp();
        publish_split(row + blockIdx.x % p.splits * CUDA_PIVOT_EXCHANGE_WORDS, step, own);
        own = T::empty();
        bool complete = !split_memory().is_abandoned;
        for (int split = threadIdx.x; complete && split < p.splits; split += 32)
            complete = read_split_result(row + split * CUDA_PIVOT_EXCHANGE_WORDS, step, own);
        if (__any_sync(~0u, !complete))
            split_memory().is_abandoned = 1;
        own.join_warp();
        if (threadIdx.x == 0)
            *(T *)split_memory().row = own;
    }
    __syncthreads();
    return *(const T *)split_memory().row;
}

} // namespace

#endif

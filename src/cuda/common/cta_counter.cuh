/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the CTAs that have finished, to find the last CTA of a row. A word in global memory holds
 * the launch's tag (cuda_params) in its upper 40 bits and the count in its lower 24. The workspace
 * starts undefined: every CTA resets a word with another tag as it starts. The last CTA resets the
 * count, so that a replay of a CUDA graph starts from 0. No CTA waits for another.
 */
#ifndef GUMBEL_CUDA_CTA_COUNTER_CUH
#define GUMBEL_CUDA_CTA_COUNTER_CUH

#include "cuda/common/ptx.cuh"

#define CTA_COUNTER_BITS 24

/* Resets a word with another launch's tag; by one thread of each CTA. A barrier must separate it
 * from count_cta_end(). */
static __device__ __forceinline__ void start_cta_counter(unsigned long long *word, uint64_t tag)
{
    unsigned long long seen = __ldcg(word);
    if (seen >> CTA_COUNTER_BITS != tag)
        atomicCAS(word, seen, (unsigned long long)tag << CTA_COUNTER_BITS);
}

/* CTAs that have ended so far. */
static __device__ __forceinline__ uint32_t count_ended_ctas(const unsigned long long *word,
                                                            uint64_t tag)
{
    unsigned long long seen = __ldcg(word);
    return seen >> CTA_COUNTER_BITS == tag ? (uint32_t)(seen % (1u << CTA_COUNTER_BITS)) : 0;
}

/* Counts this CTA as finished and returns whether it is the last; by the thread (or the first lane
 * of the warp) that wrote the CTA's results. */
static __device__ __forceinline__ bool count_cta_end(unsigned long long *word, uint64_t tag,
                                                     int32_t splits)
{
    uint64_t before = ptx_atomic_count(word) & ((1u << CTA_COUNTER_BITS) - 1);
    bool last = before + 1 == (uint64_t)splits;
    if (last)
        *word = (unsigned long long)tag << CTA_COUNTER_BITS;
    return last;
}

#endif

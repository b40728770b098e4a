/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the CTAs that have ended, to find the last of those that share work. A word in global
 * memory holds the count below the launch's tag (cuda_params). The workspace starts undefined:
 * every CTA resets a word with another tag as it starts. The last CTA resets the count for a
 * replay.
 */
#ifndef GUMBEL_CUDA_CTA_COUNTER_CUH
#define GUMBEL_CUDA_CTA_COUNTER_CUH

#include "cuda/common/ptx.cuh"

#define CTA_COUNTER_BITS 24

/* Reset a word of another launch: by one thread of each CTA, before a barrier before the count. */
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

/* Count this CTA as ended; returns whether it is the last. By the thread (or the first lane of the
 * warp) that wrote the CTA's results. */
static __device__ __forceinline__ bool count_cta_end(unsigned long long *word, uint64_t tag,
                                                     int32_t parts)
{
    uint64_t before = ptx_atomic_count(word) & ((1u << CTA_COUNTER_BITS) - 1);
    bool last = before + 1 == (uint64_t)parts;
    if (last)
        *word = (unsigned long long)tag << CTA_COUNTER_BITS;
    return last;
}

#endif

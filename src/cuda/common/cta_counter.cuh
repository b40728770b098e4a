/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the CTAs that share work ends last. A word in global memory counts those that have
 * ended, below the launch's tag (cuda_params). The workspace starts undefined: a word with another
 * tag is 0, and every CTA sees to that as it starts. The last one leaves 0 for a replay.
 */
#ifndef GUMBEL_CUDA_PARTS_CUH
#define GUMBEL_CUDA_PARTS_CUH

#include "cuda/common/ptx.cuh"

#define CTA_COUNTER_BITS 24

/* By one thread of each CTA, before a barrier that comes before the count. */
static __device__ __forceinline__ void start_cta_counter(unsigned long long *word, uint64_t tag)
{
    unsigned long long seen = __ldcg(word);
    if (seen >> CTA_COUNTER_BITS != tag)
        atomicCAS(word, seen, (unsigned long long)tag << CTA_COUNTER_BITS);
}

/* How many have ended so far. */
static __device__ __forceinline__ uint32_t count_ended_ctas(const unsigned long long *word,
                                                            uint64_t tag)
{
    unsigned long long seen = __ldcg(word);
    return seen >> CTA_COUNTER_BITS == tag ? (uint32_t)(seen % (1u << CTA_COUNTER_BITS)) : 0;
}

/* Count this CTA as done, by the thread, or the first one of the warp, that wrote what others will
 * read; whether all of them are now. */
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

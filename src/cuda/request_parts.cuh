/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of a row's CTAs is the last to end: p.counters counts those that have, below the launch's
 * tag. The workspace starts undefined.
 */
#ifndef GUMBEL_CUDA_REQUEST_PARTS_CUH
#define GUMBEL_CUDA_REQUEST_PARTS_CUH

#include "cuda/cuda_policy.h"
#include "cuda/cuda_request.h"
#include "cuda/ptx.cuh"

namespace
{

#define COUNT_BITS 24

/* By one thread of each CTA, before a barrier that comes before the count: a word with another
 * launch's tag is 0. */
__device__ __forceinline__ void start_count(const cuda_request_params &p, int64_t b)
{
    unsigned long long *word = (unsigned long long *)&p.counters[CUDA_FLOOR_WORDS * b];
    unsigned long long seen = __ldcg(word);
    if (seen >> COUNT_BITS != p.tag)
        atomicCAS(word, seen, (unsigned long long)p.tag << COUNT_BITS);
}

/* Count this CTA as done; whether all of the row's are. The last one leaves 0 for a replay. */
__device__ __forceinline__ bool count_part(const cuda_request_params &p, int64_t b)
{
    unsigned long long *word = (unsigned long long *)&p.counters[CUDA_FLOOR_WORDS * b];
    uint64_t before = ptx_count(word) & ((1u << COUNT_BITS) - 1);
    bool last = before + 1 == (uint64_t)p.parts;
    if (last)
        *word = (unsigned long long)p.tag << COUNT_BITS;
    return last;
}

} // namespace

#endif

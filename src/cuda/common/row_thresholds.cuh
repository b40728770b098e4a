/* SPDX-License-Identifier: Apache-2.0
 *
 * Floors: for each row and sample the best score that any CTA has seen, in global memory. A CTA
 * that knows what the others found scores only what beats it: about ln V tokens a row in all,
 * where without it every CTA finds its own records.
 *
 * A word is the launch's tag in the upper 40 bits, and 24 bits of a float that orders as integers
 * do, rounded down. The workspace starts undefined: a word with another tag counts as empty, and
 * what ends the call (finish.cu, ending_sm90.cuh) clears the words, so that a replay never
 * meets its own past.
 */
#ifndef GUMBEL_CUDA_FLOOR_CUH
#define GUMBEL_CUDA_FLOOR_CUH

#include "cuda/policy/cuda_policy.h"
#include "cuda/common/draw.cuh"

#define THRESHOLD_BITS 24

static __device__ __forceinline__ uint64_t pack_threshold(float x)
{
    return ordered_bits(x) >> (32 - THRESHOLD_BITS);
}

static __device__ __forceinline__ float unpack_threshold(uint64_t word)
{
    return ordered_float((uint32_t)word << (32 - THRESHOLD_BITS));
}

static __device__ __forceinline__ uint64_t load_threshold(const uint64_t *word)
{
    return __ldcg((const unsigned long long *)word);
}

/* Raise the floor to a row's threshold. An atomic that returns nothing is enough unless the word
 * holds somebody else's large number. */
static __device__ __forceinline__ void raise_threshold(uint64_t *word, float threshold,
                                                       uint64_t tag)
{
    if (!(threshold > -INFINITY))
        return;
    unsigned long long own = tag << THRESHOLD_BITS | pack_threshold(threshold),
                       seen = load_threshold(word);
    if (seen < own)
        atomicMax((unsigned long long *)word, own);
    else if (seen >> THRESHOLD_BITS != tag)
        atomicCAS((unsigned long long *)word, seen, own);
}

#endif

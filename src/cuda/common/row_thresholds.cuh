/* SPDX-License-Identifier: Apache-2.0
 *
 * Row thresholds in global memory: for each row and sample a lower bound on the winning score,
 * raised by all CTAs. A CTA scores only tokens that may exceed it: all CTAs together score about ln
 * V tokens of a row. Without it, each CTA would score the tokens that exceed the best of its own.
 *
 * A word holds the launch's tag in the upper 40 bits, and in the lower 24 bits the upper bits of an
 * ordered float, that is, the threshold rounded down. The workspace starts undefined: a word with
 * another tag counts as empty. The end of the call (finish.cu, finish_sm90.cuh) zeroes the words,
 * so that a graph replay never reads old ones.
 */
#ifndef GUMBEL_CUDA_ROW_THRESHOLDS_CUH
#define GUMBEL_CUDA_ROW_THRESHOLDS_CUH

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

/* Raises a row's word to a threshold. An atomicMax suffices unless the word holds a larger value
 * with another launch's tag, which is replaced. */
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of draws in shared memory: parameters, bounds that filter tokens, candidates (tokens
 * that passed the filter), best tokens, and the two largest z.
 */
#ifndef GUMBEL_CUDA_DRAW_STATE_SM90_CUH
#define GUMBEL_CUDA_DRAW_STATE_SM90_CUH

#include "cuda/common/ptx.cuh"

namespace
{

/* Parameters of a draw. */
struct sm90_draw {
    uint64_t seed;
    uint32_t position, sample;
    float inverse_temperature;
    int greedy;
};

/* The filter of a block and draw. min_sum: the smallest sum that may win, finite; +inf if there is
 * nothing to draw. first_word: in the first tile, first_word_of() of the block. */
union sm90_bound {
    float min_sum;
    uint32_t first_word;
};

/* Bits of flags[0] where logits are stored by bounds. */
enum sm90_bounds_flag : uint32_t {
    SM90_STOP_RAISING = 1, /* no more bounds are needed */
    SM90_ALL_STARTED = 2,  /* all CTAs have started, so that bounds are those of this launch */
};

/* A token that passed its bound. */
struct sm90_candidate {
    float sum;
    uint32_t place; /* index of the draw in the low 8 bits, index in the tile above them */
};

/* The best token of a draw; 16 bytes, so that a 128-bit compare-and-swap replaces it as a whole. */
struct __align__(16) sm90_best
{
    float score, z;
    int id;
    uint32_t unused;

    __device__ __forceinline__ ulonglong2 to_bits() const
    {
        return {__float_as_uint(score) | (uint64_t)__float_as_uint(z) << 32,
                (uint32_t)id | (uint64_t)unused << 32};
    }
};

/* Replaces *best by `next` if *best equals `seen`; returns the old value. */
__device__ __forceinline__ sm90_best swap_best(sm90_best *best, sm90_best seen, sm90_best next)
{
    ulonglong2 was = ptx_cas_shared_16(best, seen.to_bits(), next.to_bits());
    return {__uint_as_float((uint32_t)was.x), __uint_as_float((uint32_t)(was.x >> 32)),
            (int)(uint32_t)was.y, 0};
}

/* Replaces *best by `candidate` if that has a higher score, or an equal one and a lower id. */
__device__ __forceinline__ void update_best(sm90_best *best, sm90_best candidate)
{
    sm90_best seen, found = swap_best(best, candidate, candidate); /* changes nothing */
    while (candidate.score > found.score ||
           (candidate.score == found.score && candidate.id < found.id)) {
        seen = found;
        found = swap_best(best, seen, candidate);
        if (found.id == seen.id && found.score == seen.score)
            return;
    }
}

/* The two largest z of a row and their tokens, the larger z first; of two equal z, the lower id
 * first. 16 bytes, so that a 128-bit compare-and-swap replaces both tokens at once. */
struct __align__(16) sm90_tops
{
    float z[2]; /* -inf: none */
    int id[2];

    __device__ __forceinline__ ulonglong2 to_bits() const
    {
        return {__float_as_uint(z[0]) | (uint64_t)__float_as_uint(z[1]) << 32,
                (uint32_t)id[0] | (uint64_t)(uint32_t)id[1] << 32};
    }
    static __device__ __forceinline__ sm90_tops of_bits(ulonglong2 bits)
    {
        return {{__uint_as_float((uint32_t)bits.x), __uint_as_float((uint32_t)(bits.x >> 32))},
                {(int)(uint32_t)bits.y, (int)(uint32_t)(bits.y >> 32)}};
    }
};

} // namespace

#endif

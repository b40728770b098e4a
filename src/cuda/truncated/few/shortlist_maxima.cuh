/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of a row, from the threads that have read it, and a key that enough thread maxima
 * reach.
 */
#ifndef GUMBEL_CUDA_SHORTLIST_MAXIMA_CUH
#define GUMBEL_CUDA_SHORTLIST_MAXIMA_CUH

#include "cuda/truncated/few/truncated_shared.cuh"

namespace
{

/* A row after it has been read. Keys are of y; alive tokens have z > -inf. A thread maximum is the
 * largest y of a thread that holds an alive token. */
struct row_facts {
    uint32_t flags, alive;
    uint32_t highest, lowest;        /* of alive tokens */
    uint32_t num_maxima, lowest_max; /* number of thread maxima; the smallest one */
    uint32_t reached_key; /* key reached by enough maxima of each CTA; 0: a CTA has too few */

    static __device__ __forceinline__ row_facts empty() { return {0, 0, 0, ~0u, 0, ~0u, ~0u}; }

    __device__ __forceinline__ void join_warp()
    {
        flags = __reduce_or_sync(~0u, flags);
        alive = __reduce_add_sync(~0u, alive);
        highest = __reduce_max_sync(~0u, highest);
        lowest = __reduce_min_sync(~0u, lowest);
        num_maxima = __reduce_add_sync(~0u, num_maxima);
        lowest_max = __reduce_min_sync(~0u, lowest_max);
        reached_key = __reduce_min_sync(~0u, reached_key);
    }
};

/* Number of bisection steps between a CTA's thread maxima. Each costs a barrier; more steps would
 * leave fewer tokens above the key. The first step tests a value at most kNear below the largest,
 * as the range is too wide in rows that are masked with the lowest float instead of -inf. */
constexpr int kHalvings = 8;
constexpr float kNear = 64.0f;

/* Finds a key that at least `rank` of this CTA's thread maxima reach, by bisection between the
 * smallest and the largest one; 0 if there are fewer. `facts` are this thread's. For all threads.
 */
__device__ __noinline__ uint32_t find_reached_key(row_facts facts, float thread_max, int rank)
{
    if (facts.num_maxima == 0)
        thread_max = -INFINITY;
    facts = join_cta(facts);
    if ((int)facts.num_maxima < rank)
        return 0;
    float low = gumbel_value_of_key(facts.lowest_max), high = gumbel_value_of_key(facts.highest);
#pragma unroll 1
    for (int step = 0; step < kHalvings; step++) {
        float middle = 0.5f * low + 0.5f * high;
        if (step == 0)
            middle = fmaxf(middle, high - kNear);
        bool enough = __syncthreads_count(thread_max >= middle) >= rank;
        low = enough ? middle : low;
        high = enough ? high : middle;
    }
    return gumbel_key_of_value(low);
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorts a list of at most kThreads tokens by one CTA: larger values first, then lower ids.
 */
#ifndef GUMBEL_CUDA_SHORTLIST_SORT_CUH
#define GUMBEL_CUDA_SHORTLIST_SORT_CUH

#include "cuda/truncated/few/truncated_shared.cuh"

namespace
{

/* A token at its sorted position. */
struct __align__(8) shortlist_place
{
    uint32_t key; /* of its value */
    int token;    /* index in the list */
};

/* State of the sorted list, in the memory of bins. */
struct __align__(16) shortlist_scratch
{
    uint64_t keys[kShortlist];         /* of value and id; 0 past the end */
    shortlist_place order[kShortlist]; /* larger values first, then lower ids */
    uint64_t masses[kShortlist];       /* in sorted order */
    float scores[kShortlist];
    int kept;
};
static_assert(sizeof(shortlist_scratch) <= offsetof(row_scratch, list), "bins have the memory");

__device__ __forceinline__ shortlist_scratch &shortlist_memory()
{
    return *(shortlist_scratch *)shared_state().scratch.high;
}

/* Number of adjacent lanes, 1 to 8, that share the work for one of `count` tokens, or for `each`
 * neighbouring ones. */
struct shortlist_lanes {
    int log;

    explicit __device__ __forceinline__ shortlist_lanes(int count, int each = 1)
        : log(count <= each * kThreads / 8   ? 3
              : count <= each * kThreads / 4 ? 2
              : count <= each * kThreads / 2 ? 1
                                             : 0)
    {
    }
    __device__ __forceinline__ int token_index() const { return (int)threadIdx.x >> log; }
    __device__ __forceinline__ int lane_index() const
    {
        return (int)threadIdx.x & ((1 << log) - 1);
    }

    /* Reduces over these lanes, for all of them. */
    template <class F> __device__ __forceinline__ int reduce_lanes(int own, F join) const
    {
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) {
            int other = __shfl_xor_sync(~0u, own, lanes);
            own = lanes >> log ? own : join(own, other);
        }
        return own;
    }
};

/* Sorts by ranks, several neighbouring tokens per thread: a key that is read serves all of them,
 * which halves the time for 300 tokens. Before a barrier. */
__device__ __noinline__ void order_many(int count)
{
    constexpr int each = 4;
    const shortlist_lanes lanes(count, each);
    const int first = lanes.token_index() * each;
    uint64_t keys[each];
    int places[each] = {};
    if ((int)(threadIdx.x & ~31) >> lanes.log << 2 >= count) /* uniform over the warp */
        return;
#pragma unroll
    for (int i = 0; i < each; i++)
        keys[i] = shortlist_memory().keys[first + i];
#pragma unroll 2
    for (int at = 2 * lanes.lane_index(); at < count; at += 2 << lanes.log) {
        ulonglong2 two = *(const ulonglong2 *)&shortlist_memory().keys[at];
#pragma unroll
        for (int i = 0; i < each; i++) {
            places[i] += two.x > keys[i];
            places[i] += two.y > keys[i];
        }
    }
#pragma unroll
    for (int i = 0; i < each; i++) {
        int place = lanes.reduce_lanes(places[i], [](int a, int b) { return a + b; });
        if (lanes.lane_index() == 0 && first + i < count)
            shortlist_memory().order[place] = {(uint32_t)(keys[i] >> 32), first + i};
    }
}

/* Sorts by ranks, several lanes per token. Before a barrier. */
__device__ __forceinline__ void order_few(int count)
{
    const shortlist_lanes lanes(count);
    const uint64_t key = shortlist_memory().keys[lanes.token_index()];
    int place = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += 8 << lanes.log)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = base + ((2 * i) << lanes.log) + 2 * lanes.lane_index();
            ulonglong2 two = *(const ulonglong2 *)&shortlist_memory().keys[at];
            place += two.x > key;
            place += two.y > key;
        }
    place = lanes.reduce_lanes(place, [](int a, int b) { return a + b; });
    if (lanes.lane_index() == 0 && lanes.token_index() < count)
        shortlist_memory().order[place] = {(uint32_t)(key >> 32), lanes.token_index()};
}

/* Sorts the list's `count` tokens, all with z > -inf. Ends with a barrier. */
__device__ __forceinline__ void sort_shortlist(logit_values values, int count)
{
    uint64_t key = 0;
    if ((int)threadIdx.x < count) {
        cuda_candidate own = shared_state().scratch.list[threadIdx.x];
        key = (uint64_t)gumbel_key_of_value(own.y * values.scale()) << 32 | ~(uint32_t)own.id;
    }
    shortlist_memory().keys[threadIdx.x] = key;
    __syncthreads();
    if (count > kThreads / 4)
        order_many(count);
    else
        order_few(count);
    __syncthreads();
}

/* Returns n plus the number of further tokens that equal the n-th; by a warp. */
__device__ __forceinline__ int extend_by_ties(int n, int count)
{
    const shortlist_place *order = shortlist_memory().order;
    const uint32_t last = order[n - 1].key;
    uint32_t tied;
    do {
        int at = n + (int)threadIdx.x % 32;
        tied = __ballot_sync(~0u, at < count && order[at].key == last);
        n += __popc(tied);
    } while (tied == ~0u);
    return n;
}

} // namespace

#endif

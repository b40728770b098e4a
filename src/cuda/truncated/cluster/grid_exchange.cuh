/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges among adjacent CTAs of a cooperative launch, in global memory: the group of CTAs that
 * holds a row. cluster_exchange.cuh declares them. A launch has p.exchange: for each group the
 * slots of its steps, then for each group its bins and lists.
 *
 * SYNC  in each step, a CTA stores words in its slot, which carry the number of the step, and waits
 *        for the words of all other CTAs of its group. A cooperative launch starts all its CTAs
 *        together, so the wait ends. Steps are numbered from 1 on, over all rows of a group, and
 *        slots are zero at the start. Two sets of slots alternate: a CTA that stores a step has
 *        read all words of the step before. In an exchange of memory, one fence of warp 0 precedes
 *        its words and follows those of the others, with a barrier of the CTA on each side: bins
 *        and lists that any thread has written are visible to all threads of the group. They are
 *        written again only after a later step, by when they have been read.
 */
#ifndef GUMBEL_CUDA_GRID_EXCHANGE_CUH
#define GUMBEL_CUDA_GRID_EXCHANGE_CUH

#include "cuda/truncated/cluster/cluster_exchange.cuh"
#include "cuda/common/grid_ptx.cuh"

namespace
{

static_assert(kExchangeWords == CUDA_GRID_EXCHANGE_WORDS && kClusterCtas <= 32 &&
                  kExchangeWords <= kClusterCtas,
              "a lane for each CTA, and for each word");

/* A word of a step: the value in the upper half, the number of the step in the lower. */
typedef uint64_t step_slots[kClusterCtas][kExchangeWords];

/* Bins and lists of a group. */
struct grid_memory {
    unsigned long long bins[kClusterCtas][2 * kBins]; /* as `high` and `low` of row_scratch */
    cuda_candidate list[kListPlaces];                 /* by slice */
};
static_assert(2 * sizeof(step_slots) == CUDA_GRID_STEP_WORDS * sizeof(uint64_t) &&
                  sizeof(grid_memory) == CUDA_GRID_MEMORY_WORDS * sizeof(uint64_t),
              "the launcher reserves that much");

__device__ __forceinline__ step_slots &slots_of_step(uint32_t step)
{
    const int64_t group = blockIdx.x / kClusterCtas;
    return ((step_slots *)shared_state().call.exchange)[2 * group + step % 2];
}

__device__ __forceinline__ grid_memory &memory_of_group()
{
    const int64_t group = blockIdx.x / kClusterCtas, groups = gridDim.x / kClusterCtas;
    return ((grid_memory *)(shared_state().call.exchange + groups * CUDA_GRID_STEP_WORDS))[group];
}

/* ---------------------------------------------------------------------------------- steps ---- */

/* Begins the first step of a launch; by one thread, before a barrier of the CTA. */
__device__ __forceinline__ void begin_steps() { shared_state().turn = 0; }
__device__ __forceinline__ void reset_turn() {}

/* Begins the next step, and returns its number; by warp 0. */
__device__ __forceinline__ uint32_t begin_step()
{
    const uint32_t step = shared_state().turn + 1;
    __syncwarp();
    if (threadIdx.x == 0)
        shared_state().turn = step;
    return step;
}

__device__ __forceinline__ uint64_t make_word(uint32_t value, uint32_t step)
{
    return (uint64_t)value << 32 | step;
}

/* Sends a value, and stores the values of all CTAs in the buffers of this CTA; by warp 0. */
template <class T> __device__ __forceinline__ void exchange_by_warp(uint32_t step, const T &own)
{
    constexpr int count = sizeof(T) / sizeof(uint32_t);
    static_assert(sizeof(T) <= sizeof(exchange_slot) && sizeof(T) % sizeof(uint32_t) == 0, "fits");
    step_slots &slots = slots_of_step(step);
    uint32_t words[count], mine = 0;
    memcpy(words, &own, sizeof own);
#pragma unroll
    for (int i = 0; i < count; i++)
        mine = threadIdx.x == i ? words[i] : mine;
    if (threadIdx.x < count)
        ptx_store_relaxed_8(&slots[cluster_rank()][threadIdx.x], make_word(mine, step));
    if (threadIdx.x < kClusterCtas) {
        ptx_wait_for_step<count>(slots[threadIdx.x], step, words);
#pragma unroll
        for (int i = 0; i < count; i++)
            shared_state().buffers[step % 2][threadIdx.x][i] = words[i];
    }
    __syncwarp();
}

template <exchange_kind kind, class T>
__device__ __forceinline__ const exchange_slot *exchange_in_cluster(const T &own)
{
    if (threadIdx.x < 32) {
        const uint32_t step = begin_step();
        if (kind == EXCHANGE_MEMORY)
            ptx_fence_global();
        exchange_by_warp(step, own);
        if (kind == EXCHANGE_MEMORY)
            ptx_fence_global();
    }
    __syncthreads();
    return (const exchange_slot *)shared_state().buffers[shared_state().turn % 2];
}

__device__ __forceinline__ void sync_cluster()
{
    __syncthreads();
    exchange_in_cluster<EXCHANGE_MEMORY>(joined_count{0});
}

__device__ __forceinline__ void arrive_at_cluster()
{
    if (threadIdx.x >= 32)
        return;
    const uint32_t step = begin_step();
    if (threadIdx.x == 0)
        ptx_store_relaxed_8(&slots_of_step(step)[cluster_rank()][0], make_word(0, step));
}

__device__ __forceinline__ void wait_for_cluster()
{
    uint32_t none[1];
    const uint32_t step = shared_state().turn;
    if (threadIdx.x < kClusterCtas)
        ptx_wait_for_step<1>(slots_of_step(step)[threadIdx.x], step, none);
    __syncthreads();
}

/* --------------------------------------------------------------------------------- values ---- */

__device__ __forceinline__ void publish_found_bin(const found_bin &found)
{
    shared_state().decision = found;
}
__device__ __forceinline__ found_bin wait_for_found_bin()
{
    __syncthreads();
    const exchange_slot *slots = exchange_in_cluster<EXCHANGE_VALUES>(shared_state().decision);
    const int lane = threadIdx.x % 32;
    const bool has = lane < kClusterCtas && ((const found_bin *)&slots[lane])->bin >= 0;
    const uint32_t finders = __ballot_sync(~0u, has);
    return *(const found_bin *)&slots[finders ? __ffs(finders) - 1 : 0];
}

__device__ __forceinline__ float load_from_slice(int rank, int place)
{
    const float own = cluster_rank() == rank ? slice_logits()[place] : 0.0f;
    __syncthreads();
    const exchange_slot *slots =
        exchange_in_cluster<EXCHANGE_VALUES>(joined_count{__float_as_uint(own)});
    return __uint_as_float(slots[rank].words[0]);
}

/* --------------------------------------------------------------------------------- memory ---- */

template <class T> __device__ __forceinline__ const T *bins_of_rank(T *own, int rank)
{
    const ptrdiff_t place = (const char *)own - (const char *)shared_state().scratch.high;
    return (const T *)((const char *)memory_of_group().bins[rank] + place);
}

template <class T> __device__ __forceinline__ void publish_bins(const T *own)
{
    T *to = (T *)bins_of_rank(own, cluster_rank());
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBins; i += kThreads)
        to[i + threadIdx.x] = own[i + threadIdx.x];
}

__device__ __forceinline__ cuda_candidate &place_in_list(uint32_t place)
{
    return memory_of_group().list[cluster_rank() * kShortlistOfSlice + place];
}
__device__ __forceinline__ const cuda_candidate *lists_of_slices()
{
    return memory_of_group().list;
}

} // namespace

#endif

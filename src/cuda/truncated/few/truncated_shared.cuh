/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory of a CTA that draws a truncated row, alone or in a cluster, and reductions over the
 * CTA.
 *
 * A row runs through most code once, so fetching instructions costs more than executing them: loops
 * stay rolled, and code with several callers is out of line.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_SHARED_CUH
#define GUMBEL_CUDA_TRUNCATED_SHARED_CUH

#include "cuda/truncated/row/candidate_list.cuh"
#ifdef CUDA_ROWS_BY_GRID
#include "cuda/policy/grid_policy.h"
#endif

namespace
{

/* CTAs that hold a row: of a cluster, or of a cooperative launch (grid_exchange.cuh). */
#ifdef CUDA_ROWS_BY_GRID
constexpr int kClusterCtas = CUDA_GRID_CTAS;
#else
constexpr int kClusterCtas = CUDA_CLUSTER_CTAS;
#endif
/* Maximum 32-bit words of an exchanged value; with 14, the words of 16 slots lie in different
 * banks. */
constexpr int kExchangeWords = 14;
/* Tokens with which a CTA can finish a row, one per thread; and the maximum number that one slice
 * contributes. */
constexpr int kShortlist = kThreads, kShortlistOfSlice = GUMBEL_TOP_MAX;
/* Places of the lists of all slices, and those that each of the leader's threads packs. */
constexpr int kListPlaces = kClusterCtas * kShortlistOfSlice,
              kPlacesOfThread = kListPlaces / kThreads;
static_assert(kListPlaces % kThreads == 0 && kClusterCtas % kPlacesOfThread == 0,
              "threads hold equal numbers of places, of whole slices");
/* Tokens that a CTA queues for scoring, one per thread. */
constexpr int kOffers = kThreads;

/* Result of a walk down the bins of a cluster; bin -1: the weight does not suffice. */
struct found_bin {
    int bin;
    wide_sum above; /* weight above the bin */
};

/* Memory of a CTA after its slice has been read. */
struct row_scratch {
    unsigned long long high[kBins], low[kBins]; /* bins: sums of weights, or counts */
#ifdef CUDA_ROWS_BY_GRID
    cuda_candidate list[kShortlist]; /* leader only: packed */
#else
    cuda_candidate list[kListPlaces]; /* leader only: by slice, then packed */
#endif
    cuda_candidate offers[kOffers]; /* tokens that may win, with their z */
};

/* Mask and history bits of a slice while it is read, from the word of its first token on. */
struct slice_words {
    uint32_t allowed[CUDA_CLUSTER_WORDS], seen[CUDA_CLUSTER_WORDS];
};

/* State of a CTA next to its slice of the row. */
struct __align__(16) row_shared
{
    cuda_truncated_params call; /* written by load_call() */
    truncated_row row;
    uint32_t unresolved; /* bit mask of rows to serve */
    uint32_t turn;       /* parity of exchanges, or number of the last step of a grid */
    uint32_t count;      /* tokens gathered by this CTA */
    uint32_t offered;    /* tokens queued for scoring */
    __align__(16) uint32_t slots[kWarps][kExchangeWords];
    __align__(16) uint32_t buffers[2][kClusterCtas][kExchangeWords];
    __align__(16) found_bin decision;
    top_token top[GUMBEL_TOP_MAX];
    union __align__(16)
    {
        list_stage stage;    /* rows edited by lists */
        slice_words words;   /* other rows */
        row_scratch scratch; /* after the slice has been read */
    };
};

static_assert(sizeof(row_shared) <= CUDA_CLUSTER_SHARED_BYTES, "the launcher reserves that much");
static_assert(CUDA_CLUSTER_SHARED_BYTES % 16 == 0, "quads of the slice are aligned");

/* This CTA's shared memory and slice. Functions, so that the compiler knows the address space. */
__device__ __forceinline__ unsigned char *memory_of_cta()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return shared_memory;
}
__device__ __forceinline__ row_shared &shared_state() { return *(row_shared *)memory_of_cta(); }
__device__ __forceinline__ float *slice_logits()
{
    return (float *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES);
}

/* Copies the call's parameters to shared memory, where they are valid after a barrier. Functions
 * out of line read kernel parameters from memory that no first-level cache holds, which took 2 to 4
 * us of a row. For all threads. */
__device__ __forceinline__ const cuda_truncated_params &load_call(const cuda_truncated_params &p)
{
    static_assert(sizeof p % 8 == 0 && sizeof p / 8 <= kThreads, "eight bytes a thread");
    if (threadIdx.x < sizeof p / 8)
        ((uint64_t *)&shared_state().call)[threadIdx.x] =
            ptx_load_8((const uint64_t *)&p + threadIdx.x);
    return shared_state().call;
}

/* ------------------------------------------------------------- reductions over the CTA ---- */

struct __align__(8) exchange_slot { uint32_t words[kExchangeWords]; };

/* Joins `count` slots, by each warp, for all its lanes. */
template <class T> __device__ __forceinline__ T join_slots(const exchange_slot *slots, int count)
{
    int lane = threadIdx.x % 32;
    T own = lane < count ? *(const T *)&slots[lane] : T::empty();
    own.join_warp();
    return own;
}

/* Joins the values of all threads of the CTA, for all of them. T joins itself over a warp. */
template <class T> __device__ __forceinline__ T join_cta(T own)
{
    exchange_slot *slots = (exchange_slot *)shared_state().slots;
    own.join_warp();
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        *(T *)&slots[threadIdx.x / 32] = own;
    __syncthreads();
    return join_slots<T>(slots, kWarps);
}

struct joined_count {
    uint32_t value;
    static __device__ __forceinline__ joined_count empty() { return {0}; }
    __device__ __forceinline__ void join_warp() { value = __reduce_add_sync(~0u, value); }
};

struct joined_key {
    uint32_t value;
    static __device__ __forceinline__ joined_key empty() { return {0}; }
    __device__ __forceinline__ void join_warp() { value = __reduce_max_sync(~0u, value); }
};

struct joined_flags {
    uint32_t value;
    static __device__ __forceinline__ joined_flags empty() { return {0}; }
    __device__ __forceinline__ void join_warp() { value = __reduce_or_sync(~0u, value); }
};

struct joined_winner {
    draw_winner value;
    static __device__ __forceinline__ joined_winner empty() { return {draw_winner_none()}; }
    __device__ __forceinline__ void join_warp() { value = draw_winner_of_warp(value); }
};

struct joined_mass {
    gumbel_summary value;
    static __device__ __forceinline__ joined_mass empty()
    {
        joined_mass empty_mass;
        gumbel_summary_empty(&empty_mass.value);
        return empty_mass;
    }
    /* Joins masses only; the best token is not set. */
    __device__ __forceinline__ void join_warp()
    {
        int32_t exponent = __reduce_max_sync(~0u, value.mass_exponent);
        gumbel_mass_shift_to(&value, exponent);
#pragma unroll
        for (int i = 0; i < 3; i++)
            value.mass[i] = sum_of_warp(value.mass[i]);
        value.max_z = ordered_float(__reduce_max_sync(~0u, ordered_bits(value.max_z)));
        value.flags = __reduce_or_sync(~0u, value.flags);
    }
};

} // namespace

#endif

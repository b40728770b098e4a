/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared memory of a CTA that serves a row of a request, alone or as one of a team, and how its
 * threads join what they have.
 *
 * A row runs through most code once, so that fetching instructions costs more than executing them:
 * loops here are kept rolled, and what many places need is out of line.
 */
#ifndef GUMBEL_CUDA_REQUEST_SHARED_CUH
#define GUMBEL_CUDA_REQUEST_SHARED_CUH

#include "cuda/request/row/candidate_list.cuh"

namespace
{

constexpr int kClusterCtas = CUDA_REQUEST_CLUSTER;
/* Of 32 bits that an exchange takes at most; with 14, the banks of 16 slots differ. */
constexpr int kExchangeWords = 14;
/* Tokens that a CTA can end a row with, one a thread; and of them those of a share at most. */
constexpr int kShortlist = kThreads, kShortlistOfSlice = GUMBEL_TOP_MOST;
static_assert(kClusterCtas * kShortlistOfSlice == 2 * kThreads,
              "the leader's threads hold two places each");
/* Tokens that a CTA keeps to score them, one a thread. */
constexpr int kOffers = kThreads;

/* Where a walk down the bins of all CTAs ended: -1 for nowhere. */
struct found_bin {
    int bin;
    wide_sum above; /* what lies above the bin */
};

/* What a CTA needs once its share has been read. */
struct row_scratch {
    unsigned long long high[kBins], low[kBins]; /* bins: sums of weights, or counts */
    cuda_candidate
        list[kClusterCtas * kShortlistOfSlice]; /* the leader's: by shares, then in order */
    cuda_candidate offers[kOffers];             /* tokens of that z, which may win */
};

/* Bits of a share's tokens, while it is read: words that begin at the one of its first token. */
struct slice_words {
    uint32_t allowed[CUDA_REQUEST_WORDS], seen[CUDA_REQUEST_WORDS];
};

/* What a CTA holds beside its share of the row. */
struct __align__(16) row_shared
{
    cuda_request_params call; /* see load_call() */
    request_row row;
    uint32_t unresolved; /* rows to serve */
    uint32_t turn;       /* of exchanges */
    uint32_t count;      /* of this CTA's tokens that were gathered */
    uint32_t offered,
        threshold; /* tokens of it that may win; the score that one has, as ordered bits */
    __align__(16) uint32_t slots[kWarps][kExchangeWords];
    __align__(16) uint32_t buffers[2][kClusterCtas][kExchangeWords];
    __align__(16) found_bin decision;
    top_token top[GUMBEL_TOP_MOST];
    union __align__(16)
    {
        request_stage stage; /* where lists edit the share */
        slice_words words;   /* where they do not */
        row_scratch scratch; /* once it has been read */
    };
};

static_assert(sizeof(row_shared) <= CUDA_CLUSTER_SHARED_BYTES, "the launcher reserves that much");
static_assert(CUDA_CLUSTER_SHARED_BYTES % 16 == 0, "quads of the share are aligned");

/* What this CTA holds, and its share. By a function, so that all code knows them for shared
 * memory. */
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

/* The call's parameters, in shared memory, behind a barrier. Code out of line reads a kernel's own
 * parameters from memory, which no first-level cache keeps: that took 2 to 4 us of a row. For all
 * threads. */
__device__ __forceinline__ const cuda_request_params &load_call(const cuda_request_params &p)
{
    static_assert(sizeof p % 8 == 0 && sizeof p / 8 <= kThreads, "eight bytes a thread");
    if (threadIdx.x < sizeof p / 8)
        ((uint64_t *)&shared_state().call)[threadIdx.x] =
            ptx_load_8((const uint64_t *)&p + threadIdx.x);
    return shared_state().call;
}

/* ------------------------------------------------------------------ joined over the CTA ---- */

struct __align__(8) exchange_slot { uint32_t words[kExchangeWords]; };

/* What `count` slots hold, joined by each warp, for all lanes. */
template <class T> __device__ __forceinline__ T join_slots(const exchange_slot *slots, int count)
{
    int lane = threadIdx.x % 32;
    T own = lane < count ? *(const T *)&slots[lane] : T::empty();
    own.join_warp();
    return own;
}

/* What all threads of the CTA have, joined, for all of them. A T joins itself over a warp. */
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
    /* Of masses alone: nobody is the best of their tokens. */
    __device__ __forceinline__ void join_warp()
    {
        int32_t exponent = __reduce_max_sync(~0u, value.mass_exponent);
        gumbel_mass_raise(&value, exponent);
#pragma unroll
        for (int i = 0; i < 3; i++)
            value.mass[i] = sum_of_warp(value.mass[i]);
        value.max_z = ordered_float(__reduce_max_sync(~0u, ordered_bits(value.max_z)));
        value.flags = __reduce_or_sync(~0u, value.flags);
    }
};

} // namespace

#endif

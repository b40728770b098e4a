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

#include "cuda/request/row/request_screen.cuh"

namespace
{

constexpr int kRanks = CUDA_REQUEST_CLUSTER;
/* Of 32 bits that an exchange takes at most; with 14, the banks of 16 slots differ. */
constexpr int kExchangeWords = 14;
/* Tokens that a CTA can end a row with, one a thread; and of them those of a share at most. */
constexpr int kShortlist = kThreads, kShortlistOfShare = GUMBEL_TOP_MOST;
static_assert(kRanks * kShortlistOfShare == 2 * kThreads,
              "the leader's threads hold two places each");
/* Tokens that a CTA keeps to score them, one a thread. */
constexpr int kOffers = kThreads;

/* Where a walk down the bins of all CTAs ended: -1 for nowhere. */
struct team_decision {
    int bin;
    weight above; /* what lies above the bin */
};

/* What a CTA needs once its share has been read. */
struct team_bench {
    unsigned long long high[kBins], low[kBins];      /* bins: sums of weights, or counts */
    cuda_candidate list[kRanks * kShortlistOfShare]; /* the leader's: by shares, then in order */
    cuda_candidate offers[kOffers];                  /* tokens of that z, which may win */
};

/* Bits of a share's tokens, while it is read: words that begin at the one of its first token. */
struct team_words {
    uint32_t allowed[CUDA_REQUEST_WORDS], seen[CUDA_REQUEST_WORDS];
};

/* What a CTA holds beside its share of the row. */
struct __align__(16) team_shared
{
    cuda_request_params call; /* see bring_call() */
    request_row row;
    uint32_t left;          /* rows to serve */
    uint32_t turn;          /* of exchanges */
    uint32_t count;         /* of this CTA's tokens that were gathered */
    uint32_t offered, sure; /* tokens of it that may win; the score that one has, as ordered bits */
    __align__(16) uint32_t slots[kWarps][kExchangeWords];
    __align__(16) uint32_t boxes[2][kRanks][kExchangeWords];
    __align__(16) team_decision decision;
    listed top[GUMBEL_TOP_MOST];
    union __align__(16)
    {
        request_stage stage; /* where lists edit the share */
        team_words words;    /* where they do not */
        team_bench bench;    /* once it has been read */
    };
};

static_assert(sizeof(team_shared) <= CUDA_CLUSTER_SHARED_BYTES, "the launcher reserves that much");
static_assert(CUDA_CLUSTER_SHARED_BYTES % 16 == 0, "quads of the share are aligned");

/* What this CTA holds, and its share. By a function, so that all code knows them for shared
 * memory. */
__device__ __forceinline__ unsigned char *memory_of_cta()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return shared_memory;
}
__device__ __forceinline__ team_shared &shared() { return *(team_shared *)memory_of_cta(); }
__device__ __forceinline__ float *share()
{
    return (float *)(memory_of_cta() + CUDA_CLUSTER_SHARED_BYTES);
}

/* The call's parameters, in shared memory, behind a barrier. Code out of line reads a kernel's own
 * parameters from memory, which no first-level cache keeps: that took 2 to 4 us of a row. For all
 * threads. */
__device__ __forceinline__ const cuda_request_params &bring_call(const cuda_request_params &p)
{
    static_assert(sizeof p % 8 == 0 && sizeof p / 8 <= kThreads, "eight bytes a thread");
    if (threadIdx.x < sizeof p / 8)
        ((uint64_t *)&shared().call)[threadIdx.x] = ptx_load_8((const uint64_t *)&p + threadIdx.x);
    return shared().call;
}

/* ------------------------------------------------------------------ joined over the CTA ---- */

struct __align__(8) team_slot { uint32_t words[kExchangeWords]; };

/* What `count` slots hold, joined by each warp, for all lanes. */
template <class T> __device__ __forceinline__ T join_slots(const team_slot *slots, int count)
{
    int lane = threadIdx.x % 32;
    T own = lane < count ? *(const T *)&slots[lane] : T::none();
    own.join_warp();
    return own;
}

/* What all threads of the CTA have, joined, for all of them. A T joins itself over a warp. */
template <class T> __device__ __forceinline__ T cta_over(T own)
{
    team_slot *slots = (team_slot *)shared().slots;
    own.join_warp();
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        *(T *)&slots[threadIdx.x / 32] = own;
    __syncthreads();
    return join_slots<T>(slots, kWarps);
}

struct team_count {
    uint32_t of;
    static __device__ __forceinline__ team_count none() { return {0}; }
    __device__ __forceinline__ void join_warp() { of = __reduce_add_sync(~0u, of); }
};

struct team_key {
    uint32_t of;
    static __device__ __forceinline__ team_key none() { return {0}; }
    __device__ __forceinline__ void join_warp() { of = __reduce_max_sync(~0u, of); }
};

struct team_flags {
    uint32_t of;
    static __device__ __forceinline__ team_flags none() { return {0}; }
    __device__ __forceinline__ void join_warp() { of = __reduce_or_sync(~0u, of); }
};

struct team_winner {
    draw_winner of;
    static __device__ __forceinline__ team_winner none() { return {draw_winner_none()}; }
    __device__ __forceinline__ void join_warp() { of = draw_winner_of_warp(of); }
};

struct team_mass {
    gumbel_summary of;
    static __device__ __forceinline__ team_mass none()
    {
        team_mass made;
        gumbel_summary_empty(&made.of);
        return made;
    }
    /* Of masses alone: nobody is the best of their tokens. */
    __device__ __forceinline__ void join_warp()
    {
        int32_t exponent = __reduce_max_sync(~0u, of.mass_exponent);
        gumbel_mass_raise(&of, exponent);
#pragma unroll
        for (int i = 0; i < 3; i++)
            of.mass[i] = sum_of_warp(of.mass[i]);
        of.max_z = ordered_float(__reduce_max_sync(~0u, ordered_bits(of.max_z)));
        of.flags = __reduce_or_sync(~0u, of.flags);
    }
};

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The entropy of a row whose slices are read by the CTAs of a cluster, or by one CTA.
 */
#ifndef GUMBEL_CUDA_ENTROPY_ROW_CUH
#define GUMBEL_CUDA_ENTROPY_ROW_CUH

#include "core/row.h"
#include "maths/edits.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/facts.cuh"
#include "cuda/common/widen.cuh"
#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int kEntropyThreads = CUDA_ENTROPY_THREADS, kEntropyWarps = kEntropyThreads / 32;

/* gumbel_facts.mass and .weighted, in words of an exchange. */
struct entropy_sums {
    uint64_t mass[2], weighted[2];
};

struct entropy_shared {
    entropy_sums warp_sums[kEntropyWarps];
    entropy_sums slice_sums[CUDA_CLUSTER_CTAS]; /* of all slices, in CTA 0 */
    float warp_largest[kEntropyWarps];
    float slice_largest[CUDA_CLUSTER_CTAS]; /* of all slices, in every CTA */
};
static_assert(sizeof(entropy_shared) <= CUDA_ENTROPY_BYTES, "the launcher reserves that much");

__device__ __forceinline__ entropy_shared &entropy_state()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(entropy_shared *)shared_memory;
}

/* The values of a slice of row b: z, or raw logits. */
struct entropy_slice {
    const cuda_entropy_params &p;
    int64_t begin, end, row; /* columns; index of the row's first element */
    float inverse_temperature;

    __device__ __forceinline__ entropy_slice(const cuda_entropy_params &params, int64_t b, int rank,
                                             int ctas)
        : p(params), row(b * params.problem.logits.stride)
    {
        const gumbel_problem &q = p.problem;
        const int64_t count = max(q.end_token - q.first_token, (int64_t)0);
        const int64_t size = (count + 128 * ctas - 1) / (128 * ctas) * 128;
        begin = min(rank * size, count);
        end = min(begin + size, count);
        inverse_temperature = p.transforms ? gumbel_problem_row(&q, b).inverse_temperature : 1.0f;
    }

    __device__ __forceinline__ float load(int64_t at) const
    {
        const gumbel_problem &q = p.problem;
        const float l = widen_element(q.logits.data, q.logits.dtype, row + at);
        return p.transforms ? gumbel_transform_logit(l, q.scale, q.soft_cap, p.inverse_cap,
                                                     inverse_temperature)
                            : l;
    }

    /* Calls f(v) for the values of the thread. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll 4
        for (int64_t at = begin + threadIdx.x; at < end; at += kEntropyThreads)
            f(load(at));
    }
};

/* The largest value of the row, for all threads of its CTAs; NaN if a value is NaN. */
template <class Ctas> __device__ __forceinline__ float find_row_largest(const entropy_slice &slice)
{
    entropy_shared &s = entropy_state();
    float largest = -INFINITY;
    slice.each([&](float v) { largest = ptx_max_nan(largest, v); });
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        largest = ptx_max_nan(largest, __shfl_xor_sync(~0u, largest, lanes));
    if (threadIdx.x % 32 == 0)
        s.warp_largest[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < kEntropyWarps; i++)
        largest = ptx_max_nan(largest, s.warp_largest[i]);
    if (threadIdx.x < Ctas::count)
        *Ctas::map_to_rank(&s.slice_largest[Ctas::get_rank()], threadIdx.x) = largest;
    Ctas::sync();
    for (int i = 0; i < Ctas::count; i++)
        largest = ptx_max_nan(largest, s.slice_largest[i]);
    return largest;
}

__device__ __forceinline__ void add_sums(gumbel_facts &facts, const entropy_sums &sums)
{
    facts.mass += (gumbel_wide)sums.mass[1] << 64 | sums.mass[0];
    facts.weighted += (gumbel_wide)sums.weighted[1] << 64 | sums.weighted[0];
}

__device__ __forceinline__ entropy_sums sums_of(const gumbel_facts &facts)
{
    return {{(uint64_t)facts.mass, (uint64_t)(facts.mass >> 64)},
            {(uint64_t)facts.weighted, (uint64_t)(facts.weighted >> 64)}};
}

/* The sums of the row, for thread 0 of its first CTA. */
template <class Ctas>
__device__ __forceinline__ gumbel_facts sum_row(const entropy_slice &slice, float largest)
{
    /* exp(-43) in units of 2^-61 is below 1: smaller values have no mass. */
    constexpr float reach = -43.0f;
    entropy_shared &s = entropy_state();
    gumbel_facts own = {}, row = {};
    slice.each([&](float v) {
        if (v - largest > reach)
            add_to_facts(own, GUMBEL_FACT_ENTROPY, v, largest);
    });
    own.mass = sum_wide_of_warp(own.mass);
    own.weighted = sum_wide_of_warp(own.weighted);
    if (threadIdx.x % 32 == 0)
        s.warp_sums[threadIdx.x / 32] = sums_of(own);
    __syncthreads();
    if (threadIdx.x == 0) {
        gumbel_facts cta = {};
        for (int i = 0; i < kEntropyWarps; i++)
            add_sums(cta, s.warp_sums[i]);
        *Ctas::map_to_rank(&s.slice_sums[Ctas::get_rank()], 0) = sums_of(cta);
    }
    Ctas::sync();
    if (threadIdx.x == 0 && Ctas::get_rank() == 0)
        for (int i = 0; i < Ctas::count; i++)
            add_sums(row, s.slice_sums[i]);
    return row;
}

/* Writes the entropy of row b; NaN if the row has no token or, of raw logits, a NaN or +inf. */
template <class Ctas>
__device__ __forceinline__ void store_entropy(const cuda_entropy_params &p, int64_t b)
{
    const bool writes = threadIdx.x == 0 && Ctas::get_rank() == 0;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (p.status[b] != GUMBEL_ROW_OK) {
        if (writes)
            p.entropy[b] = NAN;
        return;
    }
    Ctas::sync(); /* all CTAs of the cluster run */
    const entropy_slice slice(p, b, Ctas::get_rank(), Ctas::count);
    const float largest = find_row_largest<Ctas>(slice);
    const bool finite = largest > -INFINITY && largest < INFINITY;
    gumbel_facts row = {};
    if (finite)
        row = sum_row<Ctas>(slice, largest);
    if (writes)
        p.entropy[b] = finite ? gumbel_facts_entropy(&row) : NAN;
}

} // namespace

#endif

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
#include "cuda/common/logits_step.cuh"
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

/* z with a soft-cap, out of line as few calls have one. */
__device__ __noinline__ float cap_logit(const cuda_entropy_params &p, float l,
                                        float inverse_temperature)
{
    const gumbel_problem &q = p.problem;
    return gumbel_transform_logit(l, q.scale, q.soft_cap, p.inverse_cap, inverse_temperature);
}

/* The values of a slice of row b: z, or raw logits. */
template <gumbel_dtype dtype> struct entropy_slice {
    using element = typename quad<dtype>::element;

    const cuda_entropy_params &p;
    const element *row; /* of the row's first column */
    int64_t begin, end; /* columns; `begin` is a multiple of 128 unless the slice is empty */
    float inverse_temperature;

    __device__ __forceinline__ entropy_slice(const cuda_entropy_params &params, int64_t b, int rank,
                                             int ctas)
        : p(params),
          row((const element *)params.problem.logits.data + b * params.problem.logits.stride)
    {
        const gumbel_problem &q = p.problem;
        const int64_t count = max(q.end_token - q.first_token, (int64_t)0);
        const int64_t size = (count + 128 * ctas - 1) / (128 * ctas) * 128;
        begin = min(rank * size, count);
        end = min(begin + size, count);
        inverse_temperature = p.transforms ? gumbel_problem_row(&q, b).inverse_temperature : 1.0f;
    }

    __device__ __forceinline__ float to_value(float l) const
    {
        if (!p.transforms)
            return l;
        return p.problem.soft_cap > 0.0f ? cap_logit(p, l, inverse_temperature)
                                         : l * p.problem.scale * inverse_temperature;
    }

    /* Calls f(v) for the thread's values among the columns [from, to). Whole quads are loaded at
     * once if the row is aligned; `from` is then a multiple of 4. */
    template <class F> __device__ __forceinline__ void each(int64_t from, int64_t to, F f) const
    {
        const bool aligned = (uintptr_t)row % sizeof(quad<dtype>) == 0;
        const int64_t singles = aligned ? from + (to - from) / 4 * 4 : from;
#pragma unroll 4
        for (int64_t at = from + 4 * threadIdx.x; at < singles; at += 4 * kEntropyThreads) {
            const four l = ((const quad<dtype> *)(row + at))->to_floats();
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(to_value(l.v[i]));
        }
#pragma unroll 1
        for (int64_t at = singles + threadIdx.x; at < to; at += kEntropyThreads)
            f(to_value(widen_element(row, dtype, at)));
    }
};

/* The largest value of the row, for all threads of its CTAs; NaN if a value is NaN. */
template <class Ctas, gumbel_dtype dtype>
__device__ __forceinline__ float find_row_largest(const entropy_slice<dtype> &slice)
{
    entropy_shared &s = entropy_state();
    float largest = -INFINITY;
    slice.each(slice.begin, slice.end, [&](float v) { largest = ptx_max_nan(largest, v); });
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
template <class Ctas, gumbel_dtype dtype>
__device__ __forceinline__ gumbel_facts sum_row(const entropy_slice<dtype> &slice, float largest)
{
    constexpr int64_t run = kNarrowValues * kEntropyThreads;
    entropy_shared &s = entropy_state();
    gumbel_facts own = {}, row = {};
#pragma unroll 1
    for (int64_t from = slice.begin; from < slice.end; from += run) {
        narrow_sums sums = {};
        slice.each(from, min(from + run, slice.end), [&](float v) { sums.add(v, largest); });
        sums.add_to(own);
    }
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

/* Writes the entropy of row b, whose status is OK; NaN if raw logits have a NaN or +inf. */
template <class Ctas, gumbel_dtype dtype>
__device__ __forceinline__ void store_entropy_of_slices(const cuda_entropy_params &p, int64_t b)
{
    const entropy_slice<dtype> slice(p, b, Ctas::get_rank(), Ctas::count);
    const float largest = find_row_largest<Ctas>(slice);
    const bool finite = largest > -INFINITY && largest < INFINITY;
    gumbel_facts row = {};
    if (finite)
        row = sum_row<Ctas>(slice, largest);
    if (threadIdx.x == 0 && Ctas::get_rank() == 0)
        p.entropy[b] = finite ? gumbel_facts_entropy(&row) : NAN;
}

/* Writes the entropy of row b; NaN if the row has no token. */
template <class Ctas>
__device__ __forceinline__ void store_entropy(const cuda_entropy_params &p, int64_t b)
{
    const gumbel_dtype dtype = p.problem.logits.dtype;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (p.status[b] != GUMBEL_ROW_OK) {
        if (threadIdx.x == 0 && Ctas::get_rank() == 0)
            p.entropy[b] = NAN;
        return;
    }
    Ctas::sync(); /* all CTAs of the cluster run */
    if (dtype == GUMBEL_FLOAT32)
        store_entropy_of_slices<Ctas, GUMBEL_FLOAT32>(p, b);
    else if (dtype == GUMBEL_BFLOAT16)
        store_entropy_of_slices<Ctas, GUMBEL_BFLOAT16>(p, b);
    else
        store_entropy_of_slices<Ctas, GUMBEL_FLOAT16>(p, b);
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   rows of probabilities (eq. 13), by two launches: what parts of rows weigh, then
 *        exp(z - max z) times the share of the likeliest token.
 * COST   reads B V logits twice, the second time from the second-level cache where they fit, and
 *        writes 4 B V bytes; two exponentials a token, some 30 operations.
 * MAP    a CTA takes a part of a row in both launches; a warp 512 tokens at a time, a lane four
 *        quads of a block of 64 that it shares with three others. Columns count from the row's
 *        start, so that whole rows of aligned float4 stay so.
 * SMEM   a summary a thread.
 * SYNC   the second launch waits for the first. A thread writes where it alone has read, as a row
 *        may be written over itself.
 * NUMERICS  core/summary.h: blocks are summed by eq. 8 and added exactly, so nothing depends on how
 *        rows are cut into parts.
 */
#include "cuda/cuda_params.h"
#include "cuda/logits_step.cuh"
#include "cuda/merge.cuh"

namespace
{

constexpr int kThreads = CUDA_SOFTMAX_THREADS, kWarps = kThreads / 32;

/* A row's part, as one lane sees it. */
template <gumbel_dtype dtype> struct part_rows {
    using element = typename quad<dtype>::element;

    const cuda_softmax_params &p;
    int64_t b, begin, end; /* columns */
    const element *from;   /* row b */
    float *to;
    float inverse_temperature;
    bool valid;

    __device__ __forceinline__ part_rows(const cuda_softmax_params &params)
        : p(params), b(blockIdx.x / p.parts), begin(blockIdx.x % p.parts * p.chunk)
    {
        const gumbel_problem &q = p.problem;
        end = min(begin + p.chunk, q.vocab);
        from = (const element *)q.logits.data + b * q.logits.stride;
        to = p.probabilities + b * p.stride;
        inverse_temperature = gumbel_problem_row(&q, b).inverse_temperature;
        valid = gumbel_problem_row_valid(&q, b);
    }

    /* The lane's first column in the first step of its warp. */
    __device__ __forceinline__ int64_t first() const
    {
        int lane = threadIdx.x % 32;
        return begin + threadIdx.x / 32 * kStep + lane / 4 * GUMBEL_BLOCK + lane % 4 * 4;
    }

    /* z of columns at .. at + 3; -inf for those that do not count. */
    __device__ __forceinline__ four load(int64_t at) const
    {
        const gumbel_problem &q = p.problem;
        four z;
        if (at + 4 <= end && (uintptr_t)(from + at) % sizeof(quad<dtype>) == 0) {
            z = ((const quad<dtype> *)(from + at))->widen();
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                z.v[i] = at + i < end ? widen_element(from, dtype, at + i) : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z.v[i] =
                gumbel_transform(z.v[i], q.scale, q.soft_cap, p.inverse_cap, inverse_temperature);
            if (q.first_token + at + i >= q.end_token || at + i >= end)
                z.v[i] = -INFINITY;
        }
        return z;
    }

    __device__ __forceinline__ void store(int64_t at, const four &x) const
    {
        if (at + 4 <= end && (uintptr_t)(to + at) % sizeof(float4) == 0) {
            *(float4 *)(to + at) = {x.v[0], x.v[1], x.v[2], x.v[3]};
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at + i < end)
                to[at + i] = x.v[i];
    }
};

__device__ __forceinline__ uint32_t flags_of(const four &z)
{
    uint32_t flags = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        flags |= isnan(z.v[i]) ? GUMBEL_FLAG_NAN : z.v[i] == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
    return flags;
}

/* The summary of a part: its mass, its largest z, and what was seen. */
template <gumbel_dtype dtype> __device__ __forceinline__ void weigh(const cuda_softmax_params &p)
{
    __shared__ gumbel_summary own[kThreads], of_warp[kWarps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    part_rows<dtype> part(p);
    uint32_t flags = part.valid ? 0 : GUMBEL_FLAG_TEMPERATURE;
    gumbel_summary_empty(&own[threadIdx.x]);
    warp_mass mass = {&own[threadIdx.x], lane, false};
    for (int64_t at = part.first(); at - lane / 4 * GUMBEL_BLOCK - lane % 4 * 4 < part.end;
         at += kWarps * kStep) {
        four z[kQuads];
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            z[k] = part.load(at + kStride * k);
            flags |= flags_of(z[k]);
        }
        mass.add(z);
    }
    mass.flush();
    gumbel_summary sum = own[threadIdx.x];
    merge_masses_of_lanes<32>(&sum);
    sum.flags = __reduce_or_sync(~0u, flags);
    if (lane == 0)
        of_warp[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < kWarps; i++)
        gumbel_summary_merge(&sum, &of_warp[i]);
    p.masses[blockIdx.x] = sum;
}

template <gumbel_dtype dtype>
__device__ __forceinline__ void normalise(const cuda_softmax_params &p)
{
    __shared__ float max_z, share;
    part_rows<dtype> part(p);
    ptx_wait_for_launch();
    if (threadIdx.x < 32) {
        gumbel_summary whole = merge_parts(&p.masses[part.b * p.parts], p.parts, 1, true);
        if (threadIdx.x == 0) {
            max_z = whole.max_z;
            share = gumbel_summary_share(&whole);
        }
    }
    __syncthreads();
    for (int64_t at = part.first(); at < part.end; at += kWarps * kStep)
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            four z = part.load(at + kStride * k);
#pragma unroll
            for (int i = 0; i < 4; i++)
                z.v[i] = gumbel_relative(z.v[i], max_z) * share;
            part.store(at + kStride * k, z);
        }
}

} // namespace

#define KERNELS(name, dtype)                                                                       \
    extern "C" __global__ void __launch_bounds__(kThreads)                                         \
        gumbel_weigh_##name(const __grid_constant__ cuda_softmax_params params)                    \
    {                                                                                              \
        weigh<dtype>(params);                                                                      \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads)                                         \
        gumbel_normalise_##name(const __grid_constant__ cuda_softmax_params params)                \
    {                                                                                              \
        normalise<dtype>(params);                                                                  \
    }
KERNELS(f32, GUMBEL_FLOAT32)
KERNELS(bf16, GUMBEL_BFLOAT16)
KERNELS(f16, GUMBEL_FLOAT16)

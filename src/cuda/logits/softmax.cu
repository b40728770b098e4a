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
 * NUMERICS  summary.h: blocks are summed by eq. 8 and added exactly, so nothing depends on how
 *        rows are cut into parts.
 */
#include "cuda/common/cuda_params.h"
#include "cuda/common/logits_step.cuh"
#include "cuda/common/merge.cuh"

namespace
{

constexpr int kThreads = CUDA_SOFTMAX_THREADS, kWarps = kThreads / 32;

/* A row's part, as one lane sees it. Columns are below 2^31. */
template <gumbel_dtype dtype> struct part_of_row {
    using element = typename quad<dtype>::element;

    const cuda_softmax_params &p;
    int64_t b;
    int begin, end, counting; /* columns; those from `counting` on do not count */
    const element *from;      /* row b */
    float *to;
    float inverse_temperature;
    bool quads; /* whole ones of the row can be loaded */

    __device__ __forceinline__ part_of_row(const cuda_softmax_params &params, int64_t place)
        : p(params), b(place / p.parts), begin((int)(place % p.parts * p.chunk))
    {
        const gumbel_problem &q = p.problem;
        end = (int)min(begin + p.chunk, q.vocab);
        counting = (int)min((int64_t)end, max(q.end_token - q.first_token, (int64_t)0));
        from = (const element *)q.logits.data + b * q.logits.stride;
        to = p.probabilities + b * p.stride;
        inverse_temperature = gumbel_problem_row(&q, b).inverse_temperature;
        quads = (uintptr_t)from % sizeof(quad<dtype>) == 0;
    }

    /* The first column of the warp, and from there the lane's. */
    __device__ __forceinline__ int first() const { return begin + threadIdx.x / 32 * kStep; }
    __device__ __forceinline__ int place() const
    {
        int lane = threadIdx.x % 32;
        return lane / 4 * GUMBEL_BLOCK + lane % 4 * 4;
    }

    /* The lane's z of the step at `base`; -inf for columns that do not count. */
    __device__ __forceinline__ void load(int base, four (&z)[kQuads]) const
    {
        const gumbel_problem &q = p.problem;
        base += place();
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            int at = base + kStride * k;
            if (quads && at + 4 <= counting) {
                z[k] = ((const quad<dtype> *)(from + at))->to_floats();
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[k].v[i] = at + i < counting ? widen_element(from, dtype, at + i) : -INFINITY;
        }
        if (q.soft_cap != 0.0f || q.scale < 0.0f)
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                z[k] = transform(z[k], counting - base - kStride * k);
        else
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] = z[i / 4].v[i % 4] * q.scale * inverse_temperature;
    }

    /* The same where -inf may become something else; `left` columns count. */
    __device__ __forceinline__ four transform(four z, int left) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            float y =
                gumbel_transform(z.v[0], q.scale, q.soft_cap, p.inverse_cap, inverse_temperature);
            z = {z.v[1], z.v[2], z.v[3], i < left ? y : -INFINITY};
        }
        return z;
    }

    __device__ __forceinline__ void store(int base, const four (&x)[kQuads]) const
    {
        base += place();
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            int at = base + kStride * k;
            if (at + 4 <= end && (uintptr_t)(to + at) % sizeof(float4) == 0) {
                *(float4 *)(to + at) = {x[k].v[0], x[k].v[1], x[k].v[2], x[k].v[3]};
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (at + i < end)
                    to[at + i] = x[k].v[i];
        }
    }
};

__device__ __forceinline__ uint32_t flags_of(const four (&z)[kQuads])
{
    float top = largest_of(z[0]);
    uint32_t flags = 0;
#pragma unroll
    for (int k = 1; k < kQuads; k++)
        top = ptx_max_nan(top, largest_of(z[k]));
    if (!(top < INFINITY))
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++) {
            float own = z[i / 4].v[i % 4];
            flags |= isnan(own) ? GUMBEL_FLAG_NAN : own == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        }
    return flags;
}

/* The summary of a part: its mass, its largest z, and what was seen. */
template <gumbel_dtype dtype> __device__ __forceinline__ void weigh(const cuda_softmax_params &p)
{
    __shared__ gumbel_summary own[kThreads], of_warp[kWarps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    part_of_row<dtype> part(p, blockIdx.x);
    uint32_t flags = gumbel_problem_row_flags(&p.problem, part.b);
    gumbel_summary_empty(&own[threadIdx.x]);
    warp_mass mass = {&own[threadIdx.x], lane, false};
    for (int base = part.first(); base < part.end; base += kWarps * kStep) {
        four z[kQuads];
        part.load(base, z);
        flags |= flags_of(z);
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

/* From the last row on, which was read last and is still in the second-level cache. */
template <gumbel_dtype dtype>
__device__ __forceinline__ void normalise(const cuda_softmax_params &p)
{
    __shared__ float max_z, share;
    part_of_row<dtype> part(p, gridDim.x - 1 - blockIdx.x);
    ptx_wait_for_launch();
    if (threadIdx.x < 32) {
        gumbel_summary whole = merge_parts(&p.masses[part.b * p.parts], p.parts, 1, true);
        if (threadIdx.x == 0) {
            max_z = whole.max_z;
            share = gumbel_summary_share(&whole);
        }
    }
    __syncthreads();
    for (int base = part.first(); base < part.end; base += kWarps * kStep) {
        four z[kQuads];
        part.load(base, z);
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++)
            z[i / 4].v[i % 4] = gumbel_relative(z[i / 4].v[i % 4], max_z) * share;
        part.store(base, z);
    }
}

} // namespace

#define KERNELS(name, dtype)                                                                       \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_SOFTMAX_CTAS)                      \
        gumbel_weigh_##name(const __grid_constant__ cuda_softmax_params params)                    \
    {                                                                                              \
        weigh<dtype>(params);                                                                      \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_SOFTMAX_CTAS)                      \
        gumbel_normalise_##name(const __grid_constant__ cuda_softmax_params params)                \
    {                                                                                              \
        normalise<dtype>(params);                                                                  \
    }
KERNELS(f32, GUMBEL_FLOAT32)
KERNELS(bf16, GUMBEL_BFLOAT16)
KERNELS(f16, GUMBEL_FLOAT16)

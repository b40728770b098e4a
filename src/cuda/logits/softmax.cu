/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT computes rows of probabilities (eq. 13) in two launches: the masses of splits of rows, then
 *        exp(z - max z) times the probability of the most likely token.
 * COST   reads B V logits twice, the second time from the L2 cache if they fit, and writes 4 B V
 *        bytes; two exponentials per token, about 30 operations.
 * MAP    a CTA processes one split of a row in both launches; a warp, 512 tokens per iteration; a
 *        lane, four quads. Four lanes share a block of 64 tokens. Splits begin at multiples of the
 *        split size from the row's first column, so that aligned rows allow vector loads.
 * SMEM   one summary per thread.
 * SYNC   the second launch waits for the end of the first. No CTA waits for another: the output may
 *        alias the logits, so each thread writes only columns that it has read itself.
 * NUMERICS  summary.h: blocks are summed by eq. 8 and added exactly, so the bits do not depend on
 *        the splits.
 */
#include "cuda/common/cuda_params.h"
#include "cuda/common/logits_step.cuh"
#include "cuda/common/merge.cuh"

namespace
{

constexpr int kThreads = CUDA_SOFTMAX_THREADS, kWarps = kThreads / 32;

/* A lane's view of a split of a row. Columns are below 2^31. */
template <gumbel_dtype dtype> struct column_split {
    using element = typename quad<dtype>::element;

    const cuda_softmax_params &p;
    int64_t b;
    int begin, end;
    int valid_end;         /* columns in [valid_end, end) are padding; their probability is 0 */
    const element *logits; /* row b */
    float *probabilities;  /* row b */
    float inverse_temperature;
    bool is_aligned; /* row b allows vector loads of quads */

    __device__ __forceinline__ column_split(const cuda_softmax_params &params, int64_t index)
        : p(params), b(index / p.splits), begin((int)(index % p.splits * p.split_size))
    {
        const gumbel_problem &q = p.problem;
        end = (int)min(begin + p.split_size, q.vocab);
        valid_end = (int)min((int64_t)end, max(q.end_token - q.first_token, (int64_t)0));
        logits = (const element *)q.logits.data + b * q.logits.stride;
        probabilities = p.probabilities + b * p.stride;
        inverse_temperature = gumbel_problem_row(&q, b).inverse_temperature;
        is_aligned = (uintptr_t)logits % sizeof(quad<dtype>) == 0;
    }

    /* The first column of the warp, and the lane's offset from it. */
    __device__ __forceinline__ int first_column() const { return begin + threadIdx.x / 32 * kStep; }
    __device__ __forceinline__ int lane_offset() const
    {
        int lane = threadIdx.x % 32;
        return lane / 4 * GUMBEL_BLOCK + lane % 4 * 4;
    }

    /* The lane's z of the step at `base`; -inf from `valid_end` on. */
    __device__ __forceinline__ void load(int base, four (&z)[kQuads]) const
    {
        const gumbel_problem &q = p.problem;
        base += lane_offset();
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            int at = base + kStride * k;
            if (is_aligned && at + 4 <= valid_end) {
                z[k] = ((const quad<dtype> *)(logits + at))->to_floats();
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[k].v[i] = at + i < valid_end ? widen_element(logits, dtype, at + i) : -INFINITY;
        }
        if (q.soft_cap != 0.0f || q.scale < 0.0f)
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                z[k] = transform(z[k], valid_end - base - kStride * k);
        else
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] = z[i / 4].v[i % 4] * q.scale * inverse_temperature;
    }

    /* z of a quad by the full transform; -inf from element `valid` on. */
    __device__ __forceinline__ four transform(four z, int valid) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            float y = gumbel_transform_logit(z.v[0], q.scale, q.soft_cap, p.inverse_cap,
                                             inverse_temperature);
            z = {z.v[1], z.v[2], z.v[3], i < valid ? y : -INFINITY};
        }
        return z;
    }

    __device__ __forceinline__ void store(int base, const four (&x)[kQuads]) const
    {
        base += lane_offset();
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            int at = base + kStride * k;
            if (at + 4 <= end && (uintptr_t)(probabilities + at) % sizeof(float4) == 0) {
                *(float4 *)(probabilities + at) = {x[k].v[0], x[k].v[1], x[k].v[2], x[k].v[3]};
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (at + i < end)
                    probabilities[at + i] = x[k].v[i];
        }
    }
};

__device__ __forceinline__ uint32_t flags_of(const four (&z)[kQuads])
{
    float max_z = largest_of(z[0]);
    uint32_t flags = 0;
#pragma unroll
    for (int k = 1; k < kQuads; k++)
        max_z = ptx_max_nan(max_z, largest_of(z[k]));
    if (!(max_z < INFINITY))
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++) {
            float value = z[i / 4].v[i % 4];
            flags |= isnan(value) ? GUMBEL_FLAG_NAN : value == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        }
    return flags;
}

/* The summary of a split: mass, largest z and flags. */
template <gumbel_dtype dtype>
__device__ __forceinline__ void sum_split(const cuda_softmax_params &p)
{
    __shared__ gumbel_summary thread_summaries[kThreads], warp_summaries[kWarps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    column_split<dtype> split(p, blockIdx.x);
    uint32_t flags = gumbel_problem_row_flags(&p.problem, split.b);
    gumbel_summary_empty(&thread_summaries[threadIdx.x]);
    mass_accumulator mass = {&thread_summaries[threadIdx.x], lane, false};
    for (int base = split.first_column(); base < split.end; base += kWarps * kStep) {
        four z[kQuads];
        split.load(base, z);
        flags |= flags_of(z);
        mass.add(z);
    }
    mass.flush();
    gumbel_summary sum = thread_summaries[threadIdx.x];
    merge_masses_of_lanes<32>(&sum);
    sum.flags = __reduce_or_sync(~0u, flags);
    if (lane == 0)
        warp_summaries[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < kWarps; i++)
        gumbel_summary_merge(&sum, &warp_summaries[i]);
    p.masses[blockIdx.x] = sum;
}

/* Writes the probabilities of a split. Splits go from the last to the first: the first launch read
 * the last one last, so that it is still in the L2 cache. */
template <gumbel_dtype dtype>
__device__ __forceinline__ void normalize_split(const cuda_softmax_params &p)
{
    __shared__ float max_z, max_probability;
    column_split<dtype> split(p, gridDim.x - 1 - blockIdx.x);
    ptx_wait_for_launch();
    if (threadIdx.x < 32) {
        gumbel_summary row = merge_summaries(&p.masses[split.b * p.splits], p.splits, 1, true);
        if (threadIdx.x == 0) {
            max_z = row.max_z;
            max_probability = gumbel_summary_max_probability(&row);
        }
    }
    __syncthreads();
    for (int base = split.first_column(); base < split.end; base += kWarps * kStep) {
        four z[kQuads];
        split.load(base, z);
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++)
            z[i / 4].v[i % 4] =
                gumbel_relative_probability(z[i / 4].v[i % 4], max_z) * max_probability;
        split.store(base, z);
    }
}

} // namespace

#define KERNELS(name, dtype)                                                                       \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_SOFTMAX_CTAS)                      \
        gumbel_sum_masses_##name(const __grid_constant__ cuda_softmax_params params)               \
    {                                                                                              \
        sum_split<dtype>(params);                                                                  \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_SOFTMAX_CTAS)                      \
        gumbel_normalize_##name(const __grid_constant__ cuda_softmax_params params)                \
    {                                                                                              \
        normalize_split<dtype>(params);                                                            \
    }
KERNELS(f32, GUMBEL_FLOAT32)
KERNELS(bf16, GUMBEL_BFLOAT16)
KERNELS(f16, GUMBEL_FLOAT16)

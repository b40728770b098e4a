/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel that serves rows from few of their blocks: it finds the largest logit of each block,
 * unless the product has stored these block maxima, and the last CTA of a row tries to serve it.
 * `Rows` sets the parameters of a row and finishes it, as
 * truncation_rows does.
 */
#ifndef GUMBEL_CUDA_BLOCK_KERNEL_CUH
#define GUMBEL_CUDA_BLOCK_KERNEL_CUH

#include "cuda/common/cta_counter.cuh"
#include "cuda/truncated/blocks/truncated_blocks.cuh"

namespace
{

constexpr int kWarpBlocks = CUDA_BLOCKS_PER_WARP; /* at most one per lane */

/* The largest of a warp's quads, as ordered bits; NaN is the largest. */
__device__ __forceinline__ uint32_t highest_of_warp(const four &l)
{
    float high = largest_of(l);
    return __reduce_max_sync(~0u, isnan(high) ? ~0u : ordered_bits(high));
}

template <gumbel_dtype dtype>
__device__ __forceinline__ void find_block_maxima(const cuda_truncated_params &p, int64_t b,
                                                  int64_t block)
{
    const gumbel_problem &q = p.problem;
    const void *row =
        (const typename quad<dtype>::element *)q.logits.data + b * q.logits.stride - q.first_token;
    const int lane = threadIdx.x % 32;
    const int64_t first = CUDA_MAXIMA_ORIGIN(q.first_token) + block * CUDA_MAXIMA_BLOCK + 4 * lane;
    four l[kWarpBlocks];
#pragma unroll
    for (int i = 0; i < kWarpBlocks; i++)
        l[i] =
            load_logit_quad<dtype>(row, first + i * CUDA_MAXIMA_BLOCK, q.first_token, q.end_token);
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kWarpBlocks; i++) {
        uint32_t highest = highest_of_warp(l[i]);
        own = lane == i ? highest : own;
    }
    if (lane < kWarpBlocks && block + lane < p.blocks)
        p.block_maxima[b * p.blocks + block + lane] = own == ~0u ? NAN : ordered_float(own);
}

/* Finds the maxima of blocks [begin, end) of row b. */
__device__ __noinline__ void find_split_maxima(const cuda_truncated_params &p, int64_t b,
                                               int64_t begin, int64_t end)
{
    const gumbel_dtype dtype = p.problem.logits.dtype;
    for (int64_t at = begin + threadIdx.x / 32 * kWarpBlocks; at < end; at += kWarps * kWarpBlocks)
        if (dtype == GUMBEL_FLOAT32)
            find_block_maxima<GUMBEL_FLOAT32>(p, b, at);
        else if (dtype == GUMBEL_BFLOAT16)
            find_block_maxima<GUMBEL_BFLOAT16>(p, b, at);
        else
            find_block_maxima<GUMBEL_FLOAT16>(p, b, at);
}

/* Whether this CTA is the last one of row b; for all threads. */
__device__ __forceinline__ bool ends_row_last(const cuda_truncated_params &p, int64_t b)
{
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0)
        last = count_cta_end(get_split_counter(p, b), p.tag, p.splits);
    return __syncthreads_or(last);
}

/* The kernel of p.splits CTAs a row. For all threads. */
template <class Rows>
__device__ __forceinline__ void serve_split(const cuda_truncated_params &p, Rows rows)
{
    const int64_t b = blockIdx.x / p.splits, begin = blockIdx.x % p.splits * p.split_size;
    const cuda_truncated_params &call = load_call(p);
    const bool begins = threadIdx.x == kThreads - 1 && begin == 0;
    __syncthreads();
    if (!p.has_block_maxima) /* otherwise, the parameters of rows were written before the product */
        ptx_wait_for_launch();
    if (threadIdx.x < 32)
        prefetch_parameters(call.problem, b);
    const bool tried = p.has_block_maxima || rows.is_worth_reading(call, b);
    if (begins) {
        publish_row_state(p, b, tried ? CUDA_ROW_PENDING : CUDA_ROW_FALLBACK);
        __threadfence(); /* clusters that start early must not read the state of an earlier call */
    }
    if (!tried)
        return;
    if (p.has_block_maxima) {
        ptx_wait_for_launch();
    } else {
        if (threadIdx.x == 0)
            start_cta_counter(get_split_counter(p, b), p.tag);
        find_split_maxima(call, b, begin, min(begin + p.split_size, p.blocks));
        if (!ends_row_last(p, b))
            return;
    }
    if (threadIdx.x == kThreads - 1)
        ptx_allow_launch();
    if (!serve_from_blocks(b, rows))
        publish_fallback_row(call, b);
}

} // namespace

#endif

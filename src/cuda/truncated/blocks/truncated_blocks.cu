/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws truncated rows in which few tokens can matter. The kernel finds the largest logit of
 *        each block of 128 tokens, unless the product has stored these block maxima, and the last
 *        CTA of a row tries to serve it from the blocks that may matter (truncated_blocks.cuh).
 *        Fallback rows go to clusters (truncated_cluster.cu). After a product that stored only
 *        logits above a row's bound, a separate kernel reads the tokens that reach the bound,
 *        without ranking blocks.
 * COST   reads B V elements once and writes 1 / 128 of that; then a row takes about 8 us of one
 *        CTA, less if its multiprocessor has run this code before.
 * MAP    p.splits CTAs a row. A warp takes kWarpBlocks blocks at once, four neighbouring tokens a
 *        lane.
 * SMEM   33 KB of state (truncated_shared.cuh), the state of blocks (block_tops.cuh), and
 *        five bytes a block.
 * SYNC   no CTA waits for another: the last CTA of a row to increment a counter in global memory
 *        reads the results of all. The next launch starts once every CTA has allowed it or ended;
 *        by then each row's state word is written, and the clusters of that launch poll these
 *        words.
 * NUMERICS  those of the naive kernel, bit for bit: tokens that are not read contribute to no
 *        output.
 */
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

/* Whether reading row b can be worthwhile; candidates_suffice() refuses the other rows. */
__device__ __forceinline__ bool is_worth_reading(const gumbel_problem &q, int64_t b)
{
    const gumbel_rules r = gumbel_problem_rules(&q, b, 0);
    if (!gumbel_problem_row_is_live(&q, b))
        return false;
    return is_greedy(q, b) || (truncates_by_value(r) && r.top_k <= CUDA_TRUNCATED_TOP_MAX &&
                               !(r.joint && r.top_p < 1.0f));
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

/* Marks row b, which this CTA could not serve, as a fallback row for clusters. For all threads. */
__device__ __noinline__ void leave_to_clusters(const cuda_truncated_params &p, int64_t b)
{
    if (threadIdx.x != 0)
        return;
    __threadfence(); /* clusters read data of launches that this CTA has waited for */
    publish_row_state(p, b, CUDA_ROW_FALLBACK);
}

} // namespace

/* After a product that stored only logits above bounds: a CTA a row, which tries every row. CTAs
 * wait 4 to 18 thousand cycles for the last tiles, so all independent work comes first. */
extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_bounded(const __grid_constant__ cuda_truncated_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_truncated_params &call = load_call(p);
    __syncthreads();
    const bool refused = describe_row(call, b);
    if (threadIdx.x == 96)
        start_row();
    if (threadIdx.x == kThreads - 1) {
        publish_row_state(p, b, CUDA_ROW_PENDING);
        __threadfence(); /* clusters that start early must not read the state of an earlier call */
    }
    ptx_wait_for_launch();
    if (threadIdx.x == kThreads - 1)
        ptx_allow_launch();
    if (b == 0 && threadIdx.x == 0)
        p.row_thresholds[1] = 0;
    if (!serve_by_bound(b, refused))
        leave_to_clusters(call, b);
}

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_TRUNCATED_CTAS)
    gumbel_truncated_blocks(const __grid_constant__ cuda_truncated_params p)
{
    const int64_t b = blockIdx.x / p.splits, begin = blockIdx.x % p.splits * p.split_size;
    const cuda_truncated_params &call = load_call(p);
    const bool begins = threadIdx.x == kThreads - 1 && begin == 0;
    __syncthreads();
    if (!p.has_block_maxima) /* otherwise, the parameters of rows were written before the product */
        ptx_wait_for_launch();
    if (threadIdx.x < 32)
        prefetch_parameters(call.problem, b);
    const bool tried = p.has_block_maxima || is_worth_reading(call.problem, b);
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
    if (!serve_from_blocks(b))
        leave_to_clusters(call, b);
}

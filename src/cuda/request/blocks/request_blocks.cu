/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a request from logits where few tokens of a row can matter: the largest logit of every
 *        block of 128 tokens is found, unless the product has left it, and the last of a row's CTAs
 *        tries to serve it from the blocks that reach what matters (request_blocks.cuh). Rows
 *        that this does not serve are left for a cluster each (request_team.cu). Behind a product
 *        that stored by bounds a kernel of its own looks into what reaches the row's bound, and
 *        ranks no block.
 * COST   reads B V elements once, writes 1 / 128 of that; then a row takes some 8 us of one CTA,
 *        less where its multiprocessor has run this code before.
 * MAP    p.parts CTAs a row. A warp takes kSide blocks side by side, four neighbouring tokens a
 *        lane.
 * SMEM   33 KB as a team's (request_shared.cuh), what blocks are told apart by
 *        (request_block_tops.cuh), and five bytes a block.
 * SYNC   parts of a row are counted in global memory; the last one reads what all of them wrote.
 *        Whether a row is left, clusters read as soon as that is known: they may start when every
 *        CTA has allowed that, or ended, behind the first word of each row.
 * NUMERICS  those of the naive kernel, bit for bit: what is not read takes part in nothing.
 */
#include "cuda/common/cta_counter.cuh"
#include "cuda/request/blocks/request_blocks.cuh"

namespace
{

constexpr int kSide = CUDA_REQUEST_WARP_BLOCKS; /* one a lane, at most */

/* That of four tokens and of the warp, as bits whose order is theirs; a NaN is the largest. */
__device__ __forceinline__ uint32_t highest_of_warp(const four &l)
{
    float high = largest_of(l);
    return __reduce_max_sync(~0u, isnan(high) ? ~0u : ordered_bits(high));
}

template <gumbel_dtype dtype>
__device__ __forceinline__ void find_peaks(const cuda_request_params &p, int64_t b, int64_t block)
{
    const gumbel_problem &q = p.problem;
    const void *row =
        (const typename quad<dtype>::element *)q.logits.data + b * q.logits.stride - q.first_token;
    const int lane = threadIdx.x % 32;
    const int64_t first =
        CUDA_REQUEST_ORIGIN(q.first_token) + block * CUDA_REQUEST_BLOCK + 4 * lane;
    four l[kSide];
#pragma unroll
    for (int i = 0; i < kSide; i++)
        l[i] = request_load_quad<dtype>(row, first + i * CUDA_REQUEST_BLOCK, q.first_token,
                                        q.end_token);
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < kSide; i++) {
        uint32_t highest = highest_of_warp(l[i]);
        own = lane == i ? highest : own;
    }
    if (lane < kSide && block + lane < p.blocks)
        p.block_maxima[b * p.blocks + block + lane] = own == ~0u ? NAN : ordered_float(own);
}

/* Find the peaks of blocks [begin, end) of row b. */
__device__ __noinline__ void find_peaks_of_part(const cuda_request_params &p, int64_t b,
                                                int64_t begin, int64_t end)
{
    const gumbel_dtype dtype = p.problem.logits.dtype;
    for (int64_t at = begin + threadIdx.x / 32 * kSide; at < end; at += kWarps * kSide)
        if (dtype == GUMBEL_FLOAT32)
            find_peaks<GUMBEL_FLOAT32>(p, b, at);
        else if (dtype == GUMBEL_BFLOAT16)
            find_peaks<GUMBEL_BFLOAT16>(p, b, at);
        else
            find_peaks<GUMBEL_FLOAT16>(p, b, at);
}

/* Whether row b is worth reading here: can_screen() would refuse the others. */
__device__ __forceinline__ bool is_worth_reading(const gumbel_problem &q, int64_t b)
{
    const gumbel_rules r = gumbel_problem_rules(&q, b, 0);
    if (!gumbel_problem_row_lives(&q, b))
        return false;
    return is_greedy(q, b) ||
           (cuts_by_value(r) && r.top_k <= CUDA_REQUEST_TOP_MAX && !(r.joint && r.top_p < 1.0f));
}

/* Whether this CTA is the last one of row b; for all threads. */
__device__ __forceinline__ bool ends_row(const cuda_request_params &p, int64_t b)
{
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0)
        last = count_cta_end(request_counter(p, b), p.tag, p.parts);
    return __syncthreads_or(last);
}

/* Leave row b, of which this CTA has tried to serve it, to clusters. For all threads. */
__device__ __noinline__ void leave_row(const cuda_request_params &p, int64_t b)
{
    if (threadIdx.x != 0)
        return;
    __threadfence(); /* what this CTA has waited for, clusters read */
    tell_row(p, b, CUDA_ROW_FALLBACK);
}

} // namespace

/* Behind a product that stored by bounds: a CTA a row, each of which is tried. CTAs wait 4 to 18
 * thousand cycles for the last tiles to end; all that does not need these comes before. */
extern "C" __global__ void __launch_bounds__(kThreads, CUDA_REQUEST_CTAS)
    gumbel_request_bounded(const __grid_constant__ cuda_request_params p)
{
    const int64_t b = blockIdx.x;
    const cuda_request_params &call = bring_call(p);
    __syncthreads();
    const bool refused = describe_row(call, b);
    if (threadIdx.x == 96)
        start_row();
    if (threadIdx.x == kThreads - 1) {
        tell_row(p, b, CUDA_ROW_PENDING);
        __threadfence(); /* before clusters may start, which else meet what an earlier call told */
    }
    ptx_wait_for_launch();
    if (threadIdx.x == kThreads - 1)
        ptx_allow_launch();
    if (b == 0 && threadIdx.x == 0)
        p.row_thresholds[1] = 0;
    if (!serve_by_bound(b, refused))
        leave_row(call, b);
}

extern "C" __global__ void __launch_bounds__(kThreads, CUDA_REQUEST_CTAS)
    gumbel_request_blocks(const __grid_constant__ cuda_request_params p)
{
    const int64_t b = blockIdx.x / p.parts, begin = blockIdx.x % p.parts * p.chunk;
    const cuda_request_params &call = bring_call(p);
    const bool begins = threadIdx.x == kThreads - 1 && begin == 0;
    __syncthreads();
    if (!p.has_block_maxima) /* else rows' parameters were there before the product began */
        ptx_wait_for_launch();
    if (threadIdx.x < 32)
        fetch_parameters(call.problem, b);
    const bool tried = p.has_block_maxima || is_worth_reading(call.problem, b);
    if (begins) {
        tell_row(p, b, tried ? CUDA_ROW_PENDING : CUDA_ROW_FALLBACK);
        __threadfence(); /* before clusters may start, which else meet what an earlier call told */
    }
    if (!tried)
        return;
    if (p.has_block_maxima) {
        ptx_wait_for_launch();
    } else {
        if (threadIdx.x == 0)
            start_cta_counter(request_counter(p, b), p.tag);
        find_peaks_of_part(call, b, begin, min(begin + p.chunk, p.blocks));
        if (!ends_row(p, b))
            return;
    }
    if (threadIdx.x == kThreads - 1)
        ptx_allow_launch();
    if (!serve_from_blocks(b))
        leave_row(call, b);
}

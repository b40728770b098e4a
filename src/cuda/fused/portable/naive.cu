/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw (eq. 1 to 4), written to be read, and for calls that the tuned kernels do
 *        not serve: any mix of dtypes, any V, D, stride and shard, on any GPU.
 * COST   weights are read once for every 4 rows of the batch, mostly from L2; every token is
 *        scored.
 * MAP    a CTA takes 4 batch rows through a split of the vocabulary, 64 tokens at a time. 16
 *        threads compute a dot product; then a warp a row and sample scores the 64 tokens.
 * SMEM   [4][64] transformed logits; the largest z, mass and flags of each row's block.
 * SYNC   a draw has three __syncthreads() a block of tokens: all threads wait until the logits are
 *        written, until the masses are written, and until both are read. A product alone has one.
 * NUMERICS  the order of every sum is the CPU's (docs/maths.md, sections 4 and 5): the same bits.
 */
#include "core/row.h"
#include "maths/summary.h"
#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/widen.cuh"

namespace
{

constexpr int kRows = CUDA_NAIVE_ROWS, kLanes = 16, kDotGroups = CUDA_THREADS / kLanes;
constexpr int kWarps = CUDA_THREADS / 32;
static_assert(kRows <= kWarps, "a warp measures a row");
static_assert(kRows <= kLanes, "a lane of a group transforms a row");

struct block {
    float z[kRows][GUMBEL_BLOCK];
    float largest[kRows]; /* z of the block */
    float mass[kRows];    /* sum of exp(z - largest) */
    uint32_t flags[kRows];
    gumbel_row rows[kRows];
};

/* Sums over sixteen lanes: j with j + 8, then j + 4, j + 2, j + 1. Every lane gets the sum. */
__device__ __forceinline__ float sum_lanes(float x)
{
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2)
        x += __shfl_xor_sync(~0u, x, half);
    return x;
}

/* Adds this lane's terms of the dot products of weight row `i` with `rows` hidden states from
 * `first` on. */
__device__ void add_dot_products(const gumbel_problem &p, int64_t i, int64_t first, int rows,
                                 int lane, float sums[kRows])
{
    bool pairs = p.weight.dtype == GUMBEL_BFLOAT16;
    for (int64_t k = 0; k < p.hidden_size; k += 2 * kLanes)
        for (int half = 0; half < 2; half++) {
            int64_t at = k + (pairs ? 2 * lane + half : lane + kLanes * half);
            bool inside = at < p.hidden_size; /* otherwise zeros, whose sum with -0 is +0 */
            float w = inside
                          ? widen_element(p.weight.data, p.weight.dtype, i * p.weight.stride + at)
                          : 0.0f;
#pragma unroll
            for (int r = 0; r < kRows; r++)
                if (r < rows)
                    sums[r] = fmaf(w,
                                   inside ? widen_element(p.hidden.data, p.hidden.dtype,
                                                          (first + r) * p.hidden.stride + at)
                                          : 0.0f,
                                   sums[r]);
        }
}

/* Writes the transformed logits of the 64 tokens from `token` on; -inf for tokens that do not
 * count. */
__device__ void make_logits(const cuda_params &p, block &b, int64_t token, int64_t first, int rows)
{
    const gumbel_problem &q = p.problem;
    int dot_group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    for (int t = dot_group; t < GUMBEL_BLOCK; t += kDotGroups) {
        int64_t id = token + t, i = id - q.first_token;
        bool counts = i >= 0 && id < q.end_token;
        float sums[kRows] = {};
        if (counts)
            add_dot_products(q, i, first, rows, lane, sums);
        float bias = counts && q.bias.data ? widen_element(q.bias.data, q.bias.dtype, i) : -0.0f;
#pragma unroll
        for (int r = 0; r < kRows; r++) {
            float logit = sum_lanes(sums[r]) + bias;
            if (lane == r && r < rows && counts && p.logits_out)
                p.logits_out[(first + r) * p.logits_out_stride + i] = logit;
            if (lane == r)
                b.z[r][t] = counts
                                ? gumbel_transform_logit(logit, q.scale, q.soft_cap, p.inverse_cap,
                                                         b.rows[r].inverse_temperature)
                                : -INFINITY;
        }
    }
}

/* Writes the mass (eq. 8) and flags of a row's block; by one warp. */
__device__ void measure_block(block &b, int row, int lane)
{
    float low = b.z[row][lane], high = b.z[row][lane + 32], largest = fmaxf(low, high);
    bool nan = isnan(low) || isnan(high), infinite = low == INFINITY || high == INFINITY;
    uint32_t flags = (__any_sync(~0u, nan) ? GUMBEL_FLAG_NAN : 0) |
                     (__any_sync(~0u, infinite) ? GUMBEL_FLAG_INFINITE : 0);
    for (int half = 16; half > 0; half /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, half));
    low = gumbel_exp(low - largest);
    high = gumbel_exp(high - largest);
    low += __shfl_xor_sync(~0u, low, 16);
    high += __shfl_xor_sync(~0u, high, 16);
    float mass = sum_lanes(low + high);
    if (lane == 0) {
        b.largest[row] = largest;
        b.mass[row] = mass;
        b.flags[row] = flags;
    }
}

/* Draws one sample of a row from the block and merges it into `best`; by one warp, lane 0 writes.
 */
__device__ void draw_sample(const gumbel_problem &q, const block &b, int row, int sample,
                            int64_t token, int lane, gumbel_summary *best)
{
    gumbel_stream stream = b.rows[row].stream;
    stream.sample += (uint32_t)sample;
    float score = -INFINITY, z = -INFINITY;
    int32_t id = INT32_MAX;
    for (int t = lane; t < GUMBEL_BLOCK; t += 32) {
        float own = b.z[row][t];
        if (own == -INFINITY)
            continue;
        float s =
            b.rows[row].greedy ? own : own + gumbel_noise_of_token(stream, (uint32_t)(token + t));
        if (s > score) {
            score = s;
            z = own;
            id = (int32_t)(token + t);
        }
    }
    for (int half = 16; half > 0; half /= 2) {
        float other_score = __shfl_xor_sync(~0u, score, half);
        float other_z = __shfl_xor_sync(~0u, z, half);
        int32_t other_id = __shfl_xor_sync(~0u, id, half);
        if (other_score > score || (other_score == score && other_id < id)) {
            score = other_score;
            z = other_z;
            id = other_id;
        }
    }
    if (lane != 0)
        return;
    best->flags |= b.flags[row];
    if (b.flags[row])
        return;
    gumbel_summary_offer(best, score, z, id);
    if (q.with_mass) {
        best->max_z = fmaxf(best->max_z, b.largest[row]);
        gumbel_mass_add_block(best, b.largest[row], b.mass[row]);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_draw_naive(const __grid_constant__ cuda_params p)
{
    __shared__ block b;
    const gumbel_problem &q = p.problem;
    int64_t groups = (q.batch + kRows - 1) / kRows;
    int64_t split = blockIdx.x / groups, first = blockIdx.x % groups * kRows;
    int rows = (int)(q.batch - first < kRows ? q.batch - first : kRows);
    int samples = q.sampling.num_samples, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * p.split_size;
    int64_t end = begin + p.split_size < q.end_token ? begin + p.split_size : q.end_token;
    gumbel_summary *out = p.summaries + (split * q.batch + first) * samples;

    if (threadIdx.x < rows)
        b.rows[threadIdx.x] = gumbel_problem_row(&q, first + threadIdx.x);
    for (int i = warp; i < rows * samples; i += kWarps)
        if (lane == 0)
            gumbel_summary_empty(&out[i]);
    __syncthreads();
    for (int64_t token = begin; token < end; token += GUMBEL_BLOCK) {
        make_logits(p, b, token, first, rows);
        __syncthreads();
        if (p.multiply_only || p.logits_out)
            continue;
        if (warp < rows)
            measure_block(b, warp, lane);
        __syncthreads();
        for (int i = warp; i < rows * samples; i += kWarps)
            draw_sample(q, b, i / samples, i % samples, token, lane, &out[i]);
        __syncthreads();
    }
}

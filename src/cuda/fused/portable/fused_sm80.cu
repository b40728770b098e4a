/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw (eq. 1 to 4; FlashSampling, Algorithm 2) on GPUs of compute capability 8.0
 *        and later: bfloat16 and float16 on the tensor cores; float32, and 16-bit weights with
 *        float32 hidden states, by fma.
 * COST   the weights, read once for every n <= 64 batch rows, or 8 with mixed dtypes; 2 V D n
 *        flops. Of 16-bit weights and more rows than 32, see fused_wide_sm80.cu.
 * MAP    as many CTAs of four warps as a GPU runs at once (two or three a multiprocessor); each
 *        takes one contiguous range of the vocabulary, in tiles of 128 tokens. A warp takes 32 of
 *        these tokens and all n columns, the batch padded to 8 .. 64; a lane takes the four tokens
 *        of a Philox block and two of every eight columns. The draw from a tile is interleaved with
 *        the stages of the next product, some columns a stage, so that the loads hide it.
 * SMEM   a ring of 3 or 4 stages, each with 128 bytes of 128 weight rows (16 KiB) and of n hidden
 *        states (128 n bytes; 256 n with mixed dtypes); 104 bytes a column and sample; with the
 *        mass, 192 bytes a column.
 * SYNC   one __syncthreads() a stage: every warp waits until all copies of the stage have arrived,
 *        and until all warps have read the stage that is overwritten next. These barriers also
 *        separate the items of the draw: no interval between two of them both writes and reads a
 *        threshold or the value it will be raised to. No CTA waits for another.
 * NUMERICS  a dot product is summed 16 elements an mma (float32: one an fma), in the order of D;
 *        with mixed dtypes in the CPU's order (docs/maths.md, section 4), to the same bits. Masses
 *        of 32 tokens are added exactly. Nothing depends on n, the batch or the grid.
 */
#include "cuda/fused/portable/epilogue_sm80.cuh"

namespace
{

/* The draw from a tile as a sequence of items: in the first tile, initial thresholds; exchange of
 * thresholds; draws; masses; publication of this CTA's thresholds. A barrier precedes each item. In
 * the first item a warp also computes the noise bounds of its block. */
template <int n> struct draw_items {
    sm80_epilogue<n> &warp;
    threshold_exchange &thresholds;
    int samples, with_mass;

    __device__ __forceinline__ int initial_items() const
    {
        return sm80_epilogue<n>::rounds * samples;
    }
    __device__ __forceinline__ int item_count(bool first) const
    {
        return (first ? initial_items() : 0) + 1 +
               sm80_epilogue<n>::rounds * (samples + with_mass) + 1;
    }

    /* `active`: the warp has a warp tile of the tile. */
    __device__ __forceinline__ void run_item(float (&y)[n / 8][8], int item, bool first,
                                             bool active) const
    {
        constexpr int rounds = sm80_epilogue<n>::rounds;
        int at = item - (first ? initial_items() : 0), draw = at - 1,
            mass = draw - rounds * samples;
        if (item == 0 && active)
            warp.make_reaches();
        if (at == 0) {
            if (first)
                thresholds.publish_raised(blockIdx.x, kEarlyPublishers);
            thresholds.update();
        } else if (mass == rounds * with_mass)
            thresholds.publish_raised(0, 1);
        else if (!active)
            return;
        else if (at < 0)
            warp.raise_initial(y, item % rounds, item / rounds);
        else if (mass < 0)
            warp.draw_columns(y, draw % rounds, draw / rounds);
        else
            warp.add_mass(y, mass);
    }
};

template <int n, class product> __device__ __forceinline__ void run_fused_sm80(const cuda_params &p)
{
    using sizes = stage_layout<n, product::ratio>;
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const gumbel_problem &q = p.problem;
    int64_t begin = range_begin<kWarpTile>(p, blockIdx.x);
    int64_t last = range_begin<kWarpTile>(p, blockIdx.x + 1);
    int64_t end = last < q.end_token ? last : q.end_token;
    int samples = q.sampling.num_samples, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int depths = (int)((q.hidden_size * product::size + kDepth - 1) / kDepth);
    uint32_t ring = ptx_shared_address(shared_memory), now = 0;
    stage_loader<n, product::ratio> load(q, product::size, ring, begin, end);
#pragma unroll 1
    for (int i = 0; i < sizes::stages - 1; i++)
        load.copy_next();

    const int rows = (int)q.batch;
    cta_state t = place_state<n>(shared_memory + sizes::stages * sizes::stage_bytes, samples);
    clear_state<n, kThreads>(p, t, 0, rows);
    threshold_exchange thresholds(p, t, 0, rows);
    sm80_epilogue<n> epilogue = {
        p, select_state<n>(t, warp, 0, samples), 0, rows, samples, warp, lane, 0};
    draw_items<n> draw = {epilogue, thresholds, samples, q.with_mass != 0};
    typename product::template sums<n> sums;
    float y[n / 8][8] = {};
    bool skips_draw = p.multiply_only || p.logits_out;
    /* Each turn multiplies a tile and draws from the one before. */
    for (int64_t tile = begin; tile < end + kTile; tile += kTile) {
        int64_t warp_tile = tile + warp * kWarpTile;
        bool active = warp_tile < end, first = tile == begin + kTile;
        int steps = tile < end ? depths : 0;
        int items = tile == begin || skips_draw ? 0 : draw.item_count(first);
        if (tile + kTile >= end)
            ptx_allow_launch();
        sums.clear();
        for (int k = 0; k < steps || k < items; k++) {
            sm80_copy_wait<sizes::stages - 2>();
            __syncthreads();
            if (k < steps) {
                load.copy_next();
                if (active)
                    product::template add<n>(sums, ring + now * sizes::stage_bytes,
                                             q.hidden_size - k * (kDepth / product::size));
                now = now + 1 == sizes::stages ? 0 : now + 1;
            }
            if (k < items)
                draw.run_item(y, k, first, warp_tile - kTile < end);
        }
        float sum[n / 8][8];
        sums.finish(sum);
        if (p.multiply_only)
            sink_sums<n>(sum, t.raised);
        if (!active)
            continue; /* y keeps the values for the remaining items */
        epilogue.token = (uint32_t)warp_tile + 4 * (lane / 4);
        if (p.logits_out)
            epilogue.store_logits(sum, q.first_token, end);
#pragma unroll
        for (int i = 0; i < n; i++)
            y[i / 8][i % 8] = sum[i / 8][i % 8];
        epilogue.prepare_logits(y, q.first_token, end);
    }
    __syncthreads();
    write_summary<n>(p, t, blockIdx.x, 0, rows);
}

} // namespace

#define KERNEL(n, name, product, ctas)                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads, ctas)                                   \
        gumbel_fused_sm80_##name##_##n(const __grid_constant__ cuda_params params)                 \
    {                                                                                              \
        run_fused_sm80<n, product>(params);                                                        \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, product_16bit<false>, CUDA_SM80_CTAS(n))                                       \
    KERNEL(n, f16, product_16bit<true>, CUDA_SM80_CTAS(n))                                         \
    KERNEL(n, f32, product_32bit, CUDA_SM80_CTAS(n))
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNEL(64, f32, product_32bit, CUDA_SM80_CTAS(64))
KERNEL(8, mixed_bf16, product_mixed<false>, CUDA_SM80_MIXED_CTAS)
KERNEL(8, mixed_f16, product_mixed<true>, CUDA_SM80_MIXED_CTAS)

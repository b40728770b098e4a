/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw (eq. 1 to 4; FlashSampling, Algorithm 2) of more than 32 rows on GPUs of
 *        compute capability 8.0 and later: bfloat16 and float16, by mma.sync.
 * COST   the weights, read once from GPU memory for every CUDA_WIDE_GROUPS_MAX groups of n
 *        rows, and once from the L2 cache by each group; 2 V D n flops a group.
 * MAP    one CTA of eight warps on a multiprocessor; each takes one contiguous range of the
 *        vocabulary and one group of rows, in tiles of 256 tokens by n columns. CTAs that are
 *        neighbours take the same tokens and different groups, at about the same time. A warp takes
 *        64 tokens and half of the columns: n / 2 products of 16 x 8 x 16 share 4 + n / 32 loads of
 *        operands. Operands of the next 16 elements are loaded while those of the last ones are
 *        multiplied, and copies to the ring are issued between products. The draw follows the
 *        product of its tile, while the ring fills again.
 * SMEM   a ring of 3 to 8 stages, as many as fit, each with 64 or 128 bytes of 256 weight rows and
 *        of n hidden states: 24 KiB for n = 128; 20 or 40 KiB for n = 64. 104 bytes a column and
 *        sample, 480 bytes a warp; with the mass, 192 bytes a column.
 * SYNC   one barrier of the CTA a stage: every warp waits until all copies of the stage have
 *        arrived, and until all warps have read the stage that is overwritten next. Thresholds
 *        change between the product of a tile and a barrier that precedes its draw. No CTA waits
 *        for another; each sleeps once, for at most 4 us, before its first draw.
 * NUMERICS  those of fused_sm80.cu, to the same bits: a dot product is summed 16 elements an mma,
 *        in the order of D; masses of 32 tokens are added exactly.
 */
#include "cuda/fused/portable/product_wide_sm80.cuh"
#include "cuda/fused/portable/epilogue_sm80.cuh"

namespace
{

/* Nanoseconds that a CTA waits for the first thresholds of the others. By its own thresholds alone,
 * many more tokens of its first tile would be scored. */
constexpr unsigned kFirstThresholdsWait = 2000;
/* One CTA in this many publishes its first threshold of a row. */
constexpr int kFirstPublishers = 2;

/* Sleeps once, whatever other CTAs do, and for at most twice the time (PTX ISA, nanosleep). Returns
 * at once if no other CTA has the same rows. */
__device__ __forceinline__ void wait_for_first_thresholds(const cuda_params &p)
{
    if (p.splits > 1)
        __nanosleep(kFirstThresholdsWait);
}

/* A warp's draw from its 64 tokens, whose sums it turns to y in place. */
template <int n> struct wide_draw {
    using epilogue = sm80_epilogue<n>;
    epilogue &warp;
    threshold_exchange &thresholds;
    const gumbel_problem &q;
    int end; /* tokens before it count */

    /* Whether half u of the warp tile has tokens that count. */
    __device__ __forceinline__ bool has_tokens(int warp_tile, int u) const
    {
        const int half = warp_tile + kWarpTile * u;
        return half < end && half + kWarpTile > q.first_token;
    }

    /* Calls f(y) for each half that counts. The warp's token is then the half's. */
    template <class F>
    __device__ __forceinline__ void for_halves(wide_sums<n> &sum, int warp_tile, F f) const
    {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            warp.token = (uint32_t)(warp_tile + kWarpTile * u + 4 * (warp.lane / 4));
            if (has_tokens(warp_tile, u))
                f(sum.value[u]);
        }
    }

    __device__ __forceinline__ void prepare_sums(wide_sums<n> &sum, int warp_tile) const
    {
        warp.token = (uint32_t)warp_tile + 4 * (warp.lane / 4);
        warp.make_reaches();
        for_halves(sum, warp_tile,
                   [&](float(&y)[n / 8][8]) { warp.prepare_logits(y, q.first_token, end); });
    }

    __device__ __forceinline__ void raise_initial(wide_sums<n> &sum, int warp_tile) const
    {
        for_halves(sum, warp_tile, [&](float(&y)[n / 8][8]) {
#pragma unroll 1
            for (int i = 0; i < epilogue::rounds * warp.samples; i++)
                warp.raise_initial(y, i % epilogue::rounds, i / epilogue::rounds);
        });
    }

    __device__ __forceinline__ void draw_tokens(wide_sums<n> &sum, int warp_tile) const
    {
        const uint32_t counting = has_tokens(warp_tile, 0) | has_tokens(warp_tile, 1) << 1;
        warp.token = (uint32_t)warp_tile + 4 * (warp.lane / 4);
#pragma unroll 1
        for (int sample = 0; sample < warp.samples; sample++)
            warp.template draw_sample<n / 8>(sum.value, counting, 0, sample);
        if (q.with_mass)
            for_halves(sum, warp_tile,
                       [&](float(&y)[n / 8][8]) { warp.template add_masses<n / 8>(y, 0); });
    }

    /* Draws from a tile; by all warps of the CTA. `active`: the warp has tokens and columns.
     * `split` is that of the CTA if it is the first tile, and < 0 otherwise. */
    __device__ __forceinline__ void run_tile(wide_sums<n> &sum, int warp_tile, int split,
                                             bool active) const
    {
        if (active)
            prepare_sums(sum, warp_tile);
        if (split >= 0) {
            if (active)
                raise_initial(sum, warp_tile);
            __syncthreads();
            thresholds.publish_raised(split, kFirstPublishers);
            wait_for_first_thresholds(warp.p);
        }
        thresholds.update();
        __syncthreads();
        if (active)
            draw_tokens(sum, warp_tile);
        thresholds.publish_raised(0, 1);
    }
};

template <int n> __device__ __forceinline__ int count_groups(int64_t batch)
{
    return ((int)batch + n - 1) / n;
}

/* Rows of every group but the last, which has at least one. */
template <int n> __device__ __forceinline__ int rows_of_group(int64_t batch)
{
    const int groups = count_groups<n>(batch);
    return ((int)batch + groups - 1) / groups;
}

template <int n> __device__ __forceinline__ int count_group_rows(int64_t batch, int first_row)
{
    return min(rows_of_group<n>(batch), (int)batch - first_row);
}

/* A CTA's ring: stages that arrive and are multiplied. */
template <class shape> struct wide_ring {
    static constexpr int last_step = shape::steps - 1;
    static constexpr int copy_turns = 4 * last_step;
    wide_loader<shape> &load;
    int stages;
    uint32_t begin, end, now, last; /* shared addresses of stages */

    /* Starts the copies of all stages but one, and waits for the first after prepare(). */
    template <class F> __device__ __forceinline__ void fill(F prepare)
    {
#pragma unroll 1
        for (uint32_t stage = begin; stage != now; stage += shape::stage_bytes) {
            load.copy_in_turn(stage, 0, 1);
            load.commit_stage();
        }
        prepare();
        next_stage();
    }

    /* Moves to the next stage, and waits for it. All warps have read `last`, the one before. Warps
     * with and without tokens wait at different instructions, which __syncthreads() does not
     * allow. */
    __device__ __forceinline__ void next_stage()
    {
        last = now;
        now = now + shape::stage_bytes == end ? begin : now + shape::stage_bytes;
        wide_copy_wait(stages - 2);
        ptx_unaligned_barrier<0, kWideThreads>();
    }

    /* Takes part in the copies and barriers of a tile in which the warp has no tokens. */
    __device__ __forceinline__ void skip_tile(int depths)
    {
#pragma unroll 1
        for (int k = 1; k <= depths; k++) {
            load.copy_in_turn(last, 0, 1);
            load.commit_stage();
            next_stage();
        }
    }

    /* Sums the products of a tile with `depths` stages, and moves to the first stage of the next
     * tile; `weights` and `hidden` are this lane's addresses in a stage. Copies to the stage that
     * has been read are issued between products, which hide them. */
    template <bool half>
    __device__ __forceinline__ void multiply_tile(wide_sums<shape::warp_columns> &sum, int depths,
                                                  uint32_t weights, uint32_t hidden)
    {
        wide_operands<shape, half> operands;
        operands.load_hidden(0, now + hidden);
#pragma unroll
        for (int block = 0; block < 4; block++)
            operands.load_weights(0, now + weights, block);
#pragma unroll 1
        for (int k = 1; k <= depths; k++) {
#pragma unroll
            for (int step = 0; step < last_step; step++) {
                operands.load_hidden(step + 1, now + hidden);
#pragma unroll
                for (int block = 0; block < 4; block++) {
                    operands.multiply(step, sum, block);
                    operands.load_weights(step + 1, now + weights, block);
                    load.copy_in_turn(last, 4 * step + block, copy_turns);
                }
            }
            load.commit_stage();
            operands.multiply(last_step, sum, 0);
            next_stage(); /* all operands of the stage before are in registers */
            operands.load_hidden(0, now + hidden);
            operands.load_weights(0, now + weights, 0);
#pragma unroll
            for (int block = 1; block < 4; block++) {
                operands.multiply(last_step, sum, block);
                operands.load_weights(0, now + weights, block);
            }
        }
    }
};

/* Stores, draws from or discards the sums of a tile. All that it reads is computed from an opaque
 * zero, since registers do not suffice to keep it during the product. */
template <int n>
__device__ __forceinline__ void use_tile(const cuda_params &p, wide_sums<n / kColumnWarps> &sum,
                                         unsigned char *state, int first_row, int tile, bool first,
                                         int end, float &published)
{
    constexpr int columns = n / kColumnWarps;
    const gumbel_problem &q = p.problem;
    const int thread = threadIdx.x + ptx_zero(), samples = q.sampling.num_samples;
    const int lane = thread % 32, warp = thread / 32 / kColumnWarps;
    const int column = thread / 32 % kColumnWarps * columns;
    const int warp_tile = tile + warp * kWideWarpTile;
    const int rows = count_group_rows<n>(q.batch, first_row);
    const bool active = warp_tile < end && column < rows;
    const cta_state t = place_state<n, kWideThreads / 32>(state + ptx_zero(), samples);
    threshold_exchange thresholds(p, t, first_row, rows);
    thresholds.published = published;
    sm80_epilogue<columns> epilogue = {{p, select_state<n>(t, thread / 32, warp, column, samples),
                                        first_row + column, min(rows - column, columns), samples,
                                        warp, lane, 0}};
    const wide_draw<columns> draw = {epilogue, thresholds, q, end};
    if (p.multiply_only) {
        sink_sums<columns>(sum.value[0], t.raised);
        sink_sums<columns>(sum.value[1], t.raised);
    } else if (p.logits_out) {
        if (active)
            draw.for_halves(sum, warp_tile, [&](float(&y)[columns / 8][8]) {
                epilogue.store_logits(y, q.first_token, end);
            });
    } else {
        const int split = first ? (int)blockIdx.x / count_groups<n>(q.batch) : -1;
        draw.run_tile(sum, warp_tile, split, active);
    }
    published = thresholds.published;
}

template <class shape, bool half>
__device__ __forceinline__ void run_wide_sm80(const cuda_params &p)
{
    constexpr int n = shape::columns;
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const gumbel_problem &q = p.problem;
    const int groups = count_groups<n>(q.batch), split = blockIdx.x / groups;
    const int first_row = blockIdx.x % groups * rows_of_group<n>(q.batch);
    const int rows = count_group_rows<n>(q.batch, first_row), samples = q.sampling.num_samples;
    const int begin = (int)range_begin<kWideWarpTile>(p, split);
    const int end = min((int)range_begin<kWideWarpTile>(p, split + 1), (int)q.end_token);
    const int warp = threadIdx.x / 32 / kColumnWarps;
    const int column = threadIdx.x / 32 % kColumnWarps * shape::warp_columns;
    const int depths = (int)((q.hidden_size * 2 + shape::depth - 1) / shape::depth);
    const uint32_t ring_at = ptx_shared_address(shared_memory);
    const uint32_t ring_bytes = p.stages * shape::stage_bytes;
    wide_loader<shape> load(q, begin, end, first_row, rows);
    wide_ring<shape> ring = {
        load, p.stages, ring_at, ring_at + ring_bytes, ring_at + ring_bytes - shape::stage_bytes,
        0};
    ring.fill([&] {
        clear_state<n, kWideThreads>(
            p, place_state<n, kWideThreads / 32>(shared_memory + ring_bytes, samples), first_row,
            rows);
    });
    float published = -INFINITY;
    wide_sums<shape::warp_columns> sum;
    for (int tile = begin; tile < end; tile += kWideTile) {
        if (tile + kWideTile >= end)
            ptx_allow_launch();
        sum.clear();
        if (tile + warp * kWideWarpTile < end)
            ring.template multiply_tile<half>(sum, depths, shape::weights_at(warp),
                                              shape::hidden_at(column));
        else
            ring.skip_tile(depths);
        use_tile<n>(p, sum, shared_memory + ring_bytes, first_row, tile, tile == begin, end,
                    published);
    }
    sm80_copy_commit();
    sm80_copy_wait<0>();
    __syncthreads();
    write_summary<n>(p, place_state<n, kWideThreads / 32>(shared_memory + ring_bytes, samples),
                     split, first_row, rows);
}

} // namespace

#define KERNEL(n, depth, name, half)                                                               \
    extern "C" __global__ void __launch_bounds__(kWideThreads, 1)                                  \
        gumbel_fused_wide_sm80_##name##_##n##_##depth(const __grid_constant__ cuda_params params)  \
    {                                                                                              \
        run_wide_sm80<wide_shape<n, depth>, half>(params);                                         \
    }
/* The kernels of cuda_wide_kernels. */
#define KERNELS(name, half)                                                                        \
    KERNEL(128, 64, name, half)                                                                    \
    KERNEL(64, 128, name, half)                                                                    \
    KERNEL(64, 64, name, half)
KERNELS(bf16, false)
KERNELS(f16, true)

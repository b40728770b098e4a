/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel of fused_sm80.cu, and of the full pass after a draw with a screen
 * (fused_fallback_sm80.cu).
 */
#ifndef GUMBEL_CUDA_FUSED_SM80_CUH
#define GUMBEL_CUDA_FUSED_SM80_CUH

#include "cuda/fused/portable/epilogue_sm80.cuh"

namespace
{

/* The draw from a tile as a sequence of items: in the first tile, initial thresholds; exchange of
 * thresholds; draws; masses; publication of this CTA's thresholds. A barrier precedes each item. In
 * the first item a warp also computes the noise bounds of its block. */
template <int n, int m> struct draw_items {
    static constexpr int rounds = n / 8 / m; /* items that cover all columns once, m groups each */
    sm80_epilogue<n> &warp;
    threshold_exchange &thresholds;
    int samples, with_mass;

    __device__ __forceinline__ int initial_items() const
    {
        return sm80_epilogue<n>::rounds * samples;
    }
    __device__ __forceinline__ int item_count(bool first) const
    {
        return (first ? initial_items() : 0) + 1 + rounds * (samples + with_mass) + 1;
    }

    /* `active`: the warp has a warp tile of the tile. */
    __device__ __forceinline__ void run_item(float (&y)[1][n / 8][8], int item, bool first,
                                             bool active) const
    {
        constexpr int initial_rounds = sm80_epilogue<n>::rounds;
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
            warp.raise_initial(y[0], item % initial_rounds, item / initial_rounds);
        else if (mass < 0)
            warp.template draw_sample<m>(y, 1, draw % rounds, draw / rounds);
        else
            warp.template add_masses<m>(y[0], mass);
    }
};

/* A call without masks, whose CTAs write the split's summaries, which another launch merges. */
struct summary_call {
    template <int n>
    __device__ __forceinline__ void exclude_masked(const sm80_epilogue<n> &, float (&)[n / 8][8],
                                                   int64_t) const
    {
    }

    template <int n>
    __device__ __forceinline__ void write(const cuda_params &p, const cta_state &t) const
    {
        write_summary<n>(p, t, blockIdx.x, 0, (int)p.problem.batch);
    }
};

/* `call`: which tokens its rows allow, and what a CTA writes at its end (summary_call). */
template <int n, class product, class call_type>
__device__ __forceinline__ void run_fused_sm80(const cuda_params &p, const call_type &call)
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
    cta_state t =
        place_state<n, kWarps>(shared_memory + sizes::stages * sizes::stage_bytes, samples);
    clear_state<n, kThreads>(p, t, 0, rows);
    threshold_exchange thresholds(p, t, 0, rows);
    sm80_epilogue<n> epilogue = {
        {p, select_state<n>(t, warp, warp, 0, samples), 0, rows, samples, warp, lane, 0}};
    constexpr int m = n / 8 < product::draw_groups ? n / 8 : product::draw_groups;
    draw_items<n, m> draw = {epilogue, thresholds, samples, q.with_mass != 0};
    typename product::template sums<n> sums;
    float y[1][n / 8][8] = {};
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
            y[0][i / 8][i % 8] = sum[i / 8][i % 8];
        epilogue.prepare_logits(y[0], q.first_token, end);
        call.exclude_masked(epilogue, y[0], end);
    }
    __syncthreads();
    call.template write<n>(p, t);
}

} // namespace

#endif

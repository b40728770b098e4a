/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws rows that allow few tokens from hidden states, on Hopper, in one launch:
 *        multiplies the weights of the tokens that masks or short lists allow, and draws from their
 *        logits.
 * COST   D weights of each allowed token of eight rows, once, and a chain of D / 16 wgmmas for each
 *        64 of them; V / 8 bytes of mask a row, or every list of a group's rows by each of its
 *        CTAs. For each allowed token one or two Philox blocks a sample.
 * MAP    CTAs are split over groups of eight rows, and the CTAs of a group over the blocks of 64
 *        tokens, in turn. The first warpgroup of a CTA multiplies (ring_product.cuh), and a warp
 *        for each row meanwhile computes the noise, and then draws (tile_draw.cuh).
 * SMEM   a ring of segments of D, the window of blocks and the tile (token_tiles.cuh), and logits
 *        of a tile.
 * SYNC   no CTA waits for another: the last one of a group to increment a counter (cta_counter.cuh)
 *        merges the summaries of all. A CTA that draws alone needs no counter.
 * NUMERICS  logits have the bits of those that fused_sm90.cu stores. A block's mass is summed in
 *        the order of the CPU (docs/maths.md, section 5).
 */
#include "cuda/common/cta_counter.cuh"
#include "cuda/fused/allowed/ring_product.cuh"
#include "cuda/fused/allowed/tile_draw.cuh"

namespace
{

struct fused_shared {
    token_window window;
    token_tile tile;
    group_rows group;
    bool is_last;
};
static_assert(CUDA_ALLOWED_RING_BYTES + sizeof(fused_shared) <= CUDA_ALLOWED_FUSED_BYTES,
              "the launch has this size");

/* Loads the rows of a group; ends with a barrier. Each warp loads what depends on one chain of
 * addresses. */
__device__ __forceinline__ void load_rows(const cuda_allowed_draw_params &s, fused_shared &shared,
                                          const token_tiles &tiles, int64_t first_row)
{
    const gumbel_problem &q = s.call.problem;
    const int warp = threadIdx.x / 32, i = threadIdx.x % 32;
    const int64_t b = first_row + i;
    if (warp == 0 && i < kRows)
        tiles.load_row(i, b, s.reads_lists);
    if (warp == 1 && i < kRows)
        shared.window.is_drawn[i] = b < q.batch && gumbel_problem_row_flags(&q, b) == 0;
    if (warp == 2 && i < kRows && b < q.batch) {
        shared.group.rows[i] = gumbel_problem_row(&q, b);
        shared.group.hidden[i] = (const uint16_t *)q.hidden.data + b * q.hidden.stride;
    }
    if (warp == 3 && i == 0 && s.call.splits > 1)
        start_cta_counter(cta_counter_of_draw(s.call, first_row * q.sampling.num_samples),
                          s.call.tag);
    __syncthreads();
}

static_assert(kRows * kSamplesMax <= kCtaThreads, "a thread writes a draw");
static_assert(kRows * kSamplesMax * sizeof(gumbel_summary) <= CUDA_ALLOWED_RING_BYTES,
              "their summaries fit into the ring");

/* Writes the draws of a group, unless other CTAs still draw; for all threads. `merged` is in shared
 * memory that no thread uses any more. */
__device__ __forceinline__ void finish_group(const cuda_params &p, fused_shared &shared,
                                             tile_draw &own, int64_t first_row, int member,
                                             int members, gumbel_summary *merged)
{
    const int64_t samples = p.problem.sampling.num_samples, draws = p.problem.batch * samples;
    const int64_t first = first_row * samples, end = min(first + kRows * samples, draws);
    const bool is_alone = members == 1;
    if (threadIdx.x >= kProductThreads)
        own.write_summaries(is_alone ? merged : &p.summaries[member * draws + first]);
    __syncthreads();
    if (!is_alone) {
        if (threadIdx.x == 0)
            shared.is_last = count_cta_end(cta_counter_of_draw(p, first), p.tag, members);
        __syncthreads();
        if (!shared.is_last)
            return;
        for (int64_t at = first + threadIdx.x / 32; at < end; at += kCtaThreads / 32) {
            const gumbel_summary all =
                merge_summaries(&p.summaries[at], members, draws, p.problem.with_mass);
            if (threadIdx.x % 32 == 0)
                merged[at - first] = all;
        }
        __syncthreads();
    }
    if (first + threadIdx.x < end)
        write_draw(p, merged[threadIdx.x], first + threadIdx.x);
}

template <bool half> __device__ __forceinline__ void draw_group(const cuda_allowed_draw_params &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    fused_shared &shared = *(fused_shared *)(shared_memory + CUDA_ALLOWED_RING_BYTES);
    const cuda_params &p = s.call;
    const int64_t first_row = (int64_t)(blockIdx.x / p.splits) * kRows;
    const int member = blockIdx.x % p.splits;
    const int rows = (int)min((int64_t)kRows, p.problem.batch - first_row);
    const bool multiplies = threadIdx.x < kProductThreads;
    token_tiles tiles(p.problem, shared.window, shared.tile, member, p.splits);
    tiles.clear();
    ptx_wait_for_launch();
    ptx_allow_launch();
    load_rows(s, shared, tiles, first_row);
    const int members = tiles.choose_members(s.reads_lists);
    if (member >= members)
        return;
    const ring_product<half> product(p.problem, shared.tile, shared.group.hidden, rows,
                                     shared_memory);
    tile_draw draw(p, shared.tile, shared.group, first_row);
    tiles.each(s.reads_lists, [&] {
        if (multiplies)
            product.store_logits(shared.group.logits);
        else
            draw.prepare_tile();
        __syncthreads();
        if (!multiplies)
            draw.draw_tile();
        __syncthreads();
    });
    finish_group(p, shared, draw, first_row, member, members, (gumbel_summary *)shared_memory);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kCtaThreads)
    gumbel_draw_allowed_fused_bf16(const __grid_constant__ cuda_allowed_draw_params s)
{
    draw_group<false>(s);
}

extern "C" __global__ void __launch_bounds__(kCtaThreads)
    gumbel_draw_allowed_fused_f16(const __grid_constant__ cuda_allowed_draw_params s)
{
    draw_group<true>(s);
}

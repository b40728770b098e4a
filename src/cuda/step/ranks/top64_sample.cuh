/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples of a row from its candidates, which are sorted and truncated, and their mass. A row runs
 * this code once, and fetching the instructions takes longer than running them. Therefore one warp
 * sums the masses, a token a lane, while another draws. Which tokens are in one block of 64 does
 * not depend on the truncation, and is found at the same time. The sum of one or two tokens has one
 * order (eq. 8).
 */
#ifndef GUMBEL_CUDA_LISTED_END_CUH
#define GUMBEL_CUDA_LISTED_END_CUH

#include "cuda/truncated/few/shortlist.cuh"

namespace
{

constexpr uint32_t kNoPlace = UINT16_MAX;
static_assert(kShortlist < kNoPlace, "a place is 16 bits");

/* After the blocks of the sorted tokens: for the first token of each block, the places of the next
 * two; 0 for other tokens. */
__device__ __forceinline__ uint32_t *links_in_order() { return blocks_in_order() + kShortlist; }
static_assert(2 * sizeof(uint32_t) <= sizeof *shortlist_scratch::keys, "keys have the memory");

/* Links the first `count` tokens by their blocks, by all warps except the first; before a barrier.
 * Links may lead to tokens after these. */
__device__ __forceinline__ void link_same_blocks(int count)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x - 32; i < count; i += kThreads - 32) {
        const uint32_t own = blocks_in_order()[i];
        uint32_t next = kNoPlace, third = kNoPlace;
        bool first = true;
#pragma unroll 1
        for (int base = 0; base < count; base += 4) {
            const uint4 four = *(const uint4 *)&blocks_in_order()[base];
            const uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const bool same = others[k] == own;
                const uint32_t at = same && base + k > i ? (uint32_t)(base + k) : kNoPlace;
                first &= !same || base + k >= i;
                third = min(third, max(next, at));
                next = min(next, at);
            }
        }
        links_in_order()[i] = first ? third << 16 | next : 0;
    }
}

/* ln of the mass of the first `kept` tokens, which are linked, by a warp. */
__device__ __forceinline__ float lse_of_blocks(logit_values values, int kept)
{
    joined_mass mass = joined_mass::empty();
    auto z_at = [&](int at) { return values.to_z(shared_state().scratch.list[at].y); };
#pragma unroll 1
    for (int base = 0; base < kept; base += 32) {
        const int at = base + (int)threadIdx.x % 32;
        const uint32_t link = at < kept ? links_in_order()[at] : 0;
        const int next = (int)(link & kNoPlace), third = (int)(link >> 16);
        const bool many = link && third < kept;
        if (link && !many) {
            const float z = z_at(at);
            const float sum = next < kept ? 1.0f + gumbel_exp(z_at(next) - z) : 1.0f;
            mass.value.max_z = fmaxf(mass.value.max_z, z);
            gumbel_mass_add_block(&mass.value, z, sum);
        }
        for (uint32_t remaining = __ballot_sync(~0u, many); remaining; remaining &= remaining - 1)
            add_block_in_order(mass.value, values, blocks_in_order()[base + __ffs(remaining) - 1],
                               kept);
    }
    mass.join_warp();
    return gumbel_summary_lse(&mass.value);
}

/* Draws the samples of a row, whose kept set is the first r.kept of `count` sorted tokens, and
 * whose scores of the first sample are computed. One warp draws; if `with_lse`, another one sums
 * the masses, and passes the result by `lse`, in shared memory. For all threads. */
__device__ __forceinline__ void draw_samples(logit_values values, int64_t b, int count,
                                             row_result &r, bool with_lse, float &lse)
{
    const cuda_truncated_params &p = shared_state().call;
    const int samples = p.problem.sampling.num_samples, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int sample = 0;;) {
        const int64_t at = b * samples + sample;
        const bool lse_now = with_lse && sample == 0;
        draw_winner best = draw_winner_none();
        int32_t rank = 1;
        if (warp == 0) {
            best = best_of_shortlist(values, r.kept);
            rank = p.output.ranks ? rank_in_shortlist(values, count, best.z) : 1;
        } else if (lse_now && warp == 1) {
            const float own = lse_of_blocks(values, r.kept);
            if (threadIdx.x % 32 == 0)
                lse = own;
        }
        if (lse_now)
            __syncthreads();
        if (warp == 0) {
            r.lse = lse_now ? lse : r.lse;
            write_draw(p, r, b, at, best, rank);
        }
        if (++sample == samples)
            break;
        __syncthreads();
        score_shortlist(count, at + 1, sample);
        __syncthreads();
    }
}

} // namespace

#endif

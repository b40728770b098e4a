/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from a consumer's accumulators (layout: wgmma.cuh). In each half of its tile a thread
 * holds two tokens of each of its columns, which are batch rows.
 *
 * FILTER  The 64 tokens of a block share a bound, in units of the accumulators: a token below it
 *        cannot win (docs/maths.md, section 6). A thread's two tokens of a column lie in one block,
 *        and the larger accumulator is compared: two instructions for two tokens.
 * HAZARDS  Bounds change while no consumer draws: the service warps write them before `served`, or
 *        the consumer itself in the CTA's first tile. A stale bound costs time, never a token.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM90_CUH
#define GUMBEL_CUDA_EPILOGUE_SM90_CUH

#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/candidates_sm90.cuh"

namespace
{

template <int n, class call> class sm90_epilogue
{
    using consumer = sm90_consumer;
    using sums = sm90_sums<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, filtered at once */
    static constexpr int rounds = n / 8 / groups; /* in a half of a tile */

    const call &p;
    const shared_sm90<n> &shared;
    const sm90_candidate_list<n, call> candidates;
    const int lane;
    const uint32_t own; /* index in the tile of this thread's first token */

  public:
    /* For the tile that begins at token `first`; `index` is the thread's index. */
    __device__ __forceinline__ sm90_epilogue(const call &params, const shared_sm90<n> &memory,
                                             uint32_t first, int index)
        : p(params), shared(memory), candidates(params, memory, first), lane(index % 32),
          own(sm90_place(index % consumer::threads))
    {
    }

    /* Draws from the prepared tile in `sum`: appends the tokens that pass their bounds to the list
     * of candidates, one round of columns at a time, so that the code that appends exists once. */
    __device__ __forceinline__ void draw_sums(const sums &sum) const
    {
#pragma unroll 1
        for (int sample = 0; sample < p.sample_count(); sample++)
#pragma unroll 1
            for (uint32_t passed = passing_rounds(sum, sample); passed != 0; passed &= passed - 1) {
                const int round = __ffs(passed) - 1;
                float v[4 * groups];
                sm90_pick_round(sum, round, v);
                append_round(v, round, sample);
            }
    }

  private:
    /* Bounds of the block that holds the warp's 16 tokens in a half of the tile. Where these lie in
     * two blocks, the bound covers both (set_bounds()). */
    __device__ __forceinline__ const sm90_bound *bounds_of(int half, int sample) const
    {
        return shared.bounds + shared.bounds_of(p, sample, own / 16 * 16 + 64 * half);
    }

    /* Bits of the rounds, of both halves, in which a token passes. */
    __device__ __forceinline__ uint32_t passing_rounds(const sums &sum, int sample) const
    {
        uint32_t passed = 0;
#pragma unroll
        for (int i = 0; i < consumer::halves * rounds; i++) {
            const int half = i / rounds, round = i % rounds;
            uint32_t bounds[2 * groups];
            sm90_load_bounds<n>(bounds_of(half, sample) + 8 * groups * round, lane, bounds);
            const float *v = sum[half] + 4 * groups * round;
            bool passes = false;
#pragma unroll
            for (int k = 0; k < 2 * groups; k++)
                passes |=
                    draw_passes_bound(ptx_max_nan(v[sm90_sum_index(k)], v[sm90_sum_index(k) + 2]),
                                      __uint_as_float(bounds[k]));
            passed |= (uint32_t)__any_sync(~0u, passes) << i;
        }
        return passed;
    }

    __device__ __forceinline__ void append_round(const float (&v)[4 * groups], int round,
                                                 int sample) const
    {
        const int half = round / rounds, first = 8 * groups * (round % rounds);
        const sm90_bound *from = bounds_of(half, sample) + first;
        uint32_t bounds[2 * groups], mask = 0;
        sm90_load_bounds<n>(from, lane, bounds);
#pragma unroll
        for (int k = 0; k < 4 * groups; k++) {
            const float bound = __uint_as_float(bounds[k / 4 * 2 + k % 2]);
            mask |= (uint32_t)draw_passes_bound(v[k], bound) << k;
        }
        const uint32_t place = sample * n + first + sm90_column(lane, 0) + ((own + 64 * half) << 8);
        while (__any_sync(~0u, mask != 0)) {
            const int at = __ffs(mask) - 1; /* -1: none */
            const float sum = sm90_choose_sum(v, at);
            bool have = mask != 0;
            if (have && !(sum < INFINITY)) /* passes even with nothing to draw */
                have = from[sm90_bound_place<n>(lane, at / 4 * 2 + at % 2)].min_sum < INFINITY;
            candidates.add(have, sum, place + ((at & 12) << 1 | (at & 1) | (at & 2) << 7));
            mask &= mask - 1;
        }
    }
};

} // namespace

#endif

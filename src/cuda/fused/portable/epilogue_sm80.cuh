/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw of the rung `tensor` from a warp's accumulators (layout: product_sm80.cuh). A lane holds
 * the four tokens of a Philox block in each of its columns, which are batch rows.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM80_CUH
#define GUMBEL_CUDA_EPILOGUE_SM80_CUH

#include "cuda/fused/portable/logits_sm80.cuh"

namespace
{

/* The draw from a warp tile. */
template <int n> struct sm80_epilogue : sm80_logits<n> {
    static constexpr int groups = n / 8 < 2 ? n / 8 : 2;
    static constexpr int rounds = n / 8 / groups; /* turns of raise_initial() for all columns */

    using warp_logits = sm80_logits<n>;
    using warp_logits::columns;
    using warp_logits::lane;
    using warp_logits::samples;
    using warp_logits::t;
    using warp_logits::token;
    using warp_logits::warp;

    /* Index of the state of the lane's k-th column, and a sample. */
    __device__ __forceinline__ int state_index(int k, int sample) const
    {
        return (8 * (k / 2) + 2 * (lane & 3) + k % 2) * samples + sample;
    }

    /* Computes the noise bounds of the warp tile's block for all columns and samples; by the warp,
     * before it raises thresholds or draws. */
    __device__ __forceinline__ void make_reaches() const
    {
#pragma unroll 1
        for (int i = lane; i < columns * samples; i += 32) {
            row_state &s = t.states[i];
            const draw_block block = draw_block_of(s.philox, token);
            s.reaches[warp] = draw_pack_reach(draw_reach(is_greedy(s.reaches[warp]), block.r),
                                              block.max_noise_index());
        }
        __syncwarp();
    }

    __device__ __forceinline__ float reach_of(const row_state &s) const { return s.reaches[warp]; }

    /* A lower bound of the best score among the lane's tokens of a column, -inf if none is known:
     * that of the token of most noise, or of any token in a greedy row. */
    __device__ __forceinline__ float best_lower_bound(const float *y, int i) const
    {
        const row_state &s = t.states[i];
        const float reach = reach_of(s);
        const uint32_t place = draw_place_of_reach(reach) - token % GUMBEL_BLOCK;
        const bool greedy = is_greedy(reach);
        float top = -INFINITY;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            top = greedy || place == k ? fmaxf(top, y[2 * k]) : top;
        return draw_score_bound_of_reach(greedy, top * s.inverse_temperature, reach);
    }

    /* Whether one of the lane's tokens of a column may reach the threshold, or is NaN or +inf. */
    __device__ __forceinline__ bool may_pass(const float *y, const row_state &s) const
    {
        float largest = ptx_max_nan(ptx_max_nan(y[0], y[2]), ptx_max_nan(y[4], y[6]));
        return draw_passes_bound(fmaf(largest, s.inverse_temperature, reach_of(s)), s.threshold);
    }

    /* Raises thresholds to lower bounds of this warp tile's scores: the first tile starts without a
     * threshold, and every token would pass. */
    __device__ __forceinline__ void raise_initial(float (&y)[n / 8][8], int round, int sample) const
    {
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const float *own = &y[k / 2][k % 2];
            int at = state_index(2 * groups * round + k, sample);
            float bound = best_lower_bound(own, at);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                bound = fmaxf(bound, __shfl_xor_sync(~0u, bound, lanes));
            if (lane < 4 && fabsf(bound) < INFINITY)
                atomicMax(&t.raised[at], ordered_bits(bound));
        }
        rotate_groups<groups>(y);
    }

    /* Draws a sample from `halves` warp tiles of the same columns; bit u of `counting`: tile u has
     * tokens that count. `token` is that of the first tile. The call draws for the lowest m groups
     * of columns, those of `round`, and rotates y to the next ones. Filters each of the lane's
     * columns as a whole. The columns that pass are packed in shared memory, so that each lane
     * scores one, whichever lane had it. */
    template <int m, int halves>
    __device__ __forceinline__ void draw_sample(float (&y)[halves][n / 8][8], uint32_t counting,
                                                int round, int sample) const
    {
        const uint32_t pass = find_passing<m>(y, counting, round, sample);
        const uint32_t any = __reduce_or_sync(~0u, pass);
        if (any) {
            const int end = sum_to_lane(__popc(pass)), all = __shfl_sync(~0u, end, 31);
#pragma unroll 1
            for (int first = 0; first < all; first += kPassing) {
                store_passing<m>(y, pass, any, end - __popc(pass) - first, round, sample);
                __syncwarp();
                score_passing(all - first);
                __syncwarp();
            }
        }
#pragma unroll
        for (int u = 0; u < halves; u++)
            rotate_groups<m>(y[u]);
    }

    /* The sum of the values of this lane and of those before it. */
    __device__ __forceinline__ int sum_to_lane(int value) const
    {
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const int before = __shfl_up_sync(~0u, value, lanes, 32);
            value += lane >= lanes ? before : 0;
        }
        return value;
    }

    /* Bit halves * k + u: a token of column k of tile u may reach the threshold. */
    template <int m, int halves>
    __device__ __forceinline__ uint32_t find_passing(const float (&y)[halves][n / 8][8],
                                                     uint32_t counting, int round, int sample) const
    {
        static_assert(2 * m * halves <= 32, "a bit for each column of a tile");
        uint32_t pass = 0;
#pragma unroll
        for (int k = 0; k < 2 * m; k++) {
            const row_state &s = t.states[state_index(2 * m * round + k, sample)];
#pragma unroll
            for (int u = 0; u < halves; u++)
                pass |= (uint32_t)may_pass(&y[u][k / 2][k % 2], s) << (halves * k + u);
        }
        const uint32_t first_tile = halves == 1 ? ~0u : 0x55555555u;
#pragma unroll
        for (int u = 0; u < halves; u++)
            if (!(counting >> u & 1))
                pass &= ~(first_tile << u);
        return pass;
    }

    /* Stores the columns that passed to places from `place` on, those that exist. `any` has the
     * bits of all lanes, so that the warp skips a column in which none passed. */
    template <int m, int halves>
    __device__ __forceinline__ void store_passing(const float (&y)[halves][n / 8][8], uint32_t pass,
                                                  uint32_t any, int place, int round,
                                                  int sample) const
    {
#pragma unroll
        for (int bit = 0; bit < 2 * m * halves; bit++) {
            if (!(any >> bit & 1) || !(pass >> bit & 1))
                continue;
            const int k = bit / halves, u = bit % halves;
            const float *own = &y[u][k / 2][k % 2];
            if ((uint32_t)place < kPassing) {
                t.passing->y[place] = {own[0], own[2], own[4], own[6]};
                t.passing->target[place] =
                    (uint32_t)state_index(2 * m * round + k, sample) * GUMBEL_BLOCK +
                    token % GUMBEL_BLOCK + kWarpTile * u;
            }
            place++;
        }
    }

    /* Scores the tokens of the first `count` places, or of all. */
    __device__ __forceinline__ void score_passing(int count) const
    {
        scored_token found = {0, 0.0f};
        uint32_t i = 0;
        if (lane < min(count, kPassing)) {
            const uint32_t target = t.passing->target[lane];
            i = target / GUMBEL_BLOCK;
            if (i < (uint32_t)(columns * samples))
                found = score_four(&t.states[i], &t.raised[i], &t.flags[i], t.passing->y[lane],
                                   token / GUMBEL_BLOCK * GUMBEL_BLOCK + target % GUMBEL_BLOCK,
                                   reach_of(t.states[i]));
        }
        if (found.key)
            atomicMax(&t.keys[i], found.key);
        __syncwarp();
        if (found.key && t.keys[i] == found.key)
            t.zs[i] = found.z;
    }

    /* Adds a warp tile to the warp's masses, for the lowest m groups of columns, those of `round`,
     * and rotates y to the next ones. Its 32 tokens are summed in a fixed order relative to the
     * largest z; lane 4 g + q adds columns 2 q and 2 q + 1 of group g. */
    template <int m>
    __device__ __forceinline__ void add_masses(float (&y)[n / 8][8], int round) const
    {
        float2 own[2] = {};
#pragma unroll
        for (int k = 0; k < 2 * m; k++) {
            float2 found = measure_mass(&y[k / 2][k % 2], state_index(2 * m * round + k, 0));
            own[k % 2] = lane / 4 == k / 2 ? found : own[k % 2];
        }
        rotate_groups<m>(y);
        if (lane / 4 >= m)
            return;
#pragma unroll 1
        for (int c = 0; c < 2; c++) {
            gumbel_summary *s = &t.masses[8 * m * round + 2 * lane + c];
            float2 found = c ? own[1] : own[0];
            s->max_z = fmaxf(s->max_z, found.x);
            gumbel_mass_add_block(s, found.x, found.y);
        }
    }

    /* The largest z of a column's 32 tokens, and the sum of exp(z - largest), over eight lanes with
     * four tokens each. */
    __device__ __forceinline__ float2 measure_mass(const float *y, int i) const
    {
        float by = t.states[i].inverse_temperature, z[4], largest = -INFINITY;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            z[k] = y[2 * k] * by;
            largest = fmaxf(largest, z[k]);
        }
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
#pragma unroll
        for (int k = 0; k < 4; k++)
            z[k] = ptx_exp2((z[k] - largest) * LOG2E);
        float mass = (z[0] + z[1]) + (z[2] + z[3]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            mass += __shfl_xor_sync(~0u, mass, lanes);
        return {largest, mass};
    }
};

} // namespace

#endif

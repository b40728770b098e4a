/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable rung's draw from a warp's accumulators (layout: product_sm80.cuh). A lane holds the
 * four tokens of a Philox block in each of its columns, which are batch rows.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM80_CUH
#define GUMBEL_CUDA_EPILOGUE_SM80_CUH

#include "cuda/fused/portable/product_sm80.cuh"
#include "cuda/fused/portable/cta_state_sm80.cuh"
#include "cuda/common/widen.cuh"

namespace
{

/* Uses the sums so that the compiler keeps the product; never writes. */
template <int n>
__device__ __forceinline__ void sink_sums(const float (&sum)[n / 8][8], uint32_t *never)
{
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++)
        all += sum[i / 8][i % 8];
    if (all == 0x1.23456p+99f)
        *never = 0;
}

/* The draw from one warp tile, split into items that are interleaved with the steps of the next
 * tile's product. Its y are those of eq. 2: scaled, soft-capped, -inf for tokens that do not count.
 * An item processes `groups` groups of columns; k counts the lane's columns among them. Registers
 * cannot be indexed, and code for every group would overflow the instruction cache, so y rotates
 * between items. */
template <int n> struct sm80_epilogue {
    static constexpr int groups = n / 8 < 2 ? n / 8 : 2;
    static constexpr int rounds = n / 8 / groups; /* items that cover all columns once */

    const cuda_params &p;
    const cta_state t;   /* of the warp's tokens and columns */
    const int first_row; /* row of its first column */
    const int columns;   /* that have a row; <= 0: none */
    const int samples;
    const int warp; /* index of the warp tile in the tile */
    const int lane;
    uint32_t token; /* the lane's first in the warp tile, a multiple of 4 */

    /* Index of the state of the lane's k-th column in a round, and a sample. */
    __device__ __forceinline__ int state_index(int round, int k, int sample) const
    {
        return (8 * (groups * round + k / 2) + 2 * (lane & 3) + k % 2) * samples + sample;
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
    __device__ __forceinline__ bool may_pass(const float *y, int i) const
    {
        const row_state &s = t.states[i];
        float largest = ptx_max_nan(ptx_max_nan(y[0], y[2]), ptx_max_nan(y[4], y[6]));
        return draw_passes_bound(fmaf(largest, s.inverse_temperature, reach_of(s)), s.threshold);
    }

    /* Stores the logits of tokens from `first` to `end`. */
    __device__ __forceinline__ void store_logits(const float (&sum)[n / 8][8], int64_t first,
                                                 int64_t end) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t id = (int64_t)token + i, at = id - q.first_token;
            if (id < first || id >= end)
                continue;
            float bias = q.bias.data ? widen_element(q.bias.data, q.bias.dtype, at) : -0.0f;
#pragma unroll
            for (int j = 0; j < n / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    int column = 8 * j + 2 * (lane & 3) + c;
                    if (column < columns)
                        p.logits_out[(first_row + column) * p.logits_out_stride + at] =
                            sum[j][2 * i + c] + bias;
                }
        }
    }

    /* Turns sums to y, in place; tokens from `first` to `end` count. */
    __device__ __forceinline__ void prepare_logits(float (&sum)[n / 8][8], int64_t first,
                                                   int64_t end) const
    {
        const gumbel_problem &q = p.problem;
        uint32_t warp_tile = token - 4 * (lane / 4);
        bool rare =
            q.bias.data || q.soft_cap != 0.0f || warp_tile < first || warp_tile + kWarpTile > end;
        if (rare)
            prepare_rare(sum, first, end);
        else
#pragma unroll
            for (int k = 0; k < n; k++)
                sum[k / 8][k % 8] *= q.scale;
    }

    /* Applies bias and soft-cap and sets tokens that do not count to -inf; a rolled loop, one group
     * a turn. */
    __device__ __forceinline__ void prepare_rare(float (&sum)[n / 8][8], int64_t first,
                                                 int64_t end) const
    {
        const gumbel_problem &q = p.problem;
        float bias[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t id = (int64_t)token + i;
            bias[i] = id >= first && id < end && q.bias.data
                          ? widen_element(q.bias.data, q.bias.dtype, id - q.first_token)
                          : -0.0f;
        }
#pragma unroll 1
        for (int j = 0; j < n / 8; j++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                int64_t id = (int64_t)token + k / 2;
                float l = sum[0][k] + bias[k / 2];
                float y = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, l) : l * q.scale;
                sum[0][k] = id >= first && id < end ? y : -INFINITY;
            }
            rotate<1>(sum);
        }
    }

    /* Sets the tokens that the rows' masks do not allow to -inf, before `end`; a rolled loop, one
     * group a turn. */
    __device__ __forceinline__ void exclude_masked(float (&y)[n / 8][8], int64_t end) const
    {
        if (!(p.problem.features & GUMBEL_FEATURE_MASK))
            return;
#pragma unroll 1
        for (int j = 0; j < n / 8; j++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int column = 8 * j + 2 * (lane & 3) + c;
                const int32_t *mask = column < columns && token < end
                                          ? gumbel_problem_mask(&p.problem, first_row + column)
                                          : NULL;
                const uint32_t allowed =
                    mask ? (uint32_t)__ldg(mask + token / 32) >> token % 32 : ~0u;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (!(allowed >> i & 1))
                        y[0][2 * i + c] = -INFINITY;
            }
            rotate<1>(y);
        }
    }

    /* Raises thresholds to lower bounds of this warp tile's scores: the first tile starts without a
     * threshold, and every token would pass. */
    __device__ __forceinline__ void raise_initial(float (&y)[n / 8][8], int round, int sample) const
    {
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const float *own = &y[k / 2][k % 2];
            int at = state_index(round, k, sample);
            float bound = best_lower_bound(own, at);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                bound = fmaxf(bound, __shfl_xor_sync(~0u, bound, lanes));
            if (lane < 4 && fabsf(bound) < INFINITY)
                atomicMax(&t.raised[at], ordered_bits(bound));
        }
        rotate<groups>(y);
    }

    /* Filters each of the lane's columns as a whole, and scores those that pass. */
    __device__ __forceinline__ void draw_columns(float (&y)[n / 8][8], int round, int sample) const
    {
        uint32_t pass = 0;
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            const float *own = &y[k / 2][k % 2];
            pass |= (uint32_t)may_pass(own, state_index(round, k, sample)) << k;
        }
        if (__any_sync(~0u, pass))
            score_passing(y, pass, round, sample);
        rotate<groups>(y);
    }

    /* Scores the tokens that passed. Each lane iterates over its own columns, so a warp takes as
     * many turns as its busiest lane. */
    __device__ __forceinline__ void score_passing(const float (&y)[n / 8][8], uint32_t pass,
                                                  int round, int sample) const
    {
        do {
            int at = pass ? __ffs(pass) - 1 : 0, i = state_index(round, at, sample);
            float4 own = {y[0][0], y[0][2], y[0][4], y[0][6]};
#pragma unroll
            for (int k = 1; k < 2 * groups; k++) {
                const float *other = &y[k / 2][k % 2];
                if (k == at)
                    own = {other[0], other[2], other[4], other[6]};
            }
            candidate found = {0, 0.0f};
            if (pass && i < columns * samples)
                found = score_four(&t.states[i], &t.raised[i], &t.flags[i], own, token,
                                   reach_of(t.states[i]));
            if (found.key)
                atomicMax(&t.keys[i], found.key);
            __syncwarp();
            if (found.key && t.keys[i] == found.key)
                t.zs[i] = found.z;
            __syncwarp();
            pass &= pass - 1;
        } while (__any_sync(~0u, pass));
    }

    /* Adds to the warp's masses. A block of 32 tokens is summed in a fixed order relative to its
     * largest z; lane 4 g + q adds columns 2 q and 2 q + 1 of group g. */
    __device__ __forceinline__ void add_mass(float (&y)[n / 8][8], int round) const
    {
        float2 own[2] = {};
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            float2 found = measure_mass(&y[k / 2][k % 2], state_index(round, k, 0));
            own[k % 2] = lane / 4 == k / 2 ? found : own[k % 2];
        }
        rotate<groups>(y);
        if (lane / 4 >= groups)
            return;
#pragma unroll 1
        for (int c = 0; c < 2; c++) {
            gumbel_summary *s = &t.masses[8 * groups * round + 2 * lane + c];
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

    /* Moves every group of columns `by` groups down, the lowest ones to the top. */
    template <int by> static __device__ __forceinline__ void rotate(float (&y)[n / 8][8])
    {
        if constexpr (8 * by < n) {
            float first[by][8];
#pragma unroll
            for (int i = 0; i < 8 * by; i++)
                first[i / 8][i % 8] = y[i / 8][i % 8];
#pragma unroll
            for (int i = 0; i < n - 8 * by; i++)
                y[i / 8][i % 8] = y[i / 8 + by][i % 8];
#pragma unroll
            for (int i = 0; i < 8 * by; i++)
                y[n / 8 - by + i / 8][i % 8] = first[i / 8][i % 8];
        }
    }
};

} // namespace

#endif

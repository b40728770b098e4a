/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from a warpgroup's accumulators (layout: cuda/wgmma.cuh). A thread holds two tokens of
 * each of its columns, which are batch rows; its neighbour four lanes on holds the other two of
 * the Philox block.
 *
 * The loop over columns is unrolled four groups deep and no deeper: registers cannot be indexed,
 * so all of 256 columns unrolled are 100 KB of instructions, which the instruction cache does not
 * hold. Between rounds the accumulators rotate instead.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM90_CUH
#define GUMBEL_CUDA_EPILOGUE_SM90_CUH

#include "cuda/floor.cuh"

namespace
{

/* The words of this thread's two tokens in a column pair: r[token][column]. */
struct words {
    uint32_t r[2][2];
};

/* Even lanes compute the left column's block, odd lanes the right one's, and they swap halves. */
__device__ __forceinline__ words share_words(const draw_state *own, uint32_t block, bool odd)
{
    uint4 c = draw_words(own, block);
    uint32_t send0 = odd ? c.x : c.z, send1 = odd ? c.y : c.w;
    uint32_t keep0 = odd ? c.z : c.x, keep1 = odd ? c.w : c.y;
    uint32_t got0 = __shfl_xor_sync(~0u, send0, 4), got1 = __shfl_xor_sync(~0u, send1, 4);
    words w;
    w.r[0][0] = odd ? got0 : keep0;
    w.r[1][0] = odd ? got1 : keep1;
    w.r[0][1] = odd ? keep0 : got0;
    w.r[1][1] = odd ? keep1 : got1;
    return w;
}

template <int n> struct epilogue {
    static constexpr int groups = n / 8 < 4 ? n / 8 : 4; /* of 8 columns, unrolled */
    static constexpr int rounds = n / 8 / groups;

    const cuda_params &p;
    draw_state *states; /* [n columns][S] */
    uint32_t *seeds;    /* [n columns][S]: ordered bits of a score surely reached; 0: none */
    float2 *masses;     /* [8 warps][n columns]: largest z so far, and the sum of exp(z - that) */
    int columns, samples, lane;
    int thread, threads; /* of those that draw from this tile together */
    uint32_t token;      /* of this thread's first element */

    __device__ __forceinline__ draw_state *state(int column, int sample) const
    {
        return &states[column * samples + sample];
    }

    /* Floors go to and fro between shared and global memory, some with each consumer thread. */
    __device__ __forceinline__ uint64_t load_floor() const
    {
        int own = thread;
        if (own >= columns * samples)
            return 0;
        return floor_load(&p.shared_floors[CUDA_FLOOR_WORDS * own]);
    }

    __device__ __forceinline__ void take_floors(uint64_t own) const
    {
        for (int i = thread; i < columns * samples; i += threads)
            floor_take(&states[i],
                       i == thread ? own
                                   : floor_load(&p.shared_floors[CUDA_FLOOR_WORDS * i]), p.tag);
    }

    /* `given` is what this thread gave last for its first entry. Entries i with (i + phase) %
     * every != 0 are left out. */
    __device__ __forceinline__ void give_floors(float &given, int phase, int every) const
    {
        for (int i = thread; i < columns * samples; i += threads) {
            float threshold = *(volatile const float *)&states[i].threshold;
            bool first = i == thread;
            if ((i + phase) % every == 0 && (!first || threshold > given)) {
                floor_give(&p.shared_floors[CUDA_FLOOR_WORDS * i], threshold, p.tag);
                given = first ? threshold : given;
            }
        }
    }

    __device__ __forceinline__ float bias(int64_t i) const
    {
        const gumbel_tensor &t = p.problem.bias;
        if (t.dtype == GUMBEL_FLOAT32)
            return ((const float *)t.data)[i];
        uint16_t bits = ((const uint16_t *)t.data)[i];
        if (t.dtype == GUMBEL_BFLOAT16)
            return __uint_as_float((uint32_t)bits << 16);
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
        return wide;
    }

    /* What is rare: bias, soft-cap, tokens that do not count. In place, out of the hot loop. */
    __device__ __forceinline__ void prepare(float (&sum)[n / 2]) const
    {
        const gumbel_problem &q = p.problem;
        float never = -copysignf(INFINITY, q.scale); /* -inf once scaled */
#pragma unroll
        for (int f = 0; f < 2; f++) {
            int64_t t = (int64_t)token + f;
            if (t >= q.end_token) {
#pragma unroll
                for (int i = 0; i < n / 2; i++)
                    sum[i] = (i >> 1 & 1) == f ? never : sum[i];
                continue;
            }
            if (q.bias.data) {
                float add = bias(t - q.first_token);
#pragma unroll
                for (int i = 0; i < n / 2; i++)
                    sum[i] += (i >> 1 & 1) == f ? add : -0.0f;
            }
        }
        if (q.soft_cap != 0.0f)
#pragma unroll
            for (int i = 0; i < n / 2; i++)
                sum[i] = draw_capped(p, sum[i]);
    }

    /* Find what this tile's tokens surely reach in the first group's columns. */
    __device__ __forceinline__ void seed_group(const float *sum, int left, int sample) const
    {
        draw_state *const s[2] = {state(left, sample), state(left + 1, sample)};
        words w = share_words(lane & 4 ? s[1] : s[0], token >> 2, lane & 4);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float by = s[c]->scale, then = s[c]->inverse_temperature;
            float floor = fmaxf(draw_floor(s[c], sum[c] * by * then, w.r[0][c]),
                                draw_floor(s[c], sum[2 + c] * by * then, w.r[1][c]));
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                floor = fmaxf(floor, __shfl_xor_sync(~0u, floor, lanes));
            if (lane < 4 && fabsf(floor) < INFINITY)
                atomicMax(&seeds[(left + c) * samples + sample], ordered_bits(floor));
        }
    }

    /* The first tile starts without a threshold, and every token would pass: find one. Rolled up,
     * one group a round, since code that runs once is paid for by instruction fetches. */
    __device__ __forceinline__ void seed(float (&sum)[n / 2]) const
    {
        for (int sample = 0; sample < samples; sample++)
#pragma unroll 1
            for (int j = 0; j < n / 8; j++) {
                if (8 * j < columns)
                    seed_group(sum, 8 * j + 2 * (lane & 3), sample);
                rotate<1>(sum);
            }
    }

    __device__ __forceinline__ void take_seeds() const
    {
        for (int i = thread; i < columns * samples; i += threads)
            if (seeds[i] != 0)
                draw_raise(&states[i], ordered_float(seeds[i]));
    }

    /* One round over `groups` groups of columns from `column` on. */
    __device__ __forceinline__ void round(const float *sum, int column, int sample) const
    {
        float z[4 * groups];
        uint32_t pass = 0;
#pragma unroll
        for (int j = 0; j < groups; j++) {
            int left = column + 8 * j + 2 * (lane & 3);
            draw_state *const s[2] = {state(left, sample), state(left + 1, sample)};
            words w = share_words(lane & 4 ? s[1] : s[0], token >> 2, lane & 4);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float4 hot = *(const float4 *)s[c];
                float offset = draw_offset(hot.z);
#pragma unroll
                for (int i = c; i < 4; i += 2) {
                    z[4 * j + i] = (sum[4 * j + i] * hot.x) * hot.y;
                    pass |= (uint32_t)draw_screen(z[4 * j + i], w.r[i >> 1][c],
                                                  __float_as_uint(hot.w), offset)
                            << (4 * j + i);
                }
            }
        }
        if (pass)
            offer(z, pass, column, sample);
    }

    /* Score what passed. Each lane goes through its own, so that a warp takes as many turns as its
     * busiest lane has, not one for every place that passed in any. */
    __device__ __forceinline__ void offer(const float (&z)[4 * groups], uint32_t pass, int column,
                                          int sample) const
    {
        for (; pass != 0; pass &= pass - 1) {
            int at = __ffs(pass) - 1;
            float own = z[0];
#pragma unroll
            for (int i = 1; i < 4 * groups; i++)
                own = i == at ? z[i] : own;
            draw_offer(state(column + 8 * (at / 4) + 2 * (lane & 3) + (at & 1), sample), own,
                       token + (at >> 1 & 1));
        }
    }

    /* Draw from the prepared tile in `sum`, which is as before afterwards. */
    __device__ __forceinline__ void draw(float (&sum)[n / 2]) const
    {
        for (int sample = 0; sample < samples; sample++) {
#pragma unroll 1
            for (int i = 0; i < rounds; i++) {
                if (8 * groups * i < columns)
                    round(sum, 8 * groups * i, sample);
                rotate<groups>(sum);
            }
        }
    }

    /* Add the tile to the masses: a warp sums its sixteen tokens of a column relative to their
     * largest, in a fixed order, so that the result does not depend on the batch. */
    __device__ __forceinline__ void add_mass(float (&sum)[n / 2]) const
    {
        float2 *own = masses + threadIdx.x / 32 * n;
#pragma unroll 1
        for (int i = 0; i < rounds; i++) {
            if (8 * groups * i < columns) {
#pragma unroll
                for (int j = 0; j < groups; j++) {
                    int left = 8 * groups * i + 8 * j + 2 * (lane & 3);
                    add_column(own, left, sum[4 * j], sum[4 * j + 2]);
                    add_column(own, left + 1, sum[4 * j + 1], sum[4 * j + 3]);
                }
            }
            rotate<groups>(sum);
        }
    }

    __device__ __forceinline__ void add_column(float2 *own, int column, float a, float b) const
    {
        const draw_state *s = state(column, 0);
        float za = (a * s->scale) * s->inverse_temperature;
        float zb = (b * s->scale) * s->inverse_temperature;
        float largest = fmaxf(za, zb);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
        float from = largest > -INFINITY ? largest : 0.0f;
        float part = ptx_exp2((za - from) * LOG2E) + ptx_exp2((zb - from) * LOG2E);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
            part += __shfl_xor_sync(~0u, part, lanes);
        if (lane < 4) {
            float2 m = own[column];
            float top = fmaxf(m.x, from);
            own[column] = {top, m.y * ptx_exp2((m.x - top) * LOG2E) +
                                    part * ptx_exp2((from - top) * LOG2E)};
        }
    }

    /* Move every group of columns `by` groups down, the lowest ones to the top. */
    template <int by> static __device__ __forceinline__ void rotate(float (&sum)[n / 2])
    {
        if constexpr (8 * by == n)
            return;
        float head[4 * by];
#pragma unroll
        for (int i = 0; i < 4 * by; i++)
            head[i] = sum[i];
#pragma unroll
        for (int i = 0; i < n / 2 - 4 * by; i++)
            sum[i] = sum[i + 4 * by];
#pragma unroll
        for (int i = 0; i < 4 * by; i++)
            sum[n / 2 - 4 * by + i] = head[i];
    }
};

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from a team's accumulators (layout: cuda/wgmma.cuh). In each half of its tile a thread
 * holds two tokens of each of its columns, which are batch rows.
 *
 * SCREEN In units of the noise's bytes, a token may win only if z - threshold + byte >= 0. The left
 *        side is one fused multiply-add of the logit: its result is kept near 1.5 * 2^23, where the
 *        bits of a float count in ones, so that byte and comparison are integer instructions. Two
 *        neighbouring tokens are screened at once, by the larger of each side.
 * RACES  A team's thresholds change between its tiles only. A stale one costs time, never a token.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM90_CUH
#define GUMBEL_CUDA_EPILOGUE_SM90_CUH

#include "cuda/lanes_sm90.cuh"
#include "cuda/mass_sm90.cuh"
#include "cuda/offers_sm90.cuh"
#include "cuda/thresholds_sm90.cuh"
#include "cuda/widen.cuh"

/* Less the bits of the origin, in the upper three bytes; the lowest takes the noise. */
#define SM90_SCREEN_BITS 0xb4c00000u
/* Thresholds in units, where the origin leaves room for them. */
#define SM90_SCREEN_REACH 0x1p21f

/* In the first tile about one CTA in this many gives its floor of a row: all at once, on one
 * address, they would queue for 15 us. */
#define SM90_SEEDERS 8

namespace
{

template <int n> class epilogue
{
    using team = sm90_team<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, screened at once */
    static constexpr int rounds = n / 8 / groups; /* in a half */

    const cuda_params &p;
    const shared_sm90<n> &shared;
    int columns, samples;
    int lane, thread; /* in the team */
    uint32_t own;     /* place of this thread's first token in the tile */

  public:
    using sums = float[team::halves][n / 2];
    offer_list<n> offers;
    const team own_team;
    const float scale; /* sm90_scale() */

    /* For one tile; `index` is the thread's. */
    __device__ __forceinline__ epilogue(const cuda_params &params, const shared_sm90<n> &memory,
                                        sm90_list &list, int index)
        : p(params), shared(memory), columns((int)params.problem.batch),
          samples(params.problem.sampling.num_samples), lane(index % 32),
          thread(index % team::threads), offers(params, memory, list, index), own_team(index),
          scale(sm90_scale(params.problem))
    {
        int g = lane / 4;
        own = 16 * (thread / 32) + 4 * (g >> 1) + 2 * (g & 1);
    }

    /* ----------------------------------------------------------------------- transforms ---- */

    /* Store the logits of the team's tile, its turn-th, and the peaks of its columns where they are
     * asked for. What lies in `sum` is lost. */
    __device__ __forceinline__ void store(sums &sum, int turn) const
    {
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < team::halves; h++) {
            int64_t at = token_of_half(h) - p.problem.first_token;
            int64_t left = p.problem.end_token - p.problem.first_token - at;
#pragma unroll
            for (int k = 0; k < n / 4; k++) {
                int column = sm90_column(lane, k), from = sm90_sum(k);
                float *to = &p.stored[column * p.stored_stride + at];
                if (column < columns && left > 1)
                    *(float2 *)to = {sum[h][from], sum[h][from + 2]};
                else if (column < columns && left == 1)
                    *to = sum[h][from];
            }
        }
        if (p.peaks)
            store_peaks(sum, turn);
    }

    /* What is rare: bias, soft-cap, a negative scale, tokens that do not count. In place. */
    __device__ __forceinline__ void prepare(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
        add_bias(sum);
#pragma unroll
        for (int h = 0; h < team::halves; h++) {
            if (sm90_prepares(q))
#pragma unroll
                for (int k = 0; k < n / 2; k++)
                    sum[h][k] =
                        q.soft_cap != 0.0f ? draw_capped(p, sum[h][k]) : sum[h][k] * q.scale;
            drop_rest(sum, h);
        }
    }

    /* ----------------------------------------------------------------------- thresholds ---- */

    /* The first tile has no thresholds, and every token would pass. Each CTA finds those of one
     * round's columns, and has the others' from its neighbours: of each of its columns it takes the
     * largest screened value, scores the tokens that have it, and keeps the best score. The first
     * half of the tile is enough. */
    __device__ __forceinline__ void seed(const sums &sum)
    {
        const int every = (int)gridDim.x >= rounds ? rounds : 1, phase = blockIdx.x % every;
        auto mine = [&](int i) { return i % n / (8 * groups) % every == phase; };
        for (int round = phase; round < rounds; round += every)
            for (int sample = 0; sample < samples; sample++)
                find_highest(sum, round, sample);
        own_team.sync();
        thresholds<n> all(p, shared);
        all.template each<team::threads>(thread, [&](int i, int) {
            float highest = (float)shared.reaches[i].highest;
            highest = fminf(fmaxf(highest, -SM90_SCREEN_REACH), SM90_SCREEN_REACH);
            shared.reaches[i].threshold = -INFINITY;
            if (mine(i))
                screens()[i].offset = SM90_SCREEN_ORIGIN - highest;
        });
        own_team.sync();
        for (int round = phase; round < rounds; round += every)
            for (int sample = 0; sample < samples; sample++)
                offer_rounds(sum, 1u << round, sample);
        offers.settle();
        own_team.sync();
        all.template each<team::threads>(thread, [&](int i, int) {
            uint64_t floor = mine(i) ? 0 : all.wait_for_floor(i);
            all.take_floor(i, floor);
            all.take_best(i);
            if (mine(i) && blockIdx.x / every % (SM90_SEEDERS / rounds) == 0)
                all.give_floor(i, floor);
            all.set_screen(i, &screens()[i]);
        });
        own_team.sync();
    }

    /* ----------------------------------------------------------------------------- draw ---- */

    /* Draw from the prepared tile in `sum`. */
    __device__ __forceinline__ void draw(const sums &sum)
    {
        for (int sample = 0; sample < samples; sample++) {
            const sm90_screen *own_screens = screens() + sample * n + 2 * (lane & 3);
            uint32_t passed = 0;
#pragma unroll
            for (int i = 0; i < team::halves * rounds; i++) {
                int half = i / rounds, round = i % rounds;
                uint2 bytes = load_bytes(sample, i);
                int highest = INT_MIN;
#pragma unroll
                for (int j = 0; j < groups; j++) {
                    float4 s = *(const float4 *)(own_screens + 8 * (groups * round + j));
                    const float *v = sum[half] + 4 * (groups * round + j);
                    highest = max(highest, screened(v[0], v[2], {s.x, s.y}, bytes, 2 * j));
                    highest = max(highest, screened(v[1], v[3], {s.z, s.w}, bytes, 2 * j + 1));
                }
                passed |= (uint32_t)(__any_sync(~0u, highest >= 0) != 0) << i;
            }
            if (passed)
                offer_rounds(sum, passed, sample);
        }
    }

  private:
    __device__ __forceinline__ sm90_screen *screens() const
    {
        return shared.screens_of_team(p, own_team.index);
    }

    __device__ __forceinline__ int64_t token_of_half(int half) const
    {
        return offers.token_of(own + 64 * half);
    }

    /* The largest screened value of each column of a round, into `highest`. */
    __device__ __forceinline__ void find_highest(const sums &sum, int round, int sample) const
    {
        uint2 bytes = load_bytes(sample, round);
        float v[4 * groups];
        pick(sum, round, v);
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int draw = sample * n + 8 * groups * round + sm90_column(lane, k), at = sm90_sum(k);
            int value = screened(v[at], v[at + 2], screens()[draw], bytes, k);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                value = max(value, __shfl_xor_sync(~0u, value, lanes));
            if (lane < 4)
                atomicMax(&shared.reaches[draw].highest, value);
        }
    }

    __device__ __forceinline__ void add_bias(sums &sum) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int f = 0; f < 2 * team::halves && q.bias.data; f++) {
            int64_t i = token_of_half(f / 2) + f % 2 - q.first_token;
            float add = i < q.vocab ? widen_element(q.bias.data, q.bias.dtype, i) : 0.0f;
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[f / 2][k] += (k >> 1 & 1) == f % 2 ? add : -0.0f;
        }
    }

    /* Tokens of a half that do not count can no longer win. In place. */
    __device__ __forceinline__ void drop_rest(sums &sum, int half) const
    {
        int64_t left = p.problem.end_token - token_of_half(half);
        if (left < CUDA_SM90_TILE)
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[half][k] = (k >> 1 & 1) < left ? sum[half][k] : -INFINITY;
    }

    /* The largest logit of each column: of a warp's tokens, 7 exchanges for 32 columns, then of the
     * team's. */
    __device__ __forceinline__ void store_peaks(sums &sum, int turn) const
    {
        float *peaks = shared.peaks_of_team(p, own_team.index, turn);
#pragma unroll
        for (int h = 0; h < team::halves; h++)
            drop_rest(sum, h);
#pragma unroll
        for (int j = 0; j < n / 8; j += groups) {
            if (8 * j >= columns)
                break;
            float largest[2 * groups];
#pragma unroll
            for (int k = 0; k < 2 * groups; k++) {
                int at = 4 * j + sm90_sum(k);
                largest[k] = ptx_max_nan(sum[0][at], sum[0][at + 2]);
#pragma unroll
                for (int h = 1; h < team::halves; h++)
                    largest[k] = ptx_max_nan(largest[k], ptx_max_nan(sum[h][at], sum[h][at + 2]));
            }
            sm90_join_lanes(largest, lane, ptx_max_nan);
            if (lane < 8 * groups) /* the others have the same */
                peaks[thread / 32 * n + 8 * j + sm90_column(lane, lane / 4)] = largest[0];
        }
        own_team.sync();
        if (thread < columns) {
            float peak = peaks[thread];
#pragma unroll
            for (int warp = 1; warp < team::threads / 32; warp++)
                peak = ptx_max_nan(peak, peaks[warp * n + thread]);
            int64_t tile = (offers.token_of(0) - p.problem.first_token) / CUDA_SM90_TILE;
            p.peaks[thread * p.peaks_stride + tile] = peak;
        }
    }

    /* The noise of the thread's tokens in a round of the tile's halves. */
    __device__ __forceinline__ uint2 load_bytes(int sample, int round) const
    {
        const unsigned char *at =
            shared.noise_of_team(p, own_team.index) + sample * 64 * n +
            noise_place<n>(thread + 128 * (round / rounds), groups * (round % rounds));
        if constexpr (noise_piece<n> == 8)
            return *(const uint2 *)at;
        else if constexpr (noise_piece<n> == 4)
            return {*(const uint32_t *)at, 0};
        else
            return {*(const uint16_t *)at, 0};
    }

    /* At least 0 where one of two tokens may reach the threshold; byte j of `bytes` bounds their
     * noise. NaN and +inf pass. */
    static __device__ __forceinline__ int screened(float a, float b, sm90_screen s, uint2 bytes,
                                                   int j)
    {
        int noise = (int)__byte_perm(j < 4 ? bytes.x : bytes.y, SM90_SCREEN_BITS, 0x7650 | j % 4);
        return __float_as_int(fmaf(ptx_max_nan(a, b), s.slope, s.offset)) + noise;
    }

    /* One round's sums. */
    static __device__ __forceinline__ void pick(const sums &sum, int round, float (&v)[4 * groups])
    {
#pragma unroll
        for (int i = 0; i < team::halves * rounds; i++)
            if (i == round)
#pragma unroll
                for (int k = 0; k < 4 * groups; k++)
                    v[k] = sum[i / rounds][4 * groups * (i % rounds) + k];
    }

    /* Offer what passed in the rounds of the mask, picked out one at a time, so that the code that
     * offers exists once. */
    __device__ __forceinline__ void offer_rounds(const sums &sum, uint32_t passed, int sample)
    {
        for (; passed != 0; passed &= passed - 1) {
            int round = __ffs(passed) - 1;
            float v[4 * groups];
            pick(sum, round, v);
            offer_round(v, round, sample);
        }
    }

    __device__ __forceinline__ void offer_round(const float (&v)[4 * groups], int round, int sample)
    {
        uint2 bytes = load_bytes(sample, round);
        int first = sample * n + 8 * groups * (round % rounds) + 2 * (lane & 3);
        uint32_t token = own + 64 * (round / rounds);
        uint32_t mask = 0;
#pragma unroll
        for (int k = 0; k < 4 * groups; k++) {
            int column = 8 * (k / 4) + (k & 1);
            bool pass =
                screened(v[k], v[k], screens()[first + column], bytes, 2 * (k / 4) + (k & 1)) >= 0;
            mask |= (uint32_t)(pass && (first + column) % n < columns) << k;
        }
        while (__any_sync(~0u, mask != 0)) {
            int at = mask ? __ffs(mask) - 1 : 0;
            float logit = v[0];
#pragma unroll
            for (int k = 1; k < 4 * groups; k++)
                logit = k == at ? v[k] : logit;
            int draw = first + 8 * (at / 4) + (at & 1);
            float z = (logit * scale) * shared.draws[draw].inverse_temperature;
            offers.put(mask != 0 && z != -INFINITY, z, draw, token + (at >> 1 & 1));
            mask &= mask - 1;
        }
    }
};

} // namespace

#endif

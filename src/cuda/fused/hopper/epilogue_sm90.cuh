/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from a team's accumulators (layout: wgmma.cuh). In each half of its tile a thread
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

#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/mass_sm90.cuh"
#include "cuda/fused/hopper/offers_sm90.cuh"
#include "cuda/fused/tile/thresholds_sm90.cuh"

/* Less the bits of the origin, in the upper three bytes; the lowest takes the noise. */
#define SM90_SCREEN_BITS 0xb4c00000u
/* Thresholds in units, where the origin leaves room for them. */
#define SM90_SCREEN_REACH 0x1p21f

/* In the first tile about one CTA in this many gives its floor of a row: all at once, on one
 * address, they would queue for 15 us. */
#define SM90_SEEDERS 8

namespace
{

template <int n, class call> class epilogue
{
    using team = sm90_team<n>;
    static constexpr int groups = sm90_groups<n>; /* of 8 columns, screened at once */
    static constexpr int rounds = n / 8 / groups; /* in a half */

    const call &p;
    const shared_sm90<n> &shared;
    int columns, samples;
    int lane, thread; /* in the team */
    uint32_t own;     /* place of this thread's first token in the tile */

  public:
    using sums = sm90_sums<n>;
    offer_list<n, call> offers;
    const team own_team;
    const float scale; /* of a prepared logit */

    /* For one tile; `index` is the thread's. */
    __device__ __forceinline__ epilogue(const call &params, const shared_sm90<n> &memory,
                                        sm90_list &list, int index)
        : p(params), shared(memory), columns((int)params.problem.batch), samples(params.samples()),
          lane(index % 32), thread(index % team::threads), own(sm90_place(thread)),
          offers(params, memory, list, index), own_team(index), scale(params.scale())
    {
    }

    /* ----------------------------------------------------------------------------- draw ---- */

    /* Draw from the prepared tile in `sum`; from the first one, `seeds`, once to find thresholds,
     * and then by them. The code that offers, which both need, exists once. */
    __device__ __forceinline__ void draw(const sums &sum, bool seeds)
    {
        if (seeds)
            start_seeds(sum);
#pragma unroll 1
        for (;; seeds = false) {
#pragma unroll 1
            for (int sample = 0; sample < samples; sample++)
                offer_rounds(sum, seeds ? seed_rounds() : passing_rounds(sum, sample), sample);
            if (!seeds)
                return;
            finish_seeds();
        }
    }

  private:
    __device__ __forceinline__ sm90_screen *screens() const
    {
        return shared.screens_of_team(p, own_team.index);
    }

    /* ----------------------------------------------------------------------- thresholds ---- */

    /* The first tile has no thresholds, and every token would pass. Each CTA finds those of one
     * round's columns, and has the others' from its neighbours: of each of its columns it takes the
     * largest screened value, scores the tokens that have it, and keeps the best score. The first
     * half of the tile is enough. A CTA seeds every seed_step()-th round, from seed_phase() on. */
    static __device__ __forceinline__ int seed_step()
    {
        return (int)gridDim.x >= rounds ? rounds : 1;
    }
    static __device__ __forceinline__ int seed_phase() { return blockIdx.x % seed_step(); }
    static __device__ __forceinline__ bool is_seed(int draw)
    {
        return draw % n / (8 * groups) % seed_step() == seed_phase();
    }
    static __device__ __forceinline__ uint32_t seed_rounds()
    {
        return seed_step() == 1 ? (1u << rounds) - 1 : 1u << seed_phase();
    }

    /* Let the tokens of largest screened values pass, alone. */
    __device__ __forceinline__ void start_seeds(const sums &sum) const
    {
#pragma unroll 1
        for (int round = seed_phase(); round < rounds; round += seed_step())
#pragma unroll 1
            for (int sample = 0; sample < samples; sample++)
                find_highest(sum, round, sample);
        own_team.sync();
        thresholds<n, call>(p, shared).template each<team::threads>(thread, [&](int i, int) {
            float highest = (float)shared.reaches[i].highest;
            highest = fminf(fmaxf(highest, -SM90_SCREEN_REACH), SM90_SCREEN_REACH);
            shared.reaches[i].threshold = -INFINITY;
            if (is_seed(i))
                screens()[i].offset = SM90_SCREEN_ORIGIN - highest;
        });
        own_team.sync();
    }

    /* Their scores are thresholds, here and in other CTAs. */
    __device__ __forceinline__ void finish_seeds()
    {
        thresholds<n, call> all(p, shared);
        offers.settle();
        own_team.sync();
        all.template each<team::threads>(thread, [&](int i, int) {
            all.take_best(i);
            if (is_seed(i) && blockIdx.x / seed_step() % (SM90_SEEDERS / rounds) == 0)
                all.give_floor(i, 0);
        });
        all.template each<team::threads>(thread, [&](int i, int) {
            all.take_floor(i, all.wait_for_floor(i));
            all.set_screen(i, &screens()[i]);
        });
        own_team.sync();
    }

    /* The rounds, of both halves, where a token passes the screen. */
    __device__ __forceinline__ uint32_t passing_rounds(const sums &sum, int sample) const
    {
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
        return passed;
    }

    /* The largest screened value of each column of a round, into `highest`. */
    __device__ __forceinline__ void find_highest(const sums &sum, int round, int sample) const
    {
        uint2 bytes = load_bytes(sample, round);
        float v[4 * groups];
        sm90_pick(sum, round, v);
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

    /* Offer what passed in the rounds of the mask, picked out one at a time, so that the code that
     * offers exists once. */
    __device__ __forceinline__ void offer_rounds(const sums &sum, uint32_t passed, int sample)
    {
        for (; passed != 0; passed &= passed - 1) {
            int round = __ffs(passed) - 1;
            float v[4 * groups];
            sm90_pick(sum, round, v);
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

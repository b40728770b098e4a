/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw from two warpgroups' accumulators (layout: cuda/wgmma.cuh). A thread holds two tokens of
 * each of its columns, which are batch rows.
 *
 * SCREEN In units of the noise's bytes, a token may win only if z - threshold + byte >= 0. The left
 *        side is one fused multiply-add of the logit: its result is kept near 1.5 * 2^23, where the
 *        bits of a float count in ones, so that byte and comparison are integer instructions. Two
 *        neighbouring tokens are screened at once, by the larger of each side.
 * OFFERS What passes waits in a list of its warp, for later tiles too, until 32 lanes can score an
 *        offer each: the exact noise is some 400 instructions, and the other warps would wait.
 * RACES  Thresholds change between tiles only, each by the one thread that owns it; the best token
 *        of a draw is replaced whole. A stale threshold costs time, never a token.
 */
#ifndef GUMBEL_CUDA_EPILOGUE_SM90_CUH
#define GUMBEL_CUDA_EPILOGUE_SM90_CUH

#include "cuda/floor.cuh"
#include "cuda/mass_sm90.cuh"
#include "cuda/noise_sm90.cuh"
#include "cuda/widen.cuh"

/* 1.5 * 2^23: adding it leaves an integer in the low bits of a float. */
#define SM90_SCREEN_ORIGIN 12582912.0f
/* Less the bits of the origin, in the upper three bytes; the lowest takes the noise. */
#define SM90_SCREEN_BITS 0xb4c00000u
/* What rounding may take from a screened value: of the origin's unit, and of the threshold. */
#define SM90_SCREEN_SLACK 2.0f
#define SM90_SCREEN_REACH 0x1p21f

/* In the first tile about one CTA in this many gives its floor of a row: all at once, on one
 * address, they would queue for 15 us. */
#define SM90_SEEDERS 8

/* Tiles of a CTA that an offer can tell apart. */
#define SM90_TURNS (1 << 17)

namespace
{

template <int n> class epilogue
{
    static constexpr int groups = n / 8 < 4 ? n / 8 : 4; /* of 8 columns, screened at once */
    static constexpr int rounds = n / 8 / groups;

    const cuda_params &p;
    const shared_sm90<n> &shared;
    int columns, samples;
    int lane, thread;
    uint32_t own;              /* place of this thread's first token in the tile */
    int first_tile, turn = -1; /* the tile is gridDim.x * turn past the first one */
    int waiting = 0;           /* offers in the warp's list, since the first tile */
    float threshold = -INFINITY, given = -INFINITY; /* of the draw that this thread owns */

  public:
    const float scale; /* prepared logit to z, before the temperature */

    __device__ epilogue(const cuda_params &params, const shared_sm90<n> &memory)
        : p(params), shared(memory), columns((int)params.problem.batch),
          samples(params.problem.sampling.num_samples), lane(threadIdx.x % 32), thread(threadIdx.x),
          scale(prepared() ? 1.0f : params.problem.scale), first_tile(blockIdx.x)
    {
        int g = lane / 4;
        own = 16 * (thread / 32) + 4 * (g >> 1) + 2 * (g & 1);
        if (owns())
            shared.screens[thread] = {slope(), SM90_SCREEN_ORIGIN};
    }

    /* Go on to this CTA's next tile. */
    __device__ __forceinline__ void start_tile()
    {
        if (++turn < SM90_TURNS)
            return;
        settle();
        first_tile += SM90_TURNS * (int)gridDim.x;
        turn = 0;
    }

    /* Score every offer that waits. */
    __device__ __forceinline__ void settle()
    {
        __syncwarp();
        score_offers(waiting);
        waiting = 0;
    }

    /* ----------------------------------------------------------------------- transforms ---- */

    /* Store the tile's logits. */
    __device__ __forceinline__ void store(float (&sum)[n / 2]) const
    {
        int64_t at = token_of(turn, own) - p.problem.first_token;
        int64_t left = p.problem.end_token - p.problem.first_token - at;
        add_bias(sum);
#pragma unroll
        for (int k = 0; k < n / 4; k++) {
            int column = 8 * (k / 2) + 2 * (lane & 3) + (k & 1), from = 4 * (k / 2) + (k & 1);
            float *to = &p.stored[column * p.stored_stride + at];
            if (column < columns && left > 1)
                *(float2 *)to = {sum[from], sum[from + 2]};
            else if (column < columns && left == 1)
                *to = sum[from];
        }
    }

    /* What is rare: bias, soft-cap, a negative scale, tokens that do not count. In place. */
    __device__ __forceinline__ void prepare(float (&sum)[n / 2]) const
    {
        const gumbel_problem &q = p.problem;
        add_bias(sum);
        if (prepared())
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[k] = q.soft_cap != 0.0f ? draw_capped(p, sum[k]) : sum[k] * q.scale;
        int64_t left = q.end_token - token_of(turn, own);
        if (left < CUDA_SM90_TILE)
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[k] = (k >> 1 & 1) < left ? sum[k] : -INFINITY;
    }

    /* ----------------------------------------------------------------------- thresholds ---- */

    /* The floor of this thread's draw, from the other CTAs. */
    __device__ __forceinline__ uint64_t load_floor() const
    {
        return owns() ? floor_load(floor_word()) : 0;
    }

    __device__ __forceinline__ void take_floor(uint64_t word)
    {
        if (!owns() || word >> FLOOR_BITS != p.tag || !(floor_unpack(word) > threshold))
            return;
        given = threshold = floor_unpack(word);
        set_screen();
    }

    __device__ __forceinline__ void give_floor()
    {
        if (owns() && threshold > given)
            floor_give(floor_word(), threshold, p.tag);
        given = threshold;
    }

    /* Raise the threshold to that of this CTA's best score. A row that has shown a NaN or +inf is
     * done. */
    __device__ __forceinline__ void take_best()
    {
        if (!owns())
            return;
        float safe = draw_threshold(shared.best[thread].score);
        threshold = safe > threshold ? safe : threshold;
        if (shared.flags[thread])
            shared.screens[thread] = {0.0f, -INFINITY};
        else
            set_screen();
    }

    /* The first tile has no thresholds, and every token would pass. Each CTA finds those of one
     * round's columns, and has the others' from its neighbours: of each of its columns it takes the
     * largest screened value, scores the tokens that have it, and keeps the best score. */
    __device__ __forceinline__ void seed(const float (&sum)[n / 2])
    {
        const int every = (int)gridDim.x >= rounds ? rounds : 1, phase = blockIdx.x % every;
        bool mine = owns() && thread % n / (8 * groups) % every == phase;
        for (int round = phase; round < rounds; round += every)
            for (int sample = 0; sample < samples; sample++)
                find_highest(sum, round, sample);
        drawing_sync();
        if (mine) {
            float highest = (float)shared.highest[thread];
            highest = fminf(fmaxf(highest, -SM90_SCREEN_REACH), SM90_SCREEN_REACH);
            shared.screens[thread].offset = SM90_SCREEN_ORIGIN - highest;
        }
        drawing_sync();
        for (int round = phase; round < rounds; round += every)
            for (int sample = 0; sample < samples; sample++)
                offer_rounds(sum, 1u << round, sample);
        settle();
        drawing_sync();
        if (mine) {
            take_best();
            if (blockIdx.x / every % (SM90_SEEDERS / rounds) == 0)
                give_floor();
        } else if (owns()) {
            take_floor(wait_for_floor());
            set_screen();
        }
        drawing_sync();
    }

    /* ----------------------------------------------------------------------------- draw ---- */

    /* Draw from the prepared tile in `sum`. */
    __device__ __forceinline__ void draw(const float (&sum)[n / 2])
    {
        for (int sample = 0; sample < samples; sample++) {
            const sm90_screen *screens = shared.screens + sample * n + 2 * (lane & 3);
            uint32_t passed = 0;
#pragma unroll
            for (int i = 0; i < rounds; i++) {
                uint2 bytes = load_bytes(sample, i);
                int highest = INT_MIN;
#pragma unroll
                for (int j = 0; j < groups; j++) {
                    float4 s = *(const float4 *)(screens + 8 * (groups * i + j));
                    const float *v = sum + 4 * (groups * i + j);
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
    __device__ __forceinline__ bool owns() const
    {
        return thread < n * samples && thread % n < columns;
    }

    /* The largest screened value of each column of a round, into `highest`. */
    __device__ __forceinline__ void find_highest(const float (&sum)[n / 2], int round,
                                                 int sample) const
    {
        uint2 bytes = load_bytes(sample, round);
        float v[4 * groups];
        pick(sum, round, v);
#pragma unroll
        for (int k = 0; k < 2 * groups; k++) {
            int draw = sample * n + 8 * (groups * round + k / 2) + 2 * (lane & 3) + (k & 1);
            int at = 4 * (k / 2) + (k & 1);
            int value = screened(v[at], v[at + 2], shared.screens[draw], bytes, k);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                value = max(value, __shfl_xor_sync(~0u, value, lanes));
            if (lane < 4)
                atomicMax(&shared.highest[draw], value);
        }
    }

    /* A floor that some CTA has given by now, or soon; none for a row whose first tiles are empty.
     */
    __device__ __forceinline__ uint64_t wait_for_floor() const
    {
        uint64_t word = load_floor();
        for (int i = 0; i < 8 && word >> FLOOR_BITS != p.tag; i++) {
            __nanosleep(100);
            word = load_floor();
        }
        return word;
    }

    __device__ __forceinline__ uint64_t *floor_word() const
    {
        return &p.shared_floors[CUDA_FLOOR_WORDS * (thread % n * samples + thread / n)];
    }

    /* The token at a place of the CTA's turn-th tile since first_tile. */
    __device__ __forceinline__ uint32_t token_of(uint32_t turns, uint32_t place) const
    {
        return (uint32_t)p.problem.first_token + CUDA_SM90_TILE * (first_tile + turns * gridDim.x) +
               place;
    }

    __device__ __forceinline__ bool prepared() const
    {
        return p.problem.soft_cap != 0.0f || p.problem.scale < 0.0f;
    }

    __device__ __forceinline__ void add_bias(float (&sum)[n / 2]) const
    {
        const gumbel_problem &q = p.problem;
#pragma unroll
        for (int f = 0; f < 2 && q.bias.data; f++) {
            int64_t i = (int64_t)token_of(turn, own) + f - q.first_token;
            float add = i < q.vocab ? widen_element(q.bias.data, q.bias.dtype, i) : 0.0f;
#pragma unroll
            for (int k = 0; k < n / 2; k++)
                sum[k] += (k >> 1 & 1) == f ? add : -0.0f;
        }
    }

    __device__ __forceinline__ float slope() const
    {
        return scale * shared.draws[thread].inverse_temperature * SM90_UNITS;
    }

    /* Thresholds that leave no room for rounding let everything pass. */
    __device__ __forceinline__ void set_screen() const
    {
        float t = threshold * SM90_UNITS;
        float slack = fmaf(fabsf(t), 0x1p-20f, SM90_SCREEN_ORIGIN + SM90_SCREEN_SLACK);
        shared.screens[thread].offset = fabsf(t) < 1e37f ? slack - t : INFINITY;
    }

    __device__ __forceinline__ uint2 load_bytes(int sample, int round) const
    {
        const unsigned char *at =
            shared.noise + sample * 64 * n + noise_place<n>(thread, groups * round);
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
    static __device__ __forceinline__ void pick(const float (&sum)[n / 2], int round,
                                                float (&v)[4 * groups])
    {
#pragma unroll
        for (int i = 0; i < rounds; i++)
            if (i == round)
#pragma unroll
                for (int k = 0; k < 4 * groups; k++)
                    v[k] = sum[4 * groups * i + k];
    }

    /* Offer what passed in the rounds of the mask, picked out one at a time, so that the code that
     * offers exists once. */
    __device__ __forceinline__ void offer_rounds(const float (&sum)[n / 2], uint32_t passed,
                                                 int sample)
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
        int first = sample * n + 8 * groups * round + 2 * (lane & 3);
        uint32_t mask = 0;
#pragma unroll
        for (int k = 0; k < 4 * groups; k++) {
            int column = 8 * (k / 4) + (k & 1);
            bool pass = screened(v[k], v[k], shared.screens[first + column], bytes,
                                 2 * (k / 4) + (k & 1)) >= 0;
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
            put(mask != 0 && z != -INFINITY, z, draw, own + (at >> 1 & 1));
            mask &= mask - 1;
        }
    }

    /* Put the offers of the lanes that have one into the warp's list; score 32 once they are. */
    __device__ __forceinline__ void put(bool have, float z, int draw, uint32_t token)
    {
        sm90_offer *list = shared.offers + thread / 32 * SM90_OFFERS;
        uint32_t lanes = __ballot_sync(~0u, have);
        if (have)
            list[waiting + __popc(lanes & ((1u << lane) - 1))] = {z, (uint32_t)draw | token << 8 |
                                                                         (uint32_t)turn << 15};
        waiting += __popc(lanes);
        __syncwarp();
        if (waiting < 32)
            return;
        score_offers(32);
        waiting -= 32;
        __syncwarp();
        sm90_offer moved = list[32 + lane];
        __syncwarp();
        list[lane] = moved;
        __syncwarp();
    }

    __device__ __forceinline__ void score_offers(int count) const
    {
        if (lane < count) {
            sm90_offer offer = shared.offers[thread / 32 * SM90_OFFERS + lane];
            int i = offer.place & 0xff;
            uint32_t token = token_of(offer.place >> 15, offer.place >> 8 & 0x7f);
            score_offer(p.problem, shared.draws[i], given_noise(i, token), offer.z, token,
                        &shared.best[i], &shared.flags[i]);
        }
        __syncwarp();
    }

    /* Where the caller gave the noise of draw i's token; NULL where it is to be made. */
    __device__ __forceinline__ const float *given_noise(int i, uint32_t token) const
    {
        const gumbel_problem &q = p.problem;
        int64_t draw = (int64_t)(i % n) * samples + i / n;
        return q.sampling.noise
                   ? q.sampling.noise + draw * q.sampling.noise_stride + token - q.first_token
                   : nullptr;
    }

    /* Score a token exactly and keep it if it is the draw's best so far. */
    static __device__ __noinline__ void score_offer(const gumbel_problem &q, const sm90_draw &draw,
                                                    const float *given, float z, uint32_t token,
                                                    sm90_best *best, uint32_t *flags)
    {
        if (!(z < INFINITY)) {
            atomicOr(flags, isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
            return;
        }
        float score = z;
        if (!draw.greedy && given)
            score += *given;
        else if (!draw.greedy)
            score += noise_of_token({draw.seed, draw.position, draw.sample, q.sampling.domain},
                                    q.sampling.math == GUMBEL_MATH_FAST, token);
        keep_best(best, {score, z, (int)token, 0});
    }

    static __device__ __forceinline__ void keep_best(sm90_best *best, sm90_best offer)
    {
        sm90_best seen, found = swap_best(best, offer, offer); /* only reads */
        while (offer.score > found.score || (offer.score == found.score && offer.id < found.id)) {
            seen = found;
            found = swap_best(best, seen, offer);
            if (found.id == seen.id && found.score == seen.score)
                return;
        }
    }

    /* Replace *best by `next` if it is `seen`; what it was. */
    static __device__ __forceinline__ sm90_best swap_best(sm90_best *best, sm90_best seen,
                                                          sm90_best next)
    {
        ulonglong2 was = ptx_swap_16(best, seen.bits(), next.bits());
        return {__uint_as_float((uint32_t)was.x), __uint_as_float((uint32_t)(was.x >> 32)),
                (int)(uint32_t)was.y, 0};
    }
};

} // namespace

#endif

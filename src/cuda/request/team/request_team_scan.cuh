/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over a row by its team that does all that a pass can do of a cut between two places: the
 * exact mass of all tokens and of those above, the best of those above in the row's draw, and a
 * list of those between, few, which the leader cuts. So each token is looked at once.
 *
 * COST   33 instructions a token with masses, 67 with a draw from many, 8 with neither, without a
 *        branch but where a token is listed or may win. Of the latter there are a few a CTA, as
 *        warps share what they are sure to reach: they are scored at the end, side by side. Where
 *        few tokens lie above, all are.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_SCAN_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_SCAN_CUH

#include "cuda/request/team/request_team_cut.cuh"

#include <type_traits>

namespace
{

/* ---------------------------------------------------------------------------------- masses ---- */

/* gumbel_token_mass(gumbel_exp(x)), by shifts: digits of 24 bits, and where they begin. */
__device__ __forceinline__ uint64_t mass_at(float x)
{
    uint32_t bits = gumbel_bits_of(gumbel_exp(fmaxf(x, -GUMBEL_MASS_REACH)));
    uint64_t digits = (uint64_t)(bits << 8 | 0x80000000u) << 32;
    return ptx_shift_right(digits, 129 - (bits >> 23));
}

/* A sum of masses: three words with carries, at half the instructions of two halves. */
struct mass_sum {
    uint32_t words[3];

    __device__ __forceinline__ void add(uint64_t mass)
    {
        ptx_add(words, (uint32_t)mass, (uint32_t)(mass >> 32));
    }
    __device__ __forceinline__ gumbel_wide wide() const
    {
        return ((gumbel_wide)words[2] << 64) + ((uint64_t)words[1] << 32) + words[0];
    }
    __device__ __forceinline__ void join_warp()
    {
        gumbel_wide sum = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            uint64_t low = __reduce_add_sync(~0u, words[i] & 0xffff);
            uint64_t high = __reduce_add_sync(~0u, words[i] >> 16);
            sum += (gumbel_wide)(low + (high << 16)) << 32 * i;
        }
#pragma unroll
        for (int i = 0; i < 3; i++)
            words[i] = (uint32_t)(sum >> 32 * i);
    }
};

/* What a scan that only lists found. */
struct team_listed {
    uint32_t listed; /* first, as in team_count */
    mass_sum all, between;

    static __device__ __forceinline__ team_listed none() { return {0, {{0, 0, 0}}, {{0, 0, 0}}}; }
    __device__ __forceinline__ void join_warp()
    {
        listed = __reduce_add_sync(~0u, listed);
        all.join_warp();
        between.join_warp();
    }
};

/* What a scan found. */
struct team_scan {
    uint32_t listed; /* first, as in team_count */
    mass_sum all, above, between;
    draw_winner best; /* of those above */

    static __device__ __forceinline__ team_scan none()
    {
        return {0, {{0, 0, 0}}, {{0, 0, 0}}, {{0, 0, 0}}, draw_winner_none()};
    }
    __device__ __forceinline__ void join_warp();
};

/* Out of line, as joining threads, warps and CTAs takes it three times. */
__device__ __noinline__ team_scan join_scans(team_scan own)
{
    own.listed = __reduce_add_sync(~0u, own.listed);
    own.all.join_warp();
    own.above.join_warp();
    own.between.join_warp();
    own.best = draw_winner_of_warp(own.best);
    return own;
}

__device__ __forceinline__ void team_scan::join_warp() { *this = join_scans(*this); }

/* Where tokens lie: y * factor * scale + offset. Those from `from` on and not above `above` are
 * listed, and those above it drawn from. */
struct scan_places {
    float factor, scale, offset, from, above;

    __device__ __forceinline__ float of(float v) const { return fmaf(v, scale, offset); }
    __device__ __forceinline__ float of_y(float y) const { return of(y * factor); }
};

/* ------------------------------------------------------------------------------------ draw ---- */

__device__ __forceinline__ uint32_t word_of(uint4 words, int i)
{
    return i & 2 ? (i & 1 ? words.w : words.z) : i & 1 ? words.y : words.x;
}

/* Keep a token of that z to be scored. */
__device__ __forceinline__ void offer_token(float z, int32_t id)
{
    uint32_t at = atomicAdd(&room().offered, 1);
    if (at < kOffers)
        room().bench.offers[at] = {z, id};
}

/* The best of the tokens that this CTA's threads offered, of this thread's. */
__device__ __forceinline__ draw_winner score_offers()
{
    draw_winner best = draw_winner_none();
    if (threadIdx.x < min(room().offered, (uint32_t)kOffers)) {
        cuda_candidate own = room().bench.offers[threadIdx.x];
        float score = own.y + noise_of_token(room().row.draw.stream, (uint32_t)own.id);
        draw_winner_offer(best, score, own.y, own.id);
    }
    return best;
}

/* Ask for what the row is sure to reach; screen_by() has the answer, which is some 50 cycles away.
 * By whole warps. */
__device__ __forceinline__ uint32_t ask_sure()
{
    return ptx_add_if(threadIdx.x % 32 == 0, &room().sure, 0);
}

__device__ __forceinline__ float screen_by(uint32_t asked)
{
    return draw_offset(ordered_float(__reduce_max_sync(~0u, asked)));
}

/* Raise it by tokens of a warp, one a lane or none, whose z is -inf then; the screen. */
__device__ __forceinline__ float raise_sure(float z, uint32_t word)
{
    uint32_t before = 0, sure = ordered_bits(draw_floor_of_warp(
                             z > -INFINITY ? draw_floor(false, z, word) : -INFINITY));
    if (threadIdx.x % 32 == 0)
        before = atomicMax(&room().sure, sure);
    return screen_by(max(before, sure));
}

/* Offer those of four neighbours that may win, one a lane at a time: each raises what is sure. z is
 * -inf for those that are not drawn from. By whole warps. */
__device__ __forceinline__ void offer_quad(const float (&z)[4], uint4 words, int32_t id,
                                           float offset)
{
    uint32_t left = 15;
#pragma unroll 1
    for (;;) {
        uint32_t may = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            may |= (uint32_t)(z[i] > -INFINITY && draw_screen(z[i], word_of(words, i), 0, offset))
                   << i;
        may &= left;
        if (!__any_sync(~0u, may))
            return;
        int i = may ? __ffs(may) - 1 : 0;
        float own = may ? (i & 2 ? (i & 1 ? z[3] : z[2]) : i & 1 ? z[1] : z[0]) : -INFINITY;
        uint32_t word = word_of(words, i);
        offset = raise_sure(own, word);
        if (may && draw_screen(own, word, 0, offset))
            offer_token(own, id + i);
        left &= ~(1u << i);
    }
}

/* ------------------------------------------------------------------------------------ scan ---- */

__device__ __forceinline__ float4 load_quad(const share_source &source, int place)
{
    return place < source.size ? *(const float4 *)(share() + place)
                               : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
}

/* Begin a scan. Where it draws from many tokens, one of each thread's first quad that lies above
 * tells what is sure, so that few others are looked at. */
template <bool dense>
__device__ __forceinline__ void begin_scan(const share_source &source, const draw_philox &philox,
                                           const scan_places &places, float inverse_temperature)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        room().count = room().offered = 0;
        room().sure = ordered_bits(-INFINITY);
    }
    __syncthreads();
    if (!dense)
        return;
    float4 raw = load_quad(source, 4 * threadIdx.x);
    float y[4] = {raw.x, raw.y, raw.z, raw.w}, top = -INFINITY;
    int chosen = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (places.of_y(y[i]) > places.above && y[i] > top) {
            top = y[i];
            chosen = i;
        }
    uint4 words = draw_words(philox, (uint32_t)(source.begin + 4 * threadIdx.x) >> 2);
    raise_sure(top * inverse_temperature, word_of(words, chosen));
    __syncthreads();
}

/* What a scan does beside listing tokens: nothing; keep all above, few, for the draw, without
 * masses or with them; or see of many above which may win. */
enum scan_kind { SCAN_LISTS, SCAN_KEEPS, SCAN_KEEPS_WEIGHS, SCAN_DRAWS };

/* A token that is listed or kept. */
template <scan_kind kind, class Found>
__device__ __forceinline__ void take_hit(const scan_places &places, float scale, float largest,
                                         float inverse_temperature, float y, int32_t id, Found &own)
{
    uint64_t mass = kind == SCAN_KEEPS ? 0 : mass_at(y * scale - largest);
    if constexpr (kind == SCAN_KEEPS || kind == SCAN_KEEPS_WEIGHS)
        if (places.of_y(y) > places.above) {
            own.above.add(mass);
            offer_token(y * inverse_temperature, id);
            return;
        }
    own.between.add(mass);
    uint32_t at = atomicAdd(&room().count, 1);
    if (at < kSomeOfShare)
        team_at(room().bench.list, 0)[team_rank() * kSomeOfShare + at] = {y, id};
}

/* Scan the row: each CTA's part of what the team found. Values are y * scale, and `largest` is that
 * of the row. */
template <scan_kind kind>
__device__ __noinline__ const team_slot *scan_row(share_source source, float scale,
                                                  float inverse_temperature, scan_places places,
                                                  float largest)
{
    using found = std::conditional_t<kind == SCAN_LISTS, team_listed, team_scan>;
    constexpr bool weighs = kind != SCAN_KEEPS, dense = kind == SCAN_DRAWS;
    constexpr int side = dense ? 1 : 2; /* quads side by side */
    const int lane = threadIdx.x % 32, begin = (int)source.begin;
    draw_philox philox;
    if (dense)
        philox = draw_philox_of(room().row.draw.stream);
    found own = found::none();
    begin_scan<dense>(source, philox, places, inverse_temperature);
#pragma unroll 1
    for (int at = 4 * threadIdx.x; at - 4 * lane < source.size; at += side * 4 * kThreads) {
        float y[4 * side];
        uint32_t hits = 0, asked = dense ? ask_sure() : 0;
        bool drawn = false;
#pragma unroll
        for (int i = 0; i < side; i++) {
            float4 raw = load_quad(source, at + i * 4 * kThreads);
            y[4 * i] = raw.x, y[4 * i + 1] = raw.y, y[4 * i + 2] = raw.z, y[4 * i + 3] = raw.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * side; i++) {
            float v = y[i] * scale, place = dense ? places.of(v) : places.of_y(y[i]);
            bool above = dense && place > places.above;
            hits |= (uint32_t)(place >= places.from && !above) << i;
            uint64_t mass = weighs ? mass_at(v - largest) : 0;
            if (weighs)
                own.all.add(mass);
            if constexpr (dense) {
                own.above.add(above ? mass : 0);
                y[i] = above ? y[i] * inverse_temperature : -INFINITY;
                drawn |= above;
            }
        }
        if (__any_sync(~0u, hits)) {
#pragma unroll 1
            for (; hits; hits &= hits - 1) {
                int i = __ffs(hits) - 1, place = at + i / 4 * 4 * kThreads + i % 4;
                take_hit<kind>(places, scale, largest, inverse_temperature, share()[place],
                               begin + place, own);
            }
            __syncwarp();
        }
        if constexpr (dense)
            if (__any_sync(~0u, drawn)) {
                int32_t id = begin + at;
                uint4 words = draw_words(philox, (uint32_t)id >> 2);
                float top = fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3]));
                uint32_t least = min(min(words.x, words.y), min(words.z, words.w));
                float offset = screen_by(asked);
                if (__any_sync(~0u, draw_screen_quad(top, least, offset)))
                    offer_quad(y, words, id, offset);
            }
    }
    __syncthreads();
    if constexpr (kind != SCAN_LISTS)
        own.best = score_offers();
    if (threadIdx.x == 0) /* what was lost shows as a list that does not fit */
        own.listed = room().offered > kOffers ? kSome + 1 : room().count;
    return team_tell(own);
}

} // namespace

#endif

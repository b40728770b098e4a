/* SPDX-License-Identifier: Apache-2.0
 *
 * A row whose top_k or top_p keeps too many tokens for a list: counts in bins tell between which
 * places the cut is, but for bad luck, and one scan settles the rest. Sums of integers then tell
 * whether the guess was right, so that luck costs time alone.
 *
 * COST   a pass that counts, of 9 instructions a token, or 16 for a top_p, which the conflicts of
 *        its atomics bound, at 14 cycles a warp's; a scan; two barriers of the team.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_GUESS_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_GUESS_CUH

#include "cuda/request/team/request_team_list.cuh"

namespace
{

/* Bins that values are spread over: some are left for what rounding does to places. */
constexpr int kSpread = kFine - 64;
/* Tokens above a cut that CTAs keep, but for bad luck. */
constexpr int kSparse = 2 * kOffers;

/* Added to a place below 2^23, rounds it to an integer, which its last bits then are. */
constexpr float kWhole = 0x1p23f;
constexpr uint32_t kWholeBits = 0x4b000000u;

/* What a row's only rule is, if one cuts it alone. */
struct guess_rule {
    uint32_t top_k; /* 0: top_p */
    float top_p;
    bool exact;
};

/* Whether a row asks for no more than a guess can give. */
__device__ inline bool can_guess(const cuda_request_params &p, const request_row &row)
{
    const gumbel_rules &r = row.rules;
    return asks_for_token(p) && !row.draw.greedy && r.min_p == 0.0f &&
           (r.top_k > 0) != (r.top_p < 1.0f);
}

/* Bins of values from `low` to the largest, and the mass of a bin's middle, the largest token's
 * being 1. */
struct fine_bins {
    scan_places places;
    float top, step, shift;

    __device__ __forceinline__ float mass(int bin) const
    {
        return ptx_exp2(fmaf((float)bin - top, step, shift));
    }
    /* How far from its bin's middle a value is, of whose place that is. */
    __device__ __forceinline__ float beside(float v, float place) const
    {
        return fmaf(v, places.scale, places.offset - place);
    }
};

/* Whether there can be any. */
__device__ __forceinline__ bool make_fine_bins(fine_bins &bins, float factor, float low,
                                               float largest)
{
    float width = largest - low, scale = (float)kSpread / width;
    bins.places = {factor, scale, kWhole - low * scale, 0.0f, 0.0f};
    float place = bins.places.of(largest);
    bins.top = place - kWhole;
    bins.step = LOG2E / scale;
    bins.shift = -bins.beside(largest, place) * bins.step;
    return width > 0x1p-100f && width < 0x1p100f && fabsf(low * scale) < 0x1p27f;
}

/* ---------------------------------------------------------------------------------- counts ---- */

/* The sum over 16 or 32 neighbouring lanes, for all of them. */
template <int lanes, class T> __device__ __forceinline__ T sum_of_lanes(T own)
{
#pragma unroll
    for (int half = lanes / 2; half > 0; half /= 2)
        own += __shfl_xor_sync(~0u, own, half);
    return own;
}

/* Sum what this CTA's bins hold by groups of 16, and these by 16 again. */
template <bool weighs> __device__ __forceinline__ void sum_groups(const fine_bins &bins)
{
    const uint4 *counts = (const uint4 *)room().bench.high;
    if (threadIdx.x >= kFine / 16)
        return;
    fine_tally own = {0, 0};
    float mass = 0, ratio = weighs ? ptx_exp2(bins.step) : 0;
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        uint4 c = counts[4 * threadIdx.x + i];
        own.count += c.x + c.y + c.z + c.w;
        if (weighs) {
            mass = fmaf(mass, ratio, (float)c.w);
            mass = fmaf(mass, ratio, (float)c.z);
            mass = fmaf(mass, ratio, (float)c.y);
            mass = fmaf(mass, ratio, (float)c.x);
        }
    }
    if (weighs)
        own.mass = mass * bins.mass(16 * threadIdx.x);
    room().bench.groups[threadIdx.x] = own;
    own.mass = sum_of_lanes<16>(own.mass);
    own.count = sum_of_lanes<16>(own.count);
    if (threadIdx.x % 16 == 0)
        room().bench.heads[threadIdx.x / 16] = own;
}

/* Count the row's tokens in bins, each CTA its own. A bin's mass is taken for that of its middle;
 * what its tokens weigh beside that is added up apart, since single ones at the top weigh much. */
template <bool weighs>
__device__ __noinline__ void count_finely(share_source source, fine_bins bins, float largest)
{
    constexpr int ahead = 5; /* two turns go through a share of 19,072 tokens */
    uint32_t *counts = (uint32_t *)room().bench.high;
    float beside = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFine; i += 4 * kThreads)
        *(uint4 *)(counts + i + 4 * threadIdx.x) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    /* Those below all bins are counted, too, in a word a lane: a branch would cost more. */
    const uint32_t below = kFine + threadIdx.x % 32;
    auto take = [&](float y) {
        float v = y * bins.places.factor, place = bins.places.of(v);
        bool inside = place >= kWhole;
        atomicAdd(&counts[inside ? __float_as_uint(place) - kWholeBits : below], 1);
        if (weighs)
            beside = fmaf(ptx_exp2((v - largest) * LOG2E), inside ? bins.beside(v, place) : 0.0f,
                          beside);
    };
#pragma unroll 1
    for (int at = 4 * threadIdx.x; at < source.size; at += ahead * 4 * kThreads) {
        float4 y[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++)
            y[i] = load_quad(source, at + i * 4 * kThreads);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            take(y[i].x);
            take(y[i].y);
            take(y[i].z);
            take(y[i].w);
        }
    }
    float *slots = (float *)room().slots;
    beside = sum_of_lanes<32>(beside);
    if (threadIdx.x % 32 == 0)
        slots[threadIdx.x / 32] = beside;
    __syncthreads();
    sum_groups<weighs>(bins);
    if (threadIdx.x >= kThreads - 32) {
        beside = sum_of_lanes<16>(slots[threadIdx.x % kWarps]);
        room().bench.beside = beside / bins.places.scale;
    }
    team_sync();
}

/* A warp's walk down the bins of all CTAs, by groups of 256, of 16 and one by one, to the bin where
 * the weight reaches what is needed; room().decision has it, and how many tokens lie above it. The
 * range is that bin, and neighbours where the walk ended near its end or on few tokens. */
__device__ __noinline__ void walk_finely(const fine_bins &bins, const guess_rule &rule)
{
    const int lane = threadIdx.x % 32, half = lane / 16 * (kRanks / 2);
    fine_tally start = {0, 0};
    float needed = 0;
    int bin = 0;
    for (int rank = 0; rank < kRanks; rank++)
        start.mass += rule.top_k ? 0.0f : team_at(&room().bench, rank)->beside;
#pragma unroll 1
    for (int level = 0; level < 3; level++) {
        int entry = 16 * bin + 15 - lane % 16;
        fine_tally own = {0, 0};
#pragma unroll
        for (int i = 0; i < kRanks / 2; i++) {
            const team_bench *of = team_at(&room().bench, half + i);
            if (level == 2) {
                own.count += ((const uint32_t *)of->high)[entry];
            } else {
                fine_tally other = (level ? of->groups : of->heads)[entry];
                own.mass += other.mass;
                own.count += other.count;
            }
        }
        own.mass += __shfl_xor_sync(~0u, own.mass, 16);
        own.count += __shfl_xor_sync(~0u, own.count, 16);
        if (level == 2)
            own.mass = (float)own.count * bins.mass(entry);
        fine_tally upto = own;
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            float mass = __shfl_up_sync(~0u, upto.mass, step, 16);
            uint32_t count = __shfl_up_sync(~0u, upto.count, step, 16);
            upto.mass += lane % 16 >= step ? mass : 0.0f;
            upto.count += lane % 16 >= step ? count : 0;
        }
        fine_tally before = {start.mass + (upto.mass - own.mass),
                             start.count + (upto.count - own.count)};
        if (level == 0)
            needed = rule.top_p * __shfl_sync(~0u, start.mass + upto.mass, 15);
        bool ends =
            rule.top_k ? before.count + own.count >= rule.top_k : before.mass + own.mass >= needed;
        uint32_t found = __ballot_sync(~0u, ends) & 0xffff;
        int owner = found ? __ffs(found) - 1 : 15;
        bin = 16 * bin + 15 - owner;
        start = {__shfl_sync(~0u, before.mass, owner), __shfl_sync(~0u, before.count, owner)};
        if (level == 2 && lane == owner) {
            float place = (needed - before.mass) / own.mass;
            int apart = rule.top_k ? 0 : own.count < 8 ? 2 : 0;
            bool ends_high = !rule.top_k && place < 0.1f, ends_low = !rule.top_k && place > 0.9f;
            room().range = {max(bin - apart - (int)ends_low, 0),
                            min(bin + apart + (int)ends_high, kFine - 1)};
            room().decision = {bin, {0, before.count}};
        }
    }
}

/* --------------------------------------------------------------------------------- the end ---- */

/* End a row whose scan has settled all but `count` listed tokens, by the leader's threads. `kept`
 * tokens lie above bin `middle`. */
__device__ __noinline__ void serve_scanned(const cuda_request_params &p, int64_t b,
                                           const gumbel_summary &seen, const team_scan &found,
                                           int count, const guess_rule &rule,
                                           const scan_places &places, float largest, uint32_t kept,
                                           float middle)
{
    const request_row &row = room().row;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool above = (int)threadIdx.x < count && places.of_y(room().bench.list[threadIdx.x].y) > middle;
    kept -= __syncthreads_count(above);
    put_in_order(values, count);
    int head = 0;
    if (threadIdx.x < 32) {
        const gumbel_wide mass = found.all.wide();
        head = rule.top_k ? (int)(rule.top_k - kept)
                          : nucleus_of_some(rule.top_p, count, largest, &mass, found.above.wide());
        head = rule.exact ? head : with_ties(head, count);
    }
    score_some(count, b, 0);
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    request_result r = {seen, NAN, (int32_t)kept + head, GUMBEL_ROW_OK};
    draw_winner best = best_of_some(values, head);
    draw_winner_offer(best, found.best.score, found.best.z, found.best.id);
    write_draw(p, r, b, b, best, -1);
}

/* Serve a row by a guess and a scan; whether that served it. By all threads of the team. */
__device__ __noinline__ bool serve_guessed(const cuda_request_params &p, share_source source,
                                           team_facts facts, int64_t b, const gumbel_summary &seen)
{
    const request_row &row = room().row;
    const gumbel_rules &r = row.rules;
    request_values values = {row.draw.inverse_temperature, r.before != 0};
    const float scale = values.scale();
    float largest = values.of(gumbel_of_key(facts.highest));
    guess_rule rule = {(uint32_t)r.top_k, r.top_p, r.exact != 0};
    bool reach = rule.top_k && facts.peaks >= rule.top_k;
    float low = values.of(gumbel_of_key(reach ? facts.lowest : facts.least));
    if (!rule.top_k)
        low = fmaxf(low, nucleus_floor(largest, rule.top_p, facts.alive));
    fine_bins bins;
    if (gumbel_summary_status(&seen) != GUMBEL_ROW_OK || rule.top_k > facts.alive ||
        !make_fine_bins(bins, scale, low, largest))
        return false;
    if (rule.top_k)
        count_finely<false>(source, bins, largest);
    else
        count_finely<true>(source, bins, largest);
    if (threadIdx.x < 32)
        walk_finely(bins, rule);
    __syncthreads();
    const uint32_t kept = (uint32_t)room().decision.above.low;
    const float middle = kWhole + room().decision.bin;
    bins.places.from = kWhole + room().range.first;
    bins.places.above = kWhole + room().range.last;
    const float by_z = values.inverse_temperature;
    const team_slot *slots =
        kept > kSparse ? scan_row<SCAN_DRAWS>(source, scale, by_z, bins.places, largest)
        : rule.top_k   ? scan_row<SCAN_KEEPS>(source, scale, by_z, bins.places, largest)
                       : scan_row<SCAN_KEEPS_WEIGHS>(source, scale, by_z, bins.places, largest);
    team_scan found = join_slots<team_scan>(slots, kRanks);
    int count = fit_list(slots);
    gumbel_wide needed = rule.top_k ? rule.top_k : gumbel_nucleus(rule.top_p, found.all.wide());
    gumbel_wide above = rule.top_k ? kept : found.above.wide();
    gumbel_wide between = rule.top_k ? found.listed : found.between.wide();
    if (count < 0 || above >= needed || above + between < needed)
        return false;
    if (team_leads()) {
        pack_list(slots);
        serve_scanned(p, b, seen, found, count, rule, bins.places, largest, kept, middle);
    }
    return true;
}

} // namespace

#endif

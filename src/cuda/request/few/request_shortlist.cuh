/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a row of which kThreads tokens at most matter, by one CTA: they are put in order, so
 * that what stays is a head of the list and every rule a sum over it.
 *
 * A row runs through this once, mostly with 50 to 100 tokens, and all that counts is how long its
 * steps wait for each other. So all threads order the tokens, several a token; one warp then cuts,
 * while others score; and the warp that cut ends the row alone.
 */
#ifndef GUMBEL_CUDA_REQUEST_SHORTLIST_CUH
#define GUMBEL_CUDA_REQUEST_SHORTLIST_CUH

#include "cuda/request/few/request_order.cuh"

namespace
{

/* ------------------------------------------------------------------------------------ cut ---- */

/* A sum of kShortlist masses at most, in digits that need no carry. */
struct shortlist_mass {
    static constexpr int kDigitBits = 21;
    uint32_t digits[3];

    __device__ __forceinline__ void add(uint64_t mass)
    {
        constexpr uint32_t all = (1u << kDigitBits) - 1;
        digits[0] += (uint32_t)mass & all;
        digits[1] += (uint32_t)(mass >> kDigitBits) & all;
        digits[2] += (uint32_t)(mass >> 2 * kDigitBits);
    }
    __device__ __forceinline__ gumbel_wide wide() const
    {
        uint64_t low = ((uint64_t)digits[1] << kDigitBits) + digits[0];
        return ((gumbel_wide)digits[2] << 2 * kDigitBits) + low;
    }
};
static_assert(kShortlist <= 1 << (32 - shortlist_mass::kDigitBits), "no digit overflows");

/* How many of the first `whole` tokens in order a nucleus needs, where all tokens that it is of
 * weigh `mass`; NULL where those are these. By a warp, each lane having neighbours, two at a time.
 */
__device__ __forceinline__ int nucleus_of_shortlist(float top_p, int whole, float largest,
                                                    const gumbel_wide *mass)
{
    const int lane = threadIdx.x % 32, pairs = (whole + 63) / 64, first = 2 * pairs * lane;
    shortlist_mass own = {{0, 0, 0}}, before;
#pragma unroll 1
    for (int at = first; at < first + 2 * pairs; at += 2) {
        uint4 two = *(const uint4 *)&shortlist().order[at];
        uint64_t low = gumbel_token_mass(gumbel_exp(gumbel_of_key(two.x) - largest));
        uint64_t high = gumbel_token_mass(gumbel_exp(gumbel_of_key(two.z) - largest));
        low = at < whole ? low : 0;
        high = at + 1 < whole ? high : 0;
        own.add(low);
        own.add(high);
        *(ulonglong2 *)&shortlist().masses[at] = {low, high};
    }
    shortlist_mass all, upto = own;
#pragma unroll
    for (int i = 0; i < 3; i++)
        all.digits[i] = __reduce_add_sync(~0u, own.digits[i]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int i = 0; i < 3; i++) {
            uint32_t below = __shfl_up_sync(~0u, upto.digits[i], step, 32);
            upto.digits[i] += lane >= step ? below : 0;
        }
#pragma unroll
    for (int i = 0; i < 3; i++)
        before.digits[i] = upto.digits[i] - own.digits[i];
    const gumbel_wide needed = gumbel_nucleus(top_p, mass ? *mass : all.wide());
    uint32_t nucleus = 0;
#pragma unroll 1
    for (int at = first; at < first + 2 * pairs; at += 2) {
        ulonglong2 two = *(const ulonglong2 *)&shortlist().masses[at];
        nucleus += at < whole && before.wide() < needed;
        before.add(two.x);
        nucleus += at + 1 < whole && before.wide() < needed;
        before.add(two.y);
    }
    return (int)__reduce_add_sync(~0u, nucleus);
}

/* How many of `count` tokens min_p keeps, by a warp. */
__device__ __forceinline__ int kept_by_min_p(int count, float largest, float log_min_p)
{
    uint32_t reach = 0, least = gumbel_key(gumbel_min_p_bound(largest, log_min_p));
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < count; at += 32)
        reach += shortlist().order[at].key >= least;
    __syncwarp();
    return (int)__reduce_add_sync(~0u, reach);
}

/* How many of the first of `count` tokens in order stay, by a warp. `mass` is that of all tokens of
 * the row where some of those that a nucleus is of are not in the list, or NULL. */
__device__ __forceinline__ int cut_shortlist(const gumbel_rules &r, int count,
                                             const gumbel_wide *mass)
{
    int head = count;
    if (r.top_k > 0 && r.top_k < count)
        head = r.exact ? (int)r.top_k : with_ties((int)r.top_k, count);
    const float largest = gumbel_of_key(shortlist().order[0].key);
    int kept = head;
    if (r.min_p > 0.0f)
        kept = min(head, kept_by_min_p(count, largest, shared().row.log_min_p));
    if (!(r.top_p < 1.0f))
        return kept;
    const int weighed = r.joint ? count : r.last ? head : kept;
    int nucleus = nucleus_of_shortlist(r.top_p, weighed, largest, mass);
    return min(kept, r.exact ? nucleus : with_ties(nucleus, count));
}

/* ----------------------------------------------------------------------------------- mass ---- */

/* A token in order, and the blocks of all of them, in the memory of keys. */
__device__ __forceinline__ cuda_candidate token_in_order(int at)
{
    return shared().bench.list[shortlist().order[at].token];
}
__device__ __forceinline__ uint32_t *blocks_in_order() { return (uint32_t *)shortlist().keys; }

/* Add those of the first `head` tokens that are of block `shown`, by a warp. */
__device__ __forceinline__ void add_block_in_order(gumbel_summary &mass, request_values values,
                                                   uint32_t shown, int head)
{
    const int lane = threadIdx.x % 32;
    float z[2] = {-INFINITY, -INFINITY};
    for (int base = 0; base < head; base += 32) {
        int at = base + lane;
        uint32_t found = __ballot_sync(~0u, at < head && blocks_in_order()[at] == shown);
        for (; found; found &= found - 1) {
            cuda_candidate other = token_in_order(base + __ffs(found) - 1);
            if (other.id % 32 == lane)
                z[other.id / 32 % 2] = values.z(other.y);
        }
    }
    add_block(mass, z[0], z[1]);
}

/* The mass of the first `head` tokens in order. Tokens of one block are added by the warp of the
 * first of them. For all threads. */
__device__ __noinline__ gumbel_summary sum_shortlist(request_values values, int head)
{
    const shortlist_lanes lanes(head);
    const int place = lanes.token();
    uint32_t *blocks = blocks_in_order();
    blocks[threadIdx.x] = (int)threadIdx.x < head
                              ? (uint32_t)token_in_order((int)threadIdx.x).id / GUMBEL_BLOCK
                              : ~0u;
    __syncthreads();
    const uint32_t block = blocks[place];
    int first = kShortlist, beside = 0;
#pragma unroll 1
    for (int base = 0; base < head; base += 4 << lanes.log) {
        int at = base + 4 * lanes.part();
        uint4 four = *(const uint4 *)&blocks[at];
        uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            beside += others[i] == block;
            first = others[i] == block ? min(first, at + i) : first;
        }
    }
    first = lanes.over(first, [](int a, int b) { return min(a, b); });
    beside = lanes.over(beside, [](int a, int b) { return a + b; });
    const bool adds = lanes.part() == 0 && place < head && first == place;
    gumbel_summary mass;
    gumbel_summary_empty(&mass);
    if (adds && beside == 1) {
        mass.max_z = values.z(token_in_order(place).y);
        gumbel_mass_add_block(&mass, mass.max_z, 1.0f);
    }
    for (uint32_t left = __ballot_sync(~0u, adds && beside > 1); left; left &= left - 1)
        add_block_in_order(mass, values, __shfl_sync(~0u, block, __ffs(left) - 1), head);
    return cta_over(team_mass{mass}).of;
}

/* Find the mass that is asked for, and what it is the log-normaliser of; for all threads. */
__device__ __noinline__ void weigh_shortlist(request_values values, const gumbel_summary &seen,
                                             const gumbel_summary &raw, request_result &r)
{
    const cuda_request_params &p = shared().call;
    r.mass = seen;
    if (r.status != GUMBEL_ROW_OK || (p.partials && !p.problem.with_mass))
        return;
    bool of_raw = p.output.logprobs_of == GUMBEL_RAW && !p.partials;
    r.mass = of_raw ? raw : sum_shortlist(values, r.kept);
    r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
}

/* ----------------------------------------------------------------------------------- draw ---- */

/* Score token `i` of the list in draw `at` of the call, the row's `sample`-th. */
__device__ __noinline__ void score_token(int i, int64_t at, int sample)
{
    const gumbel_problem &q = shared().call.problem;
    const gumbel_row &draw = shared().row.draw;
    const float *noise = q.sampling.noise;
    const cuda_candidate own = shared().bench.list[i];
    float z = own.y * draw.inverse_temperature;
    if (!draw.greedy) {
        gumbel_stream stream = draw.stream;
        stream.sample += (uint32_t)sample;
        z += noise ? noise[at * q.sampling.noise_stride - q.first_token + own.id]
                   : draw_token_noise_noinline(stream, (uint32_t)own.id);
    }
    shortlist().scores[i] = z;
}

/* Score all tokens, a thread each: the last threads first, as the first warp cuts meanwhile. */
__device__ __forceinline__ void score_shortlist(int count, int64_t at, int sample)
{
    const int i = kThreads - 1 - (int)threadIdx.x;
    if (i < count)
        score_token(i, at, sample);
}

/* The best of the first `head` tokens in order, by a warp. Lanes that have none offer the last one,
 * so that nothing waits for a branch. */
__device__ __forceinline__ draw_winner best_of_shortlist(request_values values, int head)
{
    draw_winner best = draw_winner_none();
#pragma unroll 1
    for (int base = 0; base < head; base += 64)
#pragma unroll
        for (int i = 0; i < 64; i += 32) {
            int at = min(base + i + (int)threadIdx.x % 32, head - 1);
            int token = shortlist().order[at].token;
            cuda_candidate own = shared().bench.list[token];
            draw_winner_offer(best, shortlist().scores[token], values.z(own.y), own.id);
        }
    return draw_winner_of_warp(best);
}

/* One more than the number of tokens with a larger z, by a warp. */
__device__ __forceinline__ int rank_in_shortlist(request_values values, int count, float z)
{
    uint32_t larger = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < count; i += 32)
        larger += values.z(shared().bench.list[i].y) > z;
    return 1 + (int)__reduce_add_sync(~0u, larger);
}

/* --------------------------------------------------------------------------------- the row ---- */

/* Write the most likely of `count` tokens in order, of which the first r.kept stay; for all
 * threads. */
__device__ __noinline__ void write_top_of_shortlist(request_values values, const request_result &r,
                                                    int64_t b, int count)
{
    const cuda_request_params &p = shared().call;
    int place = threadIdx.x;
    if (place < count) {
        cuda_candidate own = shared().bench.list[shortlist().order[place].token];
        listed shown = {values.z(own.y), own.id, place < r.kept};
        /* Values that differ can have equal z, of which the lower id comes first. */
        if (values.before) {
            place = 0;
            for (int i = 0; i < count; i++) {
                cuda_candidate other = shared().bench.list[i];
                float z = values.z(other.y);
                place += z > shown.z || (z == shown.z && other.id < shown.id);
            }
        }
        if (place < GUMBEL_TOP_MOST)
            shared().top[place] = shown;
    }
    __syncthreads();
    write_top(p, shared().top, r, b, min(count, p.output.num_top));
}

/* Whether the rules of a row go by the order of its tokens, or only by each one's own value. */
__device__ __forceinline__ bool goes_by_order(const gumbel_rules &rules)
{
    return rules.top_k > 0 || rules.top_p < 1.0f;
}

/* Draw a row's samples from those of `count` tokens of the list that min_p keeps; for all threads,
 * a token each. */
__device__ __noinline__ void draw_unordered(request_values values, int64_t b, int count,
                                            request_result &r)
{
    const cuda_request_params &p = shared().call;
    const int samples = p.problem.sampling.num_samples, i = (int)threadIdx.x;
    const cuda_candidate own = shared().bench.list[i];
    const uint32_t key = i < count ? gumbel_key(own.y * values.scale()) : 0;
    const float largest = gumbel_of_key(cta_over(team_key{key}).of);
    const uint32_t least = gumbel_key(gumbel_min_p_bound(largest, shared().row.log_min_p));
    const bool stays = i < count && key >= least;
    r.kept = __syncthreads_count(stays);
#pragma unroll 1
    for (int sample = 0; sample < samples; sample++) {
        const int64_t at = b * samples + sample;
        draw_winner best = draw_winner_none();
        if (stays) {
            score_token(i, at, sample);
            draw_winner_offer(best, shortlist().scores[i], values.z(own.y), own.id);
        }
        best = cta_over(team_winner{best}).of;
        if (threadIdx.x < 32)
            write_draw(p, r, b, at, best,
                       p.output.ranks ? rank_in_shortlist(values, count, best.z) : 1);
    }
}

/* Draw all samples of a row of which the first r.kept of `count` tokens in order stay, and the
 * scores of the first sample are there; for all threads. */
__device__ __forceinline__ void draw_in_order(request_values values, int64_t b, int count,
                                              const request_result &r, int samples, bool ranks)
{
    const cuda_request_params &p = shared().call;
    const int head = r.kept;
    const bool cuts = threadIdx.x < 32;
#pragma unroll 1
    for (int sample = 0;;) {
        const int64_t at = b * samples + sample;
        if (cuts) {
            draw_winner best = best_of_shortlist(values, head);
            write_draw(p, r, b, at, best, ranks ? rank_in_shortlist(values, count, best.z) : 1);
        }
        if (++sample == samples)
            break;
        __syncthreads();
        score_shortlist(count, at + 1, sample);
        __syncthreads();
    }
}

/* Do all that is asked of a row, by the leader's threads, which have `count` tokens in the list:
 * all that can matter. `seen` is what is known of the row, `raw` the mass of its logits where that
 * is asked for, `mass` as in cut_shortlist(). */
__device__ __forceinline__ void serve_shortlist(int64_t b, int count, const gumbel_summary &seen,
                                                const gumbel_summary &raw, const gumbel_wide *mass)
{
    const cuda_request_params &p = shared().call;
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const request_row &row = shared().row;
    const int samples = q.sampling.num_samples;
    const bool cuts = threadIdx.x < 32, ranks = out.ranks;
    const bool weighs = (uintptr_t)p.partials | (uintptr_t)out.lse | (uintptr_t)out.logprobs |
                        (uintptr_t)out.top_logprobs;
    const gumbel_rules rules = row.rules;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    request_result r;
    r.status = gumbel_summary_status(&seen);
    r.lse = NAN;
    if (r.status != GUMBEL_ROW_OK)
        count = 0;
    if (!goes_by_order(rules) && !weighs && !(q.request & GUMBEL_REQUEST_TOP)) {
        draw_unordered(values, b, count, r);
        return;
    }
    put_in_order(values, count);
    if (cuts) {
        int kept = count > 0 ? cut_shortlist(rules, count, mass) : 0;
        if (threadIdx.x == 0)
            shortlist().kept = kept;
    }
    score_shortlist(count, b * samples, 0);
    __syncthreads();
    r.kept = shortlist().kept;
    if (weighs)
        weigh_shortlist(values, seen, raw, r);
    draw_in_order(values, b, count, r, samples, ranks);
    if (q.request & GUMBEL_REQUEST_TOP)
        write_top_of_shortlist(values, r, b, count);
}

} // namespace

#endif

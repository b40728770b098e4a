/* SPDX-License-Identifier: Apache-2.0
 *
 * Finishes a row with at most kThreads tokens that matter, by one CTA. The tokens are sorted, so
 * the kept set is a prefix of the list, and each rule is a sum over it.
 *
 * A row runs through this code once, usually with 50 to 100 tokens, and the latency of the chain of
 * steps decides. Therefore all threads sort, several per token; then one warp truncates while the
 * others score; and that warp finishes the row alone.
 */
#ifndef GUMBEL_CUDA_SHORTLIST_CUH
#define GUMBEL_CUDA_SHORTLIST_CUH

#include "cuda/truncated/few/shortlist_entropy.cuh"
#include "cuda/truncated/few/shortlist_sort.cuh"

namespace
{

/* ---------------------------------------------------------------------------- truncation ---- */

/* A sum of at most kShortlist masses, in digits that need no carry. */
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
    __device__ __forceinline__ gumbel_wide value() const
    {
        uint64_t low = ((uint64_t)digits[1] << kDigitBits) + digits[0];
        return ((gumbel_wide)digits[2] << 2 * kDigitBits) + low;
    }
};
static_assert(kShortlist <= 1 << (32 - shortlist_mass::kDigitBits), "no digit overflows");

/* Counts the tokens of the nucleus among the first `whole` sorted tokens. `mass` is the mass that
 * top_p refers to; NULL: the mass of those tokens. By a warp; each lane has neighbouring pairs. */
__device__ __forceinline__ int count_nucleus(float top_p, int whole, float largest,
                                             const gumbel_wide *mass)
{
    const int lane = threadIdx.x % 32, pairs = (whole + 63) / 64, first = 2 * pairs * lane;
    shortlist_mass own = {{0, 0, 0}}, before;
#pragma unroll 1
    for (int at = first; at < first + 2 * pairs; at += 2) {
        uint4 two = *(const uint4 *)&shortlist_memory().order[at];
        uint64_t low = gumbel_token_mass(gumbel_exp(gumbel_value_of_key(two.x) - largest));
        uint64_t high = gumbel_token_mass(gumbel_exp(gumbel_value_of_key(two.z) - largest));
        low = at < whole ? low : 0;
        high = at + 1 < whole ? high : 0;
        own.add(low);
        own.add(high);
        *(ulonglong2 *)&shortlist_memory().masses[at] = {low, high};
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
    const gumbel_wide needed = gumbel_nucleus_mass(top_p, mass ? *mass : all.value());
    uint32_t nucleus = 0;
#pragma unroll 1
    for (int at = first; at < first + 2 * pairs; at += 2) {
        ulonglong2 two = *(const ulonglong2 *)&shortlist_memory().masses[at];
        nucleus += at < whole && before.value() < needed;
        before.add(two.x);
        nucleus += at + 1 < whole && before.value() < needed;
        before.add(two.y);
    }
    return (int)__reduce_add_sync(~0u, nucleus);
}

/* Counts the tokens of `count` that min_p keeps, by a warp. */
__device__ __forceinline__ int count_above_min_p(int count, float largest, float log_min_p)
{
    uint32_t reach = 0, min_key = gumbel_key_of_value(gumbel_min_p_bound(largest, log_min_p));
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < count; at += 32)
        reach += shortlist_memory().order[at].key >= min_key;
    __syncwarp();
    return (int)__reduce_add_sync(~0u, reach);
}

/* Counts the sorted tokens that the rules keep, by a warp. `mass` is the mass of all tokens of the
 * row, if the nucleus refers to tokens outside the list; otherwise NULL. */
__device__ __forceinline__ int truncate_shortlist(const gumbel_rules &r, int count,
                                                  const gumbel_wide *mass)
{
    int leading = count;
    if (r.top_k > 0 && r.top_k < count)
        leading = r.exact ? (int)r.top_k : extend_by_ties((int)r.top_k, count);
    const float largest = gumbel_value_of_key(shortlist_memory().order[0].key);
    int kept = leading;
    if (r.min_p > 0.0f)
        kept = min(leading, count_above_min_p(count, largest, shared_state().row.log_min_p));
    if (!(r.top_p < 1.0f))
        return kept;
    const int counted = r.joint ? count : r.last ? leading : kept;
    int nucleus = count_nucleus(r.top_p, counted, largest, mass);
    return min(kept, r.exact ? nucleus : extend_by_ties(nucleus, count));
}

/* ----------------------------------------------------------------------------------- mass ---- */

/* A token by its sorted position, and the blocks of all tokens, in the memory of keys. */
__device__ __forceinline__ cuda_candidate token_in_order(int at)
{
    return shared_state().scratch.list[shortlist_memory().order[at].token];
}
__device__ __forceinline__ uint32_t *blocks_in_order()
{
    return (uint32_t *)shortlist_memory().keys;
}

/* Adds the tokens of block `shown` among the first `leading` tokens, by a warp. */
__device__ __forceinline__ void add_block_in_order(gumbel_summary &mass, logit_values values,
                                                   uint32_t shown, int leading)
{
    const int lane = threadIdx.x % 32;
    float z[2] = {-INFINITY, -INFINITY};
    for (int base = 0; base < leading; base += 32) {
        int at = base + lane;
        uint32_t found = __ballot_sync(~0u, at < leading && blocks_in_order()[at] == shown);
        for (; found; found &= found - 1) {
            cuda_candidate other = token_in_order(base + __ffs(found) - 1);
            if (other.id % 32 == lane)
                z[other.id / 32 % 2] = values.to_z(other.y);
        }
    }
    add_block(mass, z[0], z[1]);
}

/* Sums the mass of the first `leading` tokens. The warp of a block's first token adds the block.
 * For all threads. */
__device__ __noinline__ gumbel_summary sum_shortlist(logit_values values, int leading)
{
    const shortlist_lanes lanes(leading);
    const int place = lanes.token_index();
    uint32_t *blocks = blocks_in_order();
    blocks[threadIdx.x] = (int)threadIdx.x < leading
                              ? (uint32_t)token_in_order((int)threadIdx.x).id / GUMBEL_BLOCK
                              : ~0u;
    __syncthreads();
    const uint32_t block = blocks[place];
    int first = kShortlist, beside = 0;
#pragma unroll 1
    for (int base = 0; base < leading; base += 4 << lanes.log) {
        int at = base + 4 * lanes.lane_index();
        uint4 four = *(const uint4 *)&blocks[at];
        uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 3; i >= 0; i--) {
            beside += others[i] == block;
            first = others[i] == block ? min(first, at + i) : first;
        }
    }
    first = lanes.reduce_lanes(first, [](int a, int b) { return min(a, b); });
    beside = lanes.reduce_lanes(beside, [](int a, int b) { return a + b; });
    const bool adds = lanes.lane_index() == 0 && place < leading && first == place;
    gumbel_summary mass;
    gumbel_summary_empty(&mass);
    if (adds && beside == 1) {
        mass.max_z = values.to_z(token_in_order(place).y);
        gumbel_mass_add_block(&mass, mass.max_z, 1.0f);
    }
    for (uint32_t pending = __ballot_sync(~0u, adds && beside > 1); pending; pending &= pending - 1)
        add_block_in_order(mass, values, __shfl_sync(~0u, block, __ffs(pending) - 1), leading);
    return join_cta(joined_mass{mass}).value;
}

/* Sets the requested mass and log-normaliser; for all threads. */
__device__ __noinline__ void set_result_mass(logit_values values, const gumbel_summary &seen,
                                             const gumbel_summary &raw, row_result &r)
{
    const cuda_truncated_params &p = shared_state().call;
    r.mass = seen;
    if (r.status != GUMBEL_ROW_OK || (p.partials && !p.problem.with_mass))
        return;
    bool of_raw = p.output.logprobs_of == GUMBEL_RAW && !p.partials;
    r.mass = of_raw ? raw : sum_shortlist(values, r.kept);
    r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
}

/* ----------------------------------------------------------------------------------- draw ---- */

/* Scores token `i` of the list in draw `at` of the call, sample `sample` of the row. */
__device__ __noinline__ void score_token(int i, int64_t at, int sample)
{
    const gumbel_problem &q = shared_state().call.problem;
    const gumbel_row &draw = shared_state().row.draw;
    const float *noise = q.sampling.noise;
    const cuda_candidate own = shared_state().scratch.list[i];
    float z = own.y * draw.inverse_temperature;
    if (!draw.greedy) {
        gumbel_stream stream = draw.stream;
        stream.sample += (uint32_t)sample;
        z += noise ? noise[at * q.sampling.noise_stride - q.first_token + own.id]
                   : draw_token_noise_noinline(stream, (uint32_t)own.id);
    }
    shortlist_memory().scores[i] = z;
}

/* Scores all tokens, one per thread, from the last thread on, since the first warp truncates
 * meanwhile. */
__device__ __forceinline__ void score_shortlist(int count, int64_t at, int sample)
{
    const int i = kThreads - 1 - (int)threadIdx.x;
    if (i < count)
        score_token(i, at, sample);
}

/* The best of the first `leading` tokens, by a warp. Surplus lanes offer the last token, which
 * avoids a branch. */
__device__ __forceinline__ draw_winner best_of_shortlist(logit_values values, int leading)
{
    draw_winner best = draw_winner_none();
#pragma unroll 1
    for (int base = 0; base < leading; base += 64)
#pragma unroll
        for (int i = 0; i < 64; i += 32) {
            int at = min(base + i + (int)threadIdx.x % 32, leading - 1);
            int token = shortlist_memory().order[at].token;
            cuda_candidate own = shared_state().scratch.list[token];
            draw_winner_offer(best, shortlist_memory().scores[token], values.to_z(own.y), own.id);
        }
    return draw_winner_of_warp(best);
}

/* The rank of z: one plus the number of tokens with a larger z; by a warp. */
__device__ __forceinline__ int rank_in_shortlist(logit_values values, int count, float z)
{
    uint32_t larger = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < count; i += 32)
        larger += values.to_z(shared_state().scratch.list[i].y) > z;
    return 1 + (int)__reduce_add_sync(~0u, larger);
}

/* --------------------------------------------------------------------------------- the row ---- */

/* Writes the most likely of `count` sorted tokens, the first r.kept of which are kept; for all
 * threads. */
__device__ __noinline__ void write_top_of_shortlist(logit_values values, const row_result &r,
                                                    int64_t b, int count)
{
    const cuda_truncated_params &p = shared_state().call;
    int place = threadIdx.x;
    if (place < count) {
        cuda_candidate own = shared_state().scratch.list[shortlist_memory().order[place].token];
        top_token shown = {values.to_z(own.y), own.id, place < r.kept};
        /* Different values may have equal z; then the lower id comes first. */
        if (values.before) {
            place = 0;
            for (int i = 0; i < count; i++) {
                cuda_candidate other = shared_state().scratch.list[i];
                float z = values.to_z(other.y);
                place += z > shown.z || (z == shown.z && other.id < shown.id);
            }
        }
        if (place < GUMBEL_TOP_MAX)
            shared_state().top[place] = shown;
    }
    __syncthreads();
    write_top(p, shared_state().top, r, b, min(count, p.output.num_top));
}

/* Writes the first r.kept of the sorted tokens by ascending id, if they fit; by all warps but the
 * first, which draws meanwhile. */
__device__ __noinline__ void write_kept_of_shortlist(logit_values values, const row_result &r,
                                                     int64_t b)
{
    const cuda_truncated_params &p = shared_state().call;
    if (r.kept > p.output.kept_capacity)
        return;
#pragma unroll 1
    for (int place = (int)threadIdx.x - 32; place < r.kept; place += kThreads - 32) {
        const cuda_candidate own = token_in_order(place);
        int smaller = 0;
#pragma unroll 4
        for (int i = 0; i < r.kept; i++)
            smaller += token_in_order(i).id < own.id;
        write_kept_token(p, r, b, smaller, own.id, values.to_z(own.y));
    }
}

/* Whether the rules depend on the order of tokens, not only on each token's own value. */
__device__ __forceinline__ bool needs_order(const gumbel_rules &rules)
{
    return rules.top_k > 0 || rules.top_p < 1.0f;
}

/* Draws the samples of a row from the tokens of the list that min_p keeps, one per thread; for all
 * threads. */
__device__ __noinline__ void draw_unordered(logit_values values, int64_t b, int count,
                                            row_result &r)
{
    const cuda_truncated_params &p = shared_state().call;
    const int samples = p.problem.sampling.num_samples, i = (int)threadIdx.x;
    const cuda_candidate own = shared_state().scratch.list[i];
    const uint32_t key = i < count ? gumbel_key_of_value(own.y * values.scale()) : 0;
    const float largest = gumbel_value_of_key(join_cta(joined_key{key}).value);
    const uint32_t min_key =
        gumbel_key_of_value(gumbel_min_p_bound(largest, shared_state().row.log_min_p));
    const bool stays = i < count && key >= min_key;
    r.kept = __syncthreads_count(stays);
#pragma unroll 1
    for (int sample = 0; sample < samples; sample++) {
        const int64_t at = b * samples + sample;
        draw_winner best = draw_winner_none();
        if (stays) {
            score_token(i, at, sample);
            draw_winner_offer(best, shortlist_memory().scores[i], values.to_z(own.y), own.id);
        }
        best = join_cta(joined_winner{best}).value;
        if (threadIdx.x < 32)
            write_draw(p, r, b, at, best,
                       p.output.ranks ? rank_in_shortlist(values, count, best.z) : 1);
    }
}

/* Draws all samples of a row from the first r.kept of `count` sorted tokens; the scores of the
 * first sample are ready. For all threads. */
__device__ __forceinline__ void draw_in_order(logit_values values, int64_t b, int count,
                                              const row_result &r, int samples, bool ranks)
{
    const cuda_truncated_params &p = shared_state().call;
    const int leading = r.kept;
    const bool truncates = threadIdx.x < 32;
#pragma unroll 1
    for (int sample = 0;;) {
        const int64_t at = b * samples + sample;
        if (truncates) {
            draw_winner best = best_of_shortlist(values, leading);
            write_draw(p, r, b, at, best, ranks ? rank_in_shortlist(values, count, best.z) : 1);
        }
        if (++sample == samples)
            break;
        __syncthreads();
        score_shortlist(count, at + 1, sample);
        __syncthreads();
    }
}

/* Serves a row from the `count` tokens of the list, which are all that matter; by the threads of
 * the leader. `seen` are the facts of the row, `raw` is the mass of its raw logits if requested,
 * `mass` is that of truncate_shortlist(). */
__device__ __forceinline__ void serve_shortlist(int64_t b, int count, const gumbel_summary &seen,
                                                const gumbel_summary &raw, const gumbel_wide *mass)
{
    const cuda_truncated_params &p = shared_state().call;
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const truncated_row &row = shared_state().row;
    const int samples = q.sampling.num_samples;
    const bool truncates = threadIdx.x < 32, ranks = out.ranks;
    const bool needs_mass = (uintptr_t)p.partials | (uintptr_t)out.lse | (uintptr_t)out.logprobs |
                            (uintptr_t)out.top_logprobs | (uintptr_t)out.kept_logprobs;
    const gumbel_rules rules = row.rules;
    logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    row_result r;
    r.status = gumbel_summary_status(&seen);
    r.lse = NAN;
    if (r.status != GUMBEL_ROW_OK)
        count = 0;
    if (!needs_order(rules) && !needs_mass && !needs_entropy(p) &&
        !(q.features & (GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_KEPT_IDS))) {
        draw_unordered(values, b, count, r);
        return;
    }
    sort_shortlist(values, count);
    if (truncates) {
        int kept = count > 0 ? truncate_shortlist(rules, count, mass) : 0;
        if (threadIdx.x == 0)
            shortlist_memory().kept = kept;
    }
    score_shortlist(count, b * samples, 0);
    __syncthreads();
    r.kept = shortlist_memory().kept;
    if (needs_mass)
        set_result_mass(values, seen, raw, r);
    if (!truncates && q.features & GUMBEL_FEATURE_KEPT_IDS)
        write_kept_of_shortlist(values, r, b);
    if (needs_entropy(p) && threadIdx.x / 32 == kEntropyWarp)
        write_entropy_of_shortlist(values, b, r.kept);
    draw_in_order(values, b, count, r, samples, ranks);
    if (q.features & GUMBEL_FEATURE_TOP)
        write_top_of_shortlist(values, r, b, count);
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row by one CTA: facts, truncation, masses, draws and all outputs, in this order.
 */
#ifndef GUMBEL_CUDA_SERVE_ROW_CUH
#define GUMBEL_CUDA_SERVE_ROW_CUH

#include "cuda/common/facts.cuh"
#include "cuda/truncated/row/row_output.cuh"

namespace
{

/* Dynamic shared memory of this CTA. */
__device__ __forceinline__ unsigned char *get_dynamic_memory()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return shared_memory;
}

/* Writes the tokens of the kept set, all of which fit, by ascending id; for all threads. A warp has
 * neighbouring tokens of a tile: it counts them, and writes them after those of lower warps. */
__device__ __noinline__ void write_kept(const cuda_truncated_params &p, const row_source &source,
                                        truncated_shared &x, logit_values values,
                                        kept_set survivors, const row_result &r, int64_t b)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned long long *counts = x.scratch.slots;
    const auto find = [&](int64_t token, float y) {
        return __ballot_sync(~0u, survivors.has_token((int32_t)token, values.to_value(y)));
    };
    int written = 0;
    source.each_tile([&](int64_t tile) {
        int own = 0;
        source.each_block_of_tile(tile, [&](int64_t block, float low, float high) {
            own += __popc(find(block + lane, low)) + __popc(find(block + 32 + lane, high));
        });
        if (!__syncthreads_or(own)) /* and the counts of the tile before have been read */
            return;
        if (lane == 0)
            counts[warp] = (unsigned long long)own;
        __syncthreads();
        int place = written;
        for (int w = 0; w < kWarps; w++) {
            place += w < warp ? (int)counts[w] : 0;
            written += (int)counts[w];
        }
        if (own == 0)
            return;
        source.each_block_of_tile(tile, [&](int64_t block, float low, float high) {
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                const int64_t token = block + 32 * half + lane;
                const float y = half ? high : low;
                const uint32_t kept = find(token, y);
                if (kept >> lane & 1)
                    write_kept_token(p, r, b, place + __popc(kept & ((1u << lane) - 1)),
                                     (int32_t)token, values.to_z(y));
                place += __popc(kept);
            }
        });
    });
}

/* Writes the kept set from candidates, which are few and unordered: a token's place is the number
 * of kept tokens with a lower id. */
__device__ __noinline__ void write_kept(const cuda_truncated_params &p, const list_source &source,
                                        truncated_shared &x, logit_values values,
                                        kept_set survivors, const row_result &r, int64_t b)
{
    (void)x;
    const auto is_kept = [&](cuda_candidate own) {
        return survivors.has_token(own.id, values.to_value(own.y));
    };
#pragma unroll 1
    for (int i = threadIdx.x; i < source.count; i += kThreads) {
        const cuda_candidate own = source.list[i];
        if (!is_kept(own))
            continue;
        int smaller = 0;
        for (int other = 0; other < source.count; other++)
            smaller += source.list[other].id < own.id && is_kept(source.list[other]);
        write_kept_token(p, r, b, smaller, own.id, values.to_z(own.y));
    }
}

/* The sum over the CTA of 128-bit integers below 2^125, in digits whose sums fit in 64 bits. */
__device__ __forceinline__ gumbel_wide sum_wide_of_cta(gumbel_wide own, truncated_scratch &x)
{
    constexpr int digit_bits = 42;
    gumbel_wide sum = 0;
    for (int shift = 0; shift < 3 * digit_bits; shift += digit_bits) {
        const uint64_t digit = (uint64_t)(own >> shift) & ((1ull << digit_bits) - 1);
        sum += (gumbel_wide)sum_of_cta(digit, x) << shift;
    }
    return sum;
}

/* Writes the entropy of row b, of z over the kept set; NaN with `ok` false. `largest` is the
 * largest z. For all threads. */
template <class Source>
__device__ __noinline__ void write_entropy(const cuda_truncated_params &p, const Source &source,
                                           truncated_scratch &x, logit_values values,
                                           kept_set survivors, float largest, bool ok, int64_t b)
{
    gumbel_facts facts = {};
    if (ok)
        source.each([&](int32_t id, float y) {
            if (survivors.has_token(id, values.to_value(y)))
                add_to_facts(facts, GUMBEL_FACT_ENTROPY, values.to_z(y), largest);
        });
    facts.mass = sum_wide_of_cta(facts.mass, x);
    facts.weighted = sum_wide_of_cta(facts.weighted, x);
    if (threadIdx.x == 0)
        p.output.entropy[b] = ok ? gumbel_facts_entropy(&facts) : NAN;
}

/* Serves a row by all threads. `source` holds all tokens that matter; `flags` are those of the
 * other tokens. */
template <class Source>
__device__ __noinline__ void serve_row(const cuda_truncated_params &p, const Source &source,
                                       truncated_shared &x, int64_t b, uint32_t flags = 0)
{
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const int samples = q.sampling.num_samples;
    logit_values values = {x.row.draw.inverse_temperature, x.row.rules.before != 0};
    source_facts facts = scan_source(source, values, x);
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = flags | facts.flags | x.row.flags;
    seen.best_id = facts.alive > 0 ? 0 : -1;
    row_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    const bool ok = r.status == GUMBEL_ROW_OK;
    kept_set survivors = {-FLT_MAX, INT32_MAX};
    if (ok && gumbel_rules_truncate(&x.row.rules)) {
        kept_set_finder<Source> finder = {
            source, x.scratch, values, facts.largest, {x.thread_maxima}};
        survivors = find_kept_set(finder, x.row.rules);
    }
    if constexpr (Source::is_row)
        if (p.processed) {
            write_processed(p, source, values, survivors, r.status, b);
            return;
        }
    if (ok && out.kept)
        r.kept = count_tokens(source, x.scratch, [&](int32_t id, float y) {
            return survivors.has_token(id, values.to_value(y));
        });
    if (ok && (p.partials ? q.with_mass
                          : out.lse || out.logprobs || out.top_logprobs || out.kept_logprobs)) {
        r.mass = out.logprobs_of == GUMBEL_RAW && !p.partials
                     ? sum_raw(q, b, x)
                     : sum_kept(source, x, values, survivors);
        r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
    }
    if (ok && (q.features & GUMBEL_FEATURE_KEPT_IDS) && r.kept <= out.kept_capacity)
        write_kept(p, source, x, values, survivors, r, b);
    if constexpr (Source::is_row)
        if (needs_entropy(p))
            write_entropy(p, source, x.scratch, values, survivors,
                          values.before ? values.to_z(facts.largest) : facts.largest, ok, b);
    for (int64_t at = b * samples; at < (b + 1) * samples; at++) {
        draw_winner best = draw_winner_none();
        int32_t rank = -1;
        if (ok)
            best = q.sampling.given.data ? score_given(q, source, x, values, survivors, b, at)
                                         : draw_kept(q, source, x, values, survivors, at);
        if (ok && out.ranks && best.z > -INFINITY)
            rank = 1 + count_tokens(source, x.scratch,
                                    [&](int32_t, float y) { return values.to_z(y) > best.z; });
        if (threadIdx.x < 32)
            write_draw(p, r, b, at, best, rank);
    }
    if (q.features & GUMBEL_FEATURE_TOP) {
        int count = ok ? list_top(source, x, values, facts.largest, survivors, out.num_top) : 0;
        write_top(p, x.top, r, b, count);
    }
}

} // namespace

#endif

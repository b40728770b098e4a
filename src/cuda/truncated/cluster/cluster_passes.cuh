/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves rows with many kept tokens by a cluster, in several passes: masses, draws, ranks, the most
 * likely tokens, and processed logits.
 */
#ifndef GUMBEL_CUDA_CLUSTER_PASSES_CUH
#define GUMBEL_CUDA_CLUSTER_PASSES_CUH

#include "cuda/truncated/cluster/cluster_list.cuh"

namespace
{

/* ---------------------------------------------------------------------------------- mass ---- */

/* Sums the mass of z that load(offset, quad) loads, four tokens at a time, -inf for tokens that do
 * not count. */
template <class F> __device__ inline gumbel_summary sum_masses(slice_source source, F load)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    gumbel_summary own;
    gumbel_summary_empty(&own);
    mass_accumulator mass = {&own, lane};
#pragma unroll 1
    for (int step = warp * kStep; step < source.size; step += kWarps * kStep) {
        int first = step + lane / 4 * GUMBEL_BLOCK + lane % 4 * 4;
        four z[kQuads];
        bool any = false;
#pragma unroll
        for (int i = 0; i < kQuads; i++) {
            int place = first + i * kStride;
            z[i] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
            if (place < source.size)
                load(place, z[i]);
            for (int j = 0; j < 4; j++)
                any |= !(z[i].v[j] == -INFINITY);
        }
        if (__any_sync(~0u, any))
            mass.add(z);
    }
    mass.flush();
    return join_cluster(joined_mass{own}).value;
}

/* Mass of z over the kept set. */
__device__ __noinline__ gumbel_summary sum_kept(slice_source source, logit_values values,
                                                kept_set survivors)
{
    return sum_masses(source, [&](int place, four &z) {
        float4 raw = *(const float4 *)(slice_logits() + place);
        float y[4] = {raw.x, raw.y, raw.z, raw.w};
        int32_t id = (int32_t)source.begin + place;
#pragma unroll
        for (int i = 0; i < 4; i++)
            z.v[i] =
                survivors.has_token(id + i, values.to_value(y[i])) ? values.to_z(y[i]) : -INFINITY;
    });
}

/* Mass of the raw logits of all valid tokens; flags report NaN and +inf. */
__device__ __noinline__ gumbel_summary sum_raw(slice_source source)
{
    uint32_t flags = 0;
    gumbel_summary sum = sum_masses(source, [&](int place, four &l) {
        float4 raw = *(const float4 *)(slice_logits() + place);
        l = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            flags |= isnan(l.v[i])        ? GUMBEL_FLAG_NAN
                     : l.v[i] == INFINITY ? GUMBEL_FLAG_INFINITE
                                          : 0;
    });
    sum.flags = join_cluster(joined_flags{flags}).value;
    return sum;
}

/* ---------------------------------------------------------------------------------- draw ---- */

/* A lane's draw from the kept set; the lanes of a warp share the threshold. */
struct slice_draw {
    draw_philox philox;
    const float *noise; /* of token 0, or NULL */
    bool greedy;
    draw_winner best = draw_winner_none();
    float threshold = -FLT_MAX; /* only -inf is lower */

    /* The score of a token from its block's words and its own; NaN if the score cannot reach the
     * threshold. */
    __device__ __forceinline__ float score(float z, uint32_t id, draw_block block,
                                           uint4 words) const
    {
        const uint32_t r = draw_select_word(words, id);
        if (greedy)
            return z;
        if (noise)
            return z + noise[id];
        if (id % GUMBEL_BLOCK != block.max_noise_index() &&
            !draw_passes_filter(z, draw_min_exponential_of_word(block.r), r,
                                draw_filter_offset(threshold)))
            return NAN;
        return z + draw_noise_from_words(block, id, r);
    }

    /* Offers the tokens of a quad selected by `keeps`; by whole warps. The loop over tokens that
     * may win keeps a single copy of the hundred instructions of a score. */
    __device__ __forceinline__ void offer_quad(uint32_t keeps, int32_t id, const float (&z)[4])
    {
        const bool draws = !greedy && !noise;
        uint4 words = {0, 0, 0, 0};
        draw_block block = {0, 0};
        uint32_t may = keeps;
        if (draws) {
            block = draw_block_of(philox, (uint32_t)id);
            const float bound = draw_bound(threshold, draw_reach(false, block.r));
#pragma unroll
            for (int i = 0; i < 4; i++)
                may &= ~((uint32_t)!draw_passes_bound(z[i], bound) << i);
        }
        if (!__any_sync(~0u, may))
            return;
        if (draws)
            words = draw_philox_words(philox, (uint32_t)id / 4, 0);
#pragma unroll 1
        for (; may; may &= may - 1) {
            int i = __ffs(may) - 1;
            float own = draw_select_of_four(z, i);
            draw_winner_offer(best, score(own, (uint32_t)id + i, block, words), own, id + i);
        }
        __syncwarp();
        uint32_t top = __reduce_max_sync(~0u, ordered_bits(best.score));
        threshold = fmaxf(threshold, draw_threshold(ordered_float(top)));
    }
};

/* Draws sample `at` of the call from the kept set; for all threads. */
__device__ __noinline__ draw_winner draw_kept(const gumbel_problem &q, slice_source source,
                                              logit_values values, kept_set survivors, int64_t at)
{
    gumbel_stream stream = shared_state().row.draw.stream;
    const float *noise = q.sampling.noise;
    stream.sample += (uint32_t)(at % q.sampling.num_samples);
    if (noise)
        noise += at * q.sampling.noise_stride - q.first_token;
    slice_draw draw = {draw_philox_of(stream), noise, shared_state().row.draw.greedy != 0};
    auto test = [&](float4 y) {
        return values.to_value(fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w))) >= survivors.bound;
    };
    source.each_passing(test, [&](int place, const float(&y)[4]) {
        int32_t id = (int32_t)source.begin + place;
        uint32_t keeps = 0;
        float z[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z[i] = values.to_z(y[i]);
            keeps |= (uint32_t)survivors.has_token(id + i, values.to_value(y[i])) << i;
        }
        draw.offer_quad(keeps, id, z);
    });
    return join_cluster(joined_winner{draw.best}).value;
}

/* Evaluates the token given for draw `at`; for all threads. */
__device__ __noinline__ draw_winner score_given(const gumbel_problem &q, slice_source source,
                                                logit_values values, kept_set survivors, int64_t b,
                                                int64_t at)
{
    const int32_t id = given_token(q, b, at);
    const int64_t place = id - source.begin;
    draw_winner found = draw_winner_none();
    if (threadIdx.x == 0 && place >= 0 && place < source.size && id >= q.first_token &&
        id < q.end_token) {
        const float y = slice_logits()[place];
        found = given_found(id, values.to_z(y), survivors.has_token(id, values.to_value(y)));
    }
    return given_winner(join_cluster(joined_winner{found}).value, id);
}

/* Counts the tokens for which f(id, y) holds; for all threads. may(y) as in slice_source. */
template <class May, class F>
__device__ __forceinline__ int32_t count_tokens(slice_source source, May may, F f)
{
    uint32_t own = 0;
    source.each(may, [&](int32_t id, float y) { own += f(id, y) ? 1 : 0; });
    return (int32_t)join_cluster(joined_count{own}).value;
}

/* -------------------------------------------------------------------------------- outputs ---- */

/* Sorts the n most likely tokens in the leader's shared memory; returns their number there. */
__device__ inline int list_top(const cluster_kept_set_finder &by_z, logit_values values,
                               kept_set survivors, int n)
{
    descent_result last = by_z.find_nth((uint64_t)n, -FLT_MAX);
    kept_set first = {-FLT_MAX, INT32_MAX};
    if (last.reached) {
        gumbel_cutoff by_value = {gumbel_value_of_key(last.key), n - (int64_t)last.above};
        first = {by_value.bound, by_z.find_last_tie(by_value)};
    }
    int count = gather_tokens(
        by_z.source, [&](float y) { return by_z.values.to_value(y) >= first.bound; },
        [&](int32_t id, float y) { return first.has_token(id, by_z.values.to_value(y)); });
    if (!leads_cluster())
        return 0;
    if ((int)threadIdx.x < count) {
        cuda_candidate own = shared_state().scratch.list[threadIdx.x];
        float z = values.to_z(own.y);
        int place = 0;
        for (int i = 0; i < count; i++) {
            cuda_candidate other = shared_state().scratch.list[i];
            place += values.to_z(other.y) > z || (values.to_z(other.y) == z && other.id < own.id);
        }
        shared_state().top[place] = {z, own.id,
                                     survivors.has_token(own.id, values.to_value(own.y))};
    }
    __syncthreads();
    return count;
}

/* Writes the tokens of the kept set by ascending id, if they fit: each warp those of a segment of
 * the slice, after counting them. */
__device__ __noinline__ void write_kept(const cuda_truncated_params &p, slice_source source,
                                        logit_values values, kept_set survivors,
                                        const row_result &r, int64_t b)
{
    if (r.kept > p.output.kept_capacity)
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int segment = (source.size / 32 + kWarps - 1) / kWarps * 32;
    const int begin = warp * segment, end = min(begin + segment, source.size);
    uint32_t *counts = (uint32_t *)shared_state().scratch.high, before = 0, all = 0;
    auto has = [&](int i) {
        return survivors.has_token((int32_t)source.begin + i, values.to_value(slice_logits()[i]));
    };
    uint32_t own = 0;
#pragma unroll 1
    for (int i = begin + lane; i < end; i += 32)
        own += has(i);
    own = __reduce_add_sync(~0u, own);
    __syncthreads(); /* the scratch has been read */
    if (lane == 0)
        counts[warp] = own;
    __syncthreads();
    for (int i = 0; i < kWarps; i++) {
        before += i < warp ? counts[i] : 0;
        all += counts[i];
    }
    const exchange_slot *slots = exchange_in_cluster(joined_count{all});
    for (int rank = 0; rank < cluster_rank(); rank++)
        before += ((const joined_count *)&slots[rank])->value;
#pragma unroll 1
    for (int i = begin + lane; i < end && own > 0; i += 32) {
        const bool kept = has(i);
        const uint32_t hits = __ballot_sync(~0u, kept);
        if (kept)
            write_kept_token(p, r, b, (int)before + __popc(hits & ((1u << lane) - 1)),
                             (int32_t)source.begin + i, values.to_z(slice_logits()[i]));
        before += __popc(hits);
    }
}

/* Writes the entropy of row b, of z over the kept set; NaN with `ok` false. `largest` is the
 * largest z. For all threads. */
__device__ __noinline__ void write_entropy(const cuda_truncated_params &p, slice_source source,
                                           logit_values values, kept_set survivors, float largest,
                                           bool ok, int64_t b)
{
    narrow_sums sums = {}; /* a slice has at most kNarrowValues tokens a thread */
    gumbel_facts facts = {};
    if (ok) {
        source.each([&](float y) { return values.to_value(y) >= survivors.bound; },
                    [&](int32_t id, float y) {
                        if (survivors.has_token(id, values.to_value(y)))
                            sums.add(values.to_z(y), largest);
                    });
        sums.add_to(facts);
        const joined_facts all =
            join_cluster(joined_facts::pack_sums(0, facts.mass, facts.weighted));
        facts.mass = all.get_first();
        facts.weighted = all.get_second();
    }
    if (leads_cluster() && threadIdx.x == 0)
        p.output.entropy[b] = ok ? gumbel_facts_entropy(&facts) : NAN;
}

/* Writes this CTA's slice of a processed row: z of the kept set, -inf elsewhere. */
__device__ inline void write_processed(const cuda_truncated_params &p, slice_source source,
                                       logit_values values, kept_set survivors,
                                       gumbel_row_status status, int64_t b)
{
    const gumbel_problem &q = p.problem;
    bool ok = status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY;
#pragma unroll 1
    for (int i = threadIdx.x; i < source.size; i += kThreads) {
        int64_t id = source.begin + i;
        float y = slice_logits()[i];
        float z = survivors.has_token((int32_t)id, values.to_value(y)) ? values.to_z(y) : -INFINITY;
        if (id >= q.first_token && id < q.end_token)
            store_processed(p, b, id - q.first_token, ok ? z : NAN);
    }
    for (int64_t i =
             max(q.end_token - q.first_token, (int64_t)0) + threadIdx.x + cluster_rank() * kThreads;
         i < q.vocab; i += kClusterCtas * kThreads)
        store_processed(p, b, i, ok ? -INFINITY : NAN);
}

/* Serves a row by all threads of the cluster. `raw` is the mass of the raw logits if requested. */
__device__ __noinline__ void serve_by_passes(const cuda_truncated_params &p, slice_source source,
                                             row_facts facts, int64_t b, const gumbel_summary &seen,
                                             const gumbel_summary &raw)
{
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const truncated_row &row = shared_state().row;
    const int samples = q.sampling.num_samples;
    logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    logit_values by_z = {row.draw.inverse_temperature, false};
    float largest = gumbel_value_of_key(facts.highest);
    row_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    const bool ok = r.status == GUMBEL_ROW_OK, writes = leads_cluster() && threadIdx.x < 32;
    kept_set survivors = {-FLT_MAX, INT32_MAX};
    if (ok && gumbel_rules_truncate(&row.rules)) {
        cluster_kept_set_finder finder = {source, values, facts, values.to_value(largest)};
        survivors = find_kept_set(finder, row.rules);
    }
    if (p.processed) {
        write_processed(p, source, values, survivors, r.status, b);
        return;
    }
    if (ok && out.kept)
        r.kept = count_tokens(
            source, [&](float y) { return values.to_value(y) >= survivors.bound; },
            [&](int32_t id, float y) { return survivors.has_token(id, values.to_value(y)); });
    if (ok && (p.partials ? q.with_mass
                          : out.lse || out.logprobs || out.top_logprobs || out.kept_logprobs)) {
        bool of_raw = out.logprobs_of == GUMBEL_RAW && !p.partials;
        r.mass = of_raw ? raw : sum_kept(source, values, survivors);
        r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
    }
    if (ok && (q.features & GUMBEL_FEATURE_KEPT_IDS))
        write_kept(p, source, values, survivors, r, b);
    if (needs_entropy(p))
        write_entropy(p, source, values, survivors, by_z.to_value(largest), ok, b);
    for (int64_t at = b * samples; at < (b + 1) * samples; at++) {
        draw_winner best = draw_winner_none();
        int32_t rank = -1;
        if (ok)
            best = q.sampling.given.data ? score_given(q, source, values, survivors, b, at)
                                         : draw_kept(q, source, values, survivors, at);
        if (ok && out.ranks && best.z > -INFINITY)
            rank = 1 + count_tokens(
                           source, [&](float y) { return values.to_z(y) > best.z; },
                           [&](int32_t, float y) { return values.to_z(y) > best.z; });
        if (writes)
            write_draw(p, r, b, at, best, rank);
    }
    if (q.features & GUMBEL_FEATURE_TOP) {
        cluster_kept_set_finder finder = {source, by_z, facts, by_z.to_value(largest)};
        int count = ok ? list_top(finder, values, survivors, out.num_top) : 0;
        if (leads_cluster())
            write_top(p, shared_state().top, r, b, count);
    }
}

} // namespace

#endif

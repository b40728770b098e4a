/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a row by a team, where many tokens stay: masses, draws, ranks, the most likely tokens,
 * and what the draw sees.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_DRAW_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_DRAW_CUH

#include "cuda/request/team/request_team_list.cuh"

namespace
{

/* ---------------------------------------------------------------------------------- mass ---- */

/* The mass of the tokens that load(place, quad) gives the z of, -inf for those that do not
 * count, four at a time. */
template <class F> __device__ inline gumbel_summary sum_masses(share_source source, F load)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    gumbel_summary own;
    gumbel_summary_empty(&own);
    warp_mass mass = {&own, lane, false};
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
    return team_over(team_mass{own}).of;
}

/* Of z over the tokens that stay. */
__device__ __noinline__ gumbel_summary sum_kept(share_source source, request_values values,
                                                request_cut cut)
{
    return sum_masses(source, [&](int place, four &z) {
        float4 raw = *(const float4 *)(share() + place);
        float y[4] = {raw.x, raw.y, raw.z, raw.w};
        int32_t id = (int32_t)source.begin + place;
#pragma unroll
        for (int i = 0; i < 4; i++)
            z.v[i] = cut.keeps(id + i, values.of(y[i])) ? values.z(y[i]) : -INFINITY;
    });
}

/* Of the logits as they were fetched, over all tokens that count; flags tell of NaN and +inf. */
__device__ __noinline__ gumbel_summary sum_raw(share_source source)
{
    uint32_t flags = 0;
    gumbel_summary sum = sum_masses(source, [&](int place, four &l) {
        float4 raw = *(const float4 *)(share() + place);
        l = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            flags |= isnan(l.v[i])        ? GUMBEL_FLAG_NAN
                     : l.v[i] == INFINITY ? GUMBEL_FLAG_INFINITE
                                          : 0;
    });
    sum.flags = team_over(team_flags{flags}).of;
    return sum;
}

/* ---------------------------------------------------------------------------------- draw ---- */

/* A lane's way through the tokens that stay; lanes of a warp share the threshold. */
struct team_draw {
    draw_philox philox;
    const float *noise; /* of token 0, or NULL */
    bool greedy;
    draw_winner best = draw_winner_none();
    float threshold = -FLT_MAX; /* below it lies -inf alone */

    /* The score of a token of that z, by its block's words and its own; NaN where it surely cannot
     * come to the threshold. */
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

    /* Offer those of four neighbours that stay: by whole warps. What may win is scored in a loop,
     * so that there is one copy of the hundred instructions of a score. */
    __device__ __forceinline__ void offer(uint32_t keeps, int32_t id, const float (&z)[4])
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

/* The best of the tokens that stay, in draw `at` of the call; for all threads. */
__device__ __noinline__ draw_winner draw_kept(const gumbel_problem &q, share_source source,
                                              request_values values, request_cut cut, int64_t at)
{
    gumbel_stream stream = shared().row.draw.stream;
    const float *noise = q.sampling.noise;
    stream.sample += (uint32_t)(at % q.sampling.num_samples);
    if (noise)
        noise += at * q.sampling.noise_stride - q.first_token;
    team_draw draw = {draw_philox_of(stream), noise, shared().row.draw.greedy != 0};
    auto look = [&](float4 y) {
        return values.of(fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w))) >= cut.bound;
    };
    source.each_passing(look, [&](int place, const float(&y)[4]) {
        int32_t id = (int32_t)source.begin + place;
        uint32_t keeps = 0;
        float z[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            z[i] = values.z(y[i]);
            keeps |= (uint32_t)cut.keeps(id + i, values.of(y[i])) << i;
        }
        draw.offer(keeps, id, z);
    });
    return team_over(team_winner{draw.best}).of;
}

/* What the team knows of the token that is given for draw `at`; for all threads. */
__device__ __noinline__ draw_winner score_given(const gumbel_problem &q, share_source source,
                                                request_values values, request_cut cut, int64_t b,
                                                int64_t at)
{
    const int32_t id = given_token(q, b, at);
    const int64_t place = id - source.begin;
    draw_winner found = draw_winner_none();
    if (threadIdx.x == 0 && place >= 0 && place < source.size && id >= q.first_token &&
        id < q.end_token) {
        const float y = share()[place];
        found = given_found(id, values.z(y), cut.keeps(id, values.of(y)));
    }
    return given_winner(team_over(team_winner{found}).of, id);
}

/* How many tokens f(id, y) holds for; for all threads. may(y) as in share_source. */
template <class May, class F>
__device__ __forceinline__ int32_t count_tokens(share_source source, May may, F f)
{
    uint32_t own = 0;
    source.each(may, [&](int32_t id, float y) { own += f(id, y) ? 1 : 0; });
    return (int32_t)team_over(team_count{own}).of;
}

/* -------------------------------------------------------------------------------- outputs ---- */

/* Put the n most likely tokens in the leader's shared memory, in order; how many it has. */
__device__ inline int list_top(const team_cut_finder &by_z, request_values values, request_cut cut,
                               int n)
{
    landing last = by_z.nth((uint64_t)n, -FLT_MAX);
    request_cut first = {-FLT_MAX, INT32_MAX};
    if (last.reached) {
        gumbel_cut by_value = {gumbel_of_key(last.key), n - (int64_t)last.above};
        first = {by_value.bound, by_z.last_of_ties(by_value)};
    }
    int count = gather(
        by_z.source, [&](float y) { return by_z.values.of(y) >= first.bound; },
        [&](int32_t id, float y) { return first.keeps(id, by_z.values.of(y)); });
    if (!team_leads())
        return 0;
    if ((int)threadIdx.x < count) {
        cuda_candidate own = shared().bench.list[threadIdx.x];
        float z = values.z(own.y);
        int place = 0;
        for (int i = 0; i < count; i++) {
            cuda_candidate other = shared().bench.list[i];
            place += values.z(other.y) > z || (values.z(other.y) == z && other.id < own.id);
        }
        shared().top[place] = {z, own.id, cut.keeps(own.id, values.of(own.y))};
    }
    __syncthreads();
    return count;
}

/* Write what the draw sees of this CTA's share: z of the tokens that stay, -inf for the others. */
__device__ inline void write_processed(const cuda_request_params &p, share_source source,
                                       request_values values, request_cut cut,
                                       gumbel_row_status status, int64_t b)
{
    const gumbel_problem &q = p.problem;
    bool ok = status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY;
    float *row = p.processed + b * p.processed_stride;
#pragma unroll 1
    for (int i = threadIdx.x; i < source.size; i += kThreads) {
        int64_t id = source.begin + i;
        float y = share()[i];
        if (id >= q.first_token && id < q.end_token)
            row[id - q.first_token] = !ok                                    ? NAN
                                      : cut.keeps((int32_t)id, values.of(y)) ? values.z(y)
                                                                             : -INFINITY;
    }
    for (int64_t i =
             max(q.end_token - q.first_token, (int64_t)0) + threadIdx.x + team_rank() * kThreads;
         i < q.vocab; i += kRanks * kThreads)
        row[i] = ok ? -INFINITY : NAN;
}

/* Do all that is asked of a row, by all threads of the team. `raw` is the mass of the logits where
 * that is asked for. */
__device__ __noinline__ void serve_team(const cuda_request_params &p, share_source source,
                                        team_facts facts, int64_t b, const gumbel_summary &seen,
                                        const gumbel_summary &raw)
{
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const request_row &row = shared().row;
    const int samples = q.sampling.num_samples;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    request_values by_z = {row.draw.inverse_temperature, false};
    float largest = gumbel_of_key(facts.highest);
    request_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    const bool ok = r.status == GUMBEL_ROW_OK, tells = team_leads() && threadIdx.x < 32;
    request_cut cut = {-FLT_MAX, INT32_MAX};
    if (ok && gumbel_rules_cut(&row.rules)) {
        team_cut_finder finder = {source, values, facts, values.of(largest)};
        cut = find_cut(finder, row.rules);
    }
    if (p.processed) {
        write_processed(p, source, values, cut, r.status, b);
        return;
    }
    if (ok && out.kept)
        r.kept = count_tokens(
            source, [&](float y) { return values.of(y) >= cut.bound; },
            [&](int32_t id, float y) { return cut.keeps(id, values.of(y)); });
    if (ok && (p.partials ? q.with_mass : out.lse || out.logprobs || out.top_logprobs)) {
        bool of_raw = out.logprobs_of == GUMBEL_RAW && !p.partials;
        r.mass = of_raw ? raw : sum_kept(source, values, cut);
        r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
    }
    for (int64_t at = b * samples; at < (b + 1) * samples; at++) {
        draw_winner best = draw_winner_none();
        int32_t rank = -1;
        if (ok)
            best = q.sampling.given.data ? score_given(q, source, values, cut, b, at)
                                         : draw_kept(q, source, values, cut, at);
        if (ok && out.ranks && best.z > -INFINITY)
            rank = 1 + count_tokens(
                           source, [&](float y) { return values.z(y) > best.z; },
                           [&](int32_t, float y) { return values.z(y) > best.z; });
        if (tells)
            write_draw(p, r, b, at, best, rank);
    }
    if (q.request & GUMBEL_REQUEST_TOP) {
        team_cut_finder finder = {source, by_z, facts, by_z.of(largest)};
        int count = ok ? list_top(finder, values, cut, out.num_top) : 0;
        if (team_leads())
            write_top(p, shared().top, r, b, count);
    }
}

} // namespace

#endif

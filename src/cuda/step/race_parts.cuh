/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a race behind a node, and its end: what they found is made what the node emits, and
 * the request walks.
 */
#ifndef GUMBEL_CUDA_RACE_PARTS_CUH
#define GUMBEL_CUDA_RACE_PARTS_CUH

#include "cuda/step/draft_nodes.cuh"
#include "cuda/step/draft_race.cuh"
#include "cuda/step/weigh_parts.cuh"

namespace
{

/* Whether a node is drawn, one of those between the first and the last. */
__device__ __forceinline__ bool is_drawn(const gumbel_rule_node &w)
{
    return w.verdict == GUMBEL_VERDICT_DRAW || w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* The best of all threads', by all of them. */
__device__ __forceinline__ gumbel_contender best_of_cta(const gumbel_contender &own)
{
    const gumbel_contender of_warp = best_of_warp(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        weigh_state().best[threadIdx.x / 32] = of_warp;
    __syncthreads();
    gumbel_contender best = weigh_state().best[0];
    for (int i = 1; i < kWeighWarps; i++)
        gumbel_contender_merge(&best, &weigh_state().best[i]);
    return best;
}

/* Of a part the tokens that are a warp's, which are neighbours. */
__device__ __forceinline__ tokens_of_part tokens_of_warp(tokens_of_part tokens, int warp)
{
    const int steps =
        (tokens.end - tokens.begin + kWeighWarps * kStep - 1) / (kWeighWarps * kStep) * kStep;
    tokens.begin += warp * steps;
    tokens.end = min(tokens.begin + steps, tokens.end);
    return tokens;
}

/* The best of a race among some tokens. */
__device__ __forceinline__ gumbel_contender race_of_cta(const draft_race &race,
                                                        tokens_of_part tokens)
{
    tokens = tokens_of_warp(tokens, threadIdx.x / 32);
    return best_of_cta(race.run<false>(tokens.begin, tokens.end).best);
}

__device__ __forceinline__ tokens_of_part all_tokens(const gumbel_rule_params &p)
{
    tokens_of_part all(p, 0);
    all.end = (int)p.proposal.target.end_token;
    return all;
}

/* Whether a node is drawn by the lists of its parts. */
__device__ __forceinline__ bool is_listed(const gumbel_rule_params &p, const gumbel_rule_node &w)
{
    return p.proposal.dots && w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* Race for node j in a part of its row. */
__device__ __forceinline__ void race_part(const gumbel_rule_params &p, const gumbel_chain &c,
                                          int32_t j, bool residual, int64_t part)
{
    const gumbel_contender best =
        race_of_cta(draft_race::of(p, c, j, residual), tokens_of_part(p, part));
    if (threadIdx.x == 0)
        p.contenders[(c.first + j) * p.parts + part] = best;
}

/* What another CTA wrote. */
__device__ __forceinline__ gumbel_contender fetch(const gumbel_contender *from)
{
    return {__ldcg(&from->id), __ldcg(&from->score), __ldcg(&from->logprob)};
}

/* Make what the parts of node j found what it emits, by a warp. */
__device__ void end_race(const gumbel_rule_params &p, const gumbel_chain &c, int32_t j)
{
    const gumbel_contender *from = p.contenders + (c.first + j) * p.parts;
    gumbel_contender own = gumbel_contender_none();
    for (int i = threadIdx.x % 32; i < p.parts; i += 32) {
        const gumbel_contender next = fetch(&from[i]);
        gumbel_contender_merge(&own, &next);
    }
    own = best_of_warp(own);
    if (threadIdx.x % 32 != 0)
        return;
    if (p.proposal.rule_nodes[c.first + j].verdict == GUMBEL_VERDICT_DRAW)
        gumbel_chain_emit(&c, weigh_nodes(), j, &own);
    else if (own.id >= 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &own);
    else
        weigh_state().drawn_again = j;
}

/* Where rounding has left nothing of max(r p - q, 0), p and q are the same, and the target's draw
 * stands. So rare that one CTA may make it. */
__device__ __noinline__ void draw_again(const gumbel_rule_params &p, const gumbel_chain &c,
                                        int32_t j)
{
    const gumbel_contender best = race_of_cta(draft_race::of(p, c, j, false), all_tokens(p));
    if (threadIdx.x == 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &best);
    __syncthreads();
}

/* A place in the order of a race, by score, then by id; 0 for none. */
__device__ __forceinline__ uint64_t place_of(float score, int32_t id)
{
    return id < 0 ? 0 : (uint64_t)ordered_bits(score + 0.0f) << 32 | ~(uint32_t)id;
}

/* The best token of a warp's share of lists that comes behind *after, where it then stands, for all
 * lanes. */
__device__ __forceinline__ gumbel_contender next_of_lists(const gumbel_short_list *lists, int count,
                                                          uint64_t *after)
{
    uint64_t own = 0;
    int at = 0;
    for (int i = threadIdx.x; i < count * GUMBEL_SHORT_LIST_TOKENS; i += kWeighThreads) {
        const gumbel_contender *next =
            &lists[i / GUMBEL_SHORT_LIST_TOKENS].of[i % GUMBEL_SHORT_LIST_TOKENS];
        const uint64_t place = place_of(__ldcg(&next->score), __ldcg(&next->id));
        if (place > own && place < *after) {
            own = place;
            at = i;
        }
    }
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(own >> 32));
    const uint32_t low = __reduce_max_sync(~0u, own >> 32 == high ? (uint32_t)own : 0u);
    *after = (uint64_t)high << 32 | low;
    at = __shfl_sync(~0u, at, __ffs(__ballot_sync(~0u, own == *after)) - 1);
    return *after ? fetch(&lists[at / GUMBEL_SHORT_LIST_TOKENS].of[at % GUMBEL_SHORT_LIST_TOKENS])
                  : gumbel_contender_none();
}

/* Each warp goes through a share of what the parts have listed, the likeliest first, until no other
 * can come to the best of all: a warp's best, for all lanes. */
__device__ __forceinline__ gumbel_contender offer_listed(const gumbel_rule_params &p, int64_t b,
                                                         const gumbel_short_list *lists, int count,
                                                         uint32_t *floor)
{
    gumbel_contender best = gumbel_contender_none();
    uint64_t after = ~(uint64_t)0;
    while (true) {
        const gumbel_contender next = next_of_lists(lists, count, &after);
        if (next.id < 0 || next.score < read_floor(floor))
            return best;
        gumbel_contender_offer_residual(&best, next.id, next.score, next.logprob,
                                        draft_logprob(p, b, next.id), 1.0f);
        raise_floor(floor, best.score);
    }
}

/* Race again among the tokens of each warp whose list leaves out some that can come to the best so
 * far: seldom, and then mostly one warp's. */
__device__ __forceinline__ void offer_unlisted(const gumbel_rule_params &p, const draft_race &race,
                                               const gumbel_short_list *lists, int count,
                                               uint32_t *floor, gumbel_contender *best)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int first = warp; first < count; first += kWeighThreads) {
        const int own = first + kWeighWarps * lane;
        const float bound = own < count ? __ldcg(&lists[own].bound) : -INFINITY;
        const float before = read_floor(floor);
#pragma unroll 1
        for (uint32_t left = __ballot_sync(~0u, bound > -INFINITY && bound >= before); left;
             left &= left - 1) {
            const int list = first + kWeighWarps * (__ffs(left) - 1);
            const tokens_of_part tokens =
                tokens_of_warp(tokens_of_part(p, list / kWeighWarps), list % kWeighWarps);
            const gumbel_contender found = race_above(race, tokens.begin, tokens.end, floor);
            gumbel_contender_merge(best, &found);
        }
    }
}

/* Draw behind node j by max(p - q, 0) from what its parts have listed. */
__device__ __noinline__ void draw_from_lists(const gumbel_rule_params &p, const gumbel_chain &c,
                                             int32_t j)
{
    const int count = p.parts * kWeighWarps;
    const gumbel_short_list *lists = p.lists + c.r * count;
    uint32_t *floor = &weigh_state().floor;
    if (threadIdx.x == 0)
        *floor = ordered_bits(-INFINITY);
    __syncthreads();
    gumbel_contender best = offer_listed(p, c.first + j, lists, count, floor);
    __syncthreads();
    offer_unlisted(p, draft_race::of(p, c, j, true), lists, count, floor, &best);
    best = best_of_cta(best);
    if (threadIdx.x == 0 && best.id >= 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &best);
    else if (threadIdx.x == 0)
        weigh_state().drawn_again = j;
    __syncthreads();
}

/* Emit and walk, once all parts have raced. */
__device__ gumbel_walk_result end_chain(const gumbel_rule_params &p, const gumbel_chain &c,
                                        const gumbel_residual_nodes &judged)
{
    const gumbel_verification &v = p.verification;
    gumbel_node *nodes = weigh_nodes();
    const gumbel_rule_node *weighed = p.proposal.rule_nodes + c.first;
    gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_DRAFT);
    const gumbel_span span = {c.first, c.count, 1};
    if (threadIdx.x == 0)
        weigh_state().drawn_again = -1;
    read_undrawn(v, span, nodes, kWeighThreads);
    if (__syncthreads_or(!add_draws(v, c.r, span, nodes, kWeighThreads)))
        return w;
    for (int32_t j = threadIdx.x; j < c.count; j += kWeighThreads)
        if (weighed[j].verdict == GUMBEL_VERDICT_DRAFT)
            gumbel_chain_accept(&c, nodes, j);
    for (int32_t j = judged.first + threadIdx.x / 32; j < judged.end; j += kWeighWarps)
        if (is_drawn(weighed[j]) && !is_listed(p, weighed[j]))
            end_race(p, c, j);
    __syncthreads();
    /* No walk comes to what is behind a residual. */
    if (judged.end > 0 && is_listed(p, weighed[judged.end - 1]))
        draw_from_lists(p, c, judged.end - 1);
    if (weigh_state().drawn_again >= 0)
        draw_again(p, c, weigh_state().drawn_again);
    if (threadIdx.x == 0)
        w = gumbel_draft_walk(&v, c.r, c.first, nodes, c.count);
    return w;
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The Gumbel argmax after a node, computed by the splits of a row, and the end of a request: the
 * results of the splits are merged into the token that the node emits, and the request walks over
 * its nodes.
 */
#ifndef GUMBEL_CUDA_NODE_SPLITS_CUH
#define GUMBEL_CUDA_NODE_SPLITS_CUH

#include "cuda/step/draft_nodes.cuh"
#include "cuda/step/node_argmax.cuh"
#include "cuda/step/draft_masses.cuh"

namespace
{

/* Whether a node, between the first and the last drawn one, is drawn. */
__device__ __forceinline__ bool is_drawn(const gumbel_rule_node &w)
{
    return w.verdict == GUMBEL_VERDICT_DRAW || w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* Returns the best of a CTA's contenders to all threads. */
__device__ __forceinline__ gumbel_contender merge_best_of_cta(const gumbel_contender &thread_best)
{
    const gumbel_contender warp_best = merge_best_of_warp(thread_best);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        draft_state().warp_best[threadIdx.x / 32] = warp_best;
    __syncthreads();
    gumbel_contender best = draft_state().warp_best[0];
    for (int i = 1; i < kDraftWarps; i++)
        gumbel_contender_merge(&best, &draft_state().warp_best[i]);
    return best;
}

/* A warp's tokens of a split, which are contiguous. */
__device__ __forceinline__ split_tokens find_warp_tokens(split_tokens tokens, int warp)
{
    const int steps =
        (tokens.end - tokens.begin + kDraftWarps * kStep - 1) / (kDraftWarps * kStep) * kStep;
    tokens.begin += warp * steps;
    tokens.end = min(tokens.begin + steps, tokens.end);
    return tokens;
}

/* The argmax over a range of tokens, for all threads of the CTA. */
__device__ __forceinline__ gumbel_contender find_argmax(const node_argmax &argmax,
                                                        split_tokens tokens)
{
    tokens = find_warp_tokens(tokens, threadIdx.x / 32);
    return merge_best_of_cta(argmax.search_tokens<false>(tokens.begin, tokens.end).best);
}

__device__ __forceinline__ split_tokens make_whole_range(const gumbel_rule_params &p)
{
    split_tokens all(p, 0);
    all.end = (int)p.proposal.target.end_token;
    return all;
}

/* Whether a node is drawn from the lists of its splits. */
__device__ __forceinline__ bool is_listed(const gumbel_rule_params &p, const gumbel_rule_node &w)
{
    return p.proposal.dots && w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* Stores the argmax of node j in one split of its row. */
__device__ __forceinline__ void store_split_argmax(const gumbel_rule_params &p,
                                                   const gumbel_chain &c, int32_t j, bool residual,
                                                   int64_t split)
{
    const gumbel_contender best =
        find_argmax(node_argmax::from_chain(p, c, j, residual), split_tokens(p, split));
    if (threadIdx.x == 0)
        p.contenders[(c.first + j) * p.splits + split] = best;
}

/* A result that another CTA wrote. */
__device__ __forceinline__ gumbel_contender fetch_contender(const gumbel_contender *from)
{
    return {__ldcg(&from->id), __ldcg(&from->score), __ldcg(&from->logprob)};
}

/* Sets the token that node j emits from the results of its splits, by a warp. */
__device__ void finish_node(const gumbel_rule_params &p, const gumbel_chain &c, int32_t j)
{
    const gumbel_contender *from = p.contenders + (c.first + j) * p.splits;
    gumbel_contender best = gumbel_contender_none();
    for (int i = threadIdx.x % 32; i < p.splits; i += 32) {
        const gumbel_contender next = fetch_contender(&from[i]);
        gumbel_contender_merge(&best, &next);
    }
    best = merge_best_of_warp(best);
    if (threadIdx.x % 32 != 0)
        return;
    if (p.proposal.rule_nodes[c.first + j].verdict == GUMBEL_VERDICT_DRAW)
        gumbel_chain_emit(&c, shared_draft_nodes(), j, &best);
    else if (best.id >= 0)
        gumbel_chain_replace(&c, shared_draft_nodes(), j, &best);
    else
        draft_state().redraw_node = j;
}

/* Draws node j from the target. If rounding leaves no max(r p - q, 0), then p equals q, and the
 * target's draw is exact. One CTA does it, since it is rare. */
__device__ __noinline__ void draw_from_target(const gumbel_rule_params &p, const gumbel_chain &c,
                                              int32_t j)
{
    const gumbel_contender best =
        find_argmax(node_argmax::from_chain(p, c, j, false), make_whole_range(p));
    if (threadIdx.x == 0)
        gumbel_chain_replace(&c, shared_draft_nodes(), j, &best);
    __syncthreads();
}

/* A key that orders by score, then by id; 0 for none. */
__device__ __forceinline__ uint64_t order_key(float score, int32_t id)
{
    return id < 0 ? 0 : (uint64_t)ordered_bits(score + 0.0f) << 32 | ~(uint32_t)id;
}

/* Returns to all lanes the best token after *after, in the order of order_key(), of the lists that
 * this warp reads; *after becomes its key. */
__device__ __forceinline__ gumbel_contender find_next_listed(const gumbel_short_list *lists,
                                                             int count, uint64_t *after)
{
    uint64_t best_key = 0;
    int at = 0;
    for (int i = threadIdx.x; i < count * GUMBEL_SHORT_LIST_TOKENS; i += kDraftThreads) {
        const gumbel_contender *next =
            &lists[i / GUMBEL_SHORT_LIST_TOKENS].of[i % GUMBEL_SHORT_LIST_TOKENS];
        const uint64_t key = order_key(__ldcg(&next->score), __ldcg(&next->id));
        if (key > best_key && key < *after) {
            best_key = key;
            at = i;
        }
    }
    const uint32_t high = __reduce_max_sync(~0u, (uint32_t)(best_key >> 32));
    const uint32_t low = __reduce_max_sync(~0u, best_key >> 32 == high ? (uint32_t)best_key : 0u);
    *after = (uint64_t)high << 32 | low;
    at = __shfl_sync(~0u, at, __ffs(__ballot_sync(~0u, best_key == *after)) - 1);
    return *after ? fetch_contender(
                        &lists[at / GUMBEL_SHORT_LIST_TOKENS].of[at % GUMBEL_SHORT_LIST_TOKENS])
                  : gumbel_contender_none();
}

/* Each warp offers the tokens of the lists that it reads, best first, until no other can reach the
 * best score. Returns the warp's best to all lanes. */
__device__ __forceinline__ gumbel_contender offer_listed(const gumbel_rule_params &p, int64_t b,
                                                         const gumbel_short_list *lists, int count,
                                                         uint32_t *best_score)
{
    gumbel_contender best = gumbel_contender_none();
    uint64_t after = ~(uint64_t)0;
    while (true) {
        const gumbel_contender next = find_next_listed(lists, count, &after);
        if (next.id < 0 || next.score < read_best_score(best_score))
            return best;
        gumbel_contender_offer_residual(&best, next.id, next.score, next.logprob,
                                        draft_logprob(p, b, next.id), 1.0f);
        raise_best_score(best_score, best.score);
    }
}

/* Searches the token range of each list that omits tokens which can reach the best score. Few draws
 * need this, and then usually for one list. */
__device__ __forceinline__ void offer_unlisted(const gumbel_rule_params &p,
                                               const node_argmax &argmax,
                                               const gumbel_short_list *lists, int count,
                                               uint32_t *best_score, gumbel_contender *best)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int first = warp; first < count; first += kDraftThreads) {
        const int lane_list = first + kDraftWarps * lane;
        const float bound = lane_list < count ? __ldcg(&lists[lane_list].bound) : -INFINITY;
        const float before = read_best_score(best_score);
#pragma unroll 1
        for (uint32_t pending = __ballot_sync(~0u, bound > -INFINITY && bound >= before); pending;
             pending &= pending - 1) {
            const int list = first + kDraftWarps * (__ffs(pending) - 1);
            const split_tokens tokens =
                find_warp_tokens(split_tokens(p, list / kDraftWarps), list % kDraftWarps);
            const gumbel_contender found =
                argmax_above(argmax, tokens.begin, tokens.end, best_score);
            gumbel_contender_merge(best, &found);
        }
    }
}

/* Draws node j from max(p - q, 0) by the lists of its splits. */
__device__ __noinline__ void draw_from_lists(const gumbel_rule_params &p, const gumbel_chain &c,
                                             int32_t j)
{
    const int count = p.splits * kDraftWarps;
    const gumbel_short_list *lists = p.lists + c.r * count;
    uint32_t *best_score = &draft_state().best_score;
    if (threadIdx.x == 0)
        *best_score = ordered_bits(-INFINITY);
    __syncthreads();
    gumbel_contender best = offer_listed(p, c.first + j, lists, count, best_score);
    __syncthreads();
    offer_unlisted(p, node_argmax::from_chain(p, c, j, true), lists, count, best_score, &best);
    best = merge_best_of_cta(best);
    if (threadIdx.x == 0 && best.id >= 0)
        gumbel_chain_replace(&c, shared_draft_nodes(), j, &best);
    else if (threadIdx.x == 0)
        draft_state().redraw_node = j;
    __syncthreads();
}

/* Emits tokens and walks, after all splits of the request. */
__device__ gumbel_walk_result finish_chain(const gumbel_rule_params &p, const gumbel_chain &c,
                                           const gumbel_residual_nodes &residual_nodes)
{
    const gumbel_verification &v = p.verification;
    gumbel_node *nodes = shared_draft_nodes();
    const gumbel_rule_node *rule_nodes = p.proposal.rule_nodes + c.first;
    gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_DRAFT);
    const gumbel_span span = {c.first, c.count, 1};
    if (threadIdx.x == 0)
        draft_state().redraw_node = -1;
    read_undrawn(v, span, nodes, kDraftThreads);
    if (__syncthreads_or(!add_draws(v, c.r, span, nodes, kDraftThreads)))
        return w;
    for (int32_t j = threadIdx.x; j < c.count; j += kDraftThreads)
        if (rule_nodes[j].verdict == GUMBEL_VERDICT_DRAFT)
            gumbel_chain_accept(&c, nodes, j);
    for (int32_t j = residual_nodes.first + threadIdx.x / 32; j < residual_nodes.end;
         j += kDraftWarps)
        if (is_drawn(rule_nodes[j]) && !is_listed(p, rule_nodes[j]))
            finish_node(p, c, j);
    __syncthreads();
    /* No walk passes a node with a residual. */
    if (residual_nodes.end > 0 && is_listed(p, rule_nodes[residual_nodes.end - 1]))
        draw_from_lists(p, c, residual_nodes.end - 1);
    if (draft_state().redraw_node >= 0)
        draw_from_target(p, c, draft_state().redraw_node);
    if (threadIdx.x == 0)
        w = gumbel_draft_walk(&v, c.r, c.first, nodes, c.count);
    return w;
}

} // namespace

#endif

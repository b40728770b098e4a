/* SPDX-License-Identifier: Apache-2.0
 *
 * The Gumbel argmax after a node: the target's own draw, or a draw from the residual max(r p - q,
 * 0). A token's score in the residual draw is at most its score by p. Therefore both draws skip a
 * token whose block's noise cannot reach the best score so far, and read no q of it. If each q
 * costs a product with the draft's head, a draw by p first lists the best tokens; the best of these
 * by max(p - q, 0) is usually the winner. argmax_above() searches the other tokens that may win.
 */
#ifndef GUMBEL_CUDA_NODE_ARGMAX_CUH
#define GUMBEL_CUDA_NODE_ARGMAX_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/step/model_row.cuh"

namespace
{

constexpr int kTurn = 128; /* tokens of a warp's turn */
static_assert(kQuads * kTurn == kStep && kTurns % kQuads == 0, "four turns are a step");

/* The CTA's best score by max(p - q, 0) so far, equal in all lanes of a warp. */
__device__ __forceinline__ float read_best_score(uint32_t *best_score)
{
    const uint32_t read = threadIdx.x % 32 == 0 ? atomicMax(best_score, 0u) : 0;
    return ordered_float(__shfl_sync(~0u, read, 0));
}

__device__ __forceinline__ void raise_best_score(uint32_t *best_score, float score)
{
    if (threadIdx.x % 32 == 0)
        atomicMax(best_score, ordered_bits(score + 0.0f));
    __syncwarp();
}

/* The GUMBEL_SHORT_LIST_TOKENS-th largest score of 32 lanes; -inf if fewer lanes have one. */
__device__ __forceinline__ float least_of_listed(float score)
{
    const uint32_t none = ordered_bits(-INFINITY);
    uint32_t key = ordered_bits(score + 0.0f), largest = none;
#pragma unroll
    for (int i = 0; i < GUMBEL_SHORT_LIST_TOKENS; i++) {
        largest = __reduce_max_sync(~0u, key);
        const uint32_t owners = __ballot_sync(~0u, key == largest);
        if ((int)threadIdx.x % 32 == __ffs(owners) - 1)
            key = none;
    }
    return ordered_float(largest);
}

/* A lane's result: its best token; when listing, also its second best, and an upper bound of the
 * scores of its other tokens. */
struct lane_found {
    gumbel_contender best, next;
    float others;

    static __device__ __forceinline__ lane_found empty()
    {
        return {gumbel_contender_none(), gumbel_contender_none(), -INFINITY};
    }

    /* Adds a token, unless it is the best already. */
    __device__ __forceinline__ void add(gumbel_contender own)
    {
        const gumbel_contender best_before = best, next_before = next;
        gumbel_contender_merge(&best, &own);
        if (best.id == own.id)
            own = best_before;
        gumbel_contender_merge(&next, &own);
        others = fmaxf(others, next.id == own.id ? next_before.score : own.score);
    }
};

struct node_argmax {
    const gumbel_rule_params *p;
    int64_t b;
    model_row target, draft;
    gumbel_stream stream;
    bool greedy, residual;
    float rest, target_lse, draft_lse;

    static __device__ __forceinline__ node_argmax from_chain(const gumbel_rule_params &p,
                                                             const gumbel_chain &c, int32_t j,
                                                             bool residual)
    {
        const int64_t b = c.first + j;
        const gumbel_row row = gumbel_problem_row(&p.proposal.target, b);
        node_argmax argmax;
        argmax.p = &p;
        argmax.b = b;
        argmax.target = model_row::from_params(p, false, b);
        argmax.draft = model_row::from_params(p, true, b);
        argmax.greedy = row.greedy;
        argmax.residual = residual;
        argmax.stream = residual ? gumbel_residual_stream(&c, j) : row.stream;
        argmax.rest = p.proposal.rule_nodes[b].rest;
        argmax.target_lse = p.proposal.target_lse[b];
        argmax.draft_lse = p.proposal.draft_lse[b];
        return argmax;
    }

    /* A token with its score by p. */
    __device__ __forceinline__ gumbel_contender make_contender(int token, float z) const
    {
        return {token, z + draw_token_noise_noinline(stream, (uint32_t)token),
                gumbel_logprob_of(z, target_lse)};
    }

    /* Scores a token and adds it to the lane's result. */
    template <bool lists>
    __device__ __noinline__ void score(lane_found *found, int token, float z) const
    {
        const gumbel_contender own = make_contender(token, z);
        if (lists)
            found->add(own);
        else if (residual)
            gumbel_contender_offer_residual(&found->best, token, own.score, own.logprob,
                                            gumbel_logprob_of(draft.z_of_token(token), draft_lse),
                                            rest);
        else
            gumbel_contender_merge(&found->best, &own);
    }

    /* Draws from the four turns of a step; the first is turn `turn` of `blocks`. */
    template <bool lists>
    __device__ __forceinline__ void draw_step(lane_found *found, const draw_philox &philox,
                                              const turn_blocks &blocks, int turn, int token,
                                              const four (&z)[kQuads], float threshold) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const float reach = blocks.reach_of(turn + k);
            const int first = token + kTurn * k;
#pragma unroll 1
            for (uint32_t may = find_winners(philox, (uint32_t)first, z[k].v, reach, threshold);
                 may; may &= may - 1) {
                const int i = __ffs(may) - 1;
                score<lists>(found, first + i, draw_select_of_four(z[k].v, i));
            }
        }
    }

    /* Scores J, the token with the most noise of a lane's block, which is likely to win. */
    template <bool lists>
    __device__ __forceinline__ void score_likely(lane_found *found, const model_row &row,
                                                 const turn_blocks &blocks, int end) const
    {
        const int likely = (int)blocks.most_likely();
        const float z = likely < end ? row.z_of_token(likely) : -INFINITY;
        if (z > -INFINITY)
            score<lists>(found, likely, z);
    }

    /* A warp's draw from the tokens [begin, end), `begin` a multiple of 64; returns each lane's
     * result. With `lists`, no skipped token has a larger score than the last listed one. */
    template <bool lists>
    __device__ __forceinline__ lane_found search_tokens(int begin, int end) const
    {
        const draw_philox philox = draw_philox_of(stream);
        const model_row row = target; /* in registers, since score() takes the address of the
                                       * member */
        const int lane = threadIdx.x % 32;
        lane_found found = lane_found::empty();
        turn_blocks blocks = {};
        float threshold = -INFINITY;
        int turn = 0, seen = -1;
        for (int base = begin; base < end; base += kStep, turn += kQuads) {
            if (!greedy && turn % kTurns == 0) {
                blocks = turn_blocks::from_philox(philox, (uint32_t)base, kTurn);
                if (lists) { /* only for the threshold: draw_step() adds these tokens again */
                    lane_found likely = lane_found::empty();
                    score_likely<lists>(&likely, row, blocks, end);
                    threshold = fmaxf(threshold, least_of_listed(likely.best.score));
                } else {
                    score_likely<lists>(&found, row, blocks, end);
                }
            }
            four z[kQuads];
            row.load<kTurn>(base + 4 * lane, z);
            if (greedy) {
#pragma unroll
                for (int i = 0; i < 4 * kQuads; i++)
                    gumbel_contender_offer(&found.best, base + 4 * lane + kTurn * (i / 4) + i % 4,
                                           z[i / 4].v[i % 4],
                                           gumbel_logprob_of(z[i / 4].v[i % 4], target_lse));
                continue;
            }
            if (!lists) {
                threshold = fmaxf(threshold, draw_score_bound_of_warp(found.best.score));
            } else if (__any_sync(~0u, found.best.id != seen)) {
                threshold = fmaxf(threshold, least_of_listed(found.best.score));
                seen = found.best.id;
            }
            draw_step<lists>(&found, philox, blocks, turn, base + 4 * lane, z,
                             draw_threshold(threshold));
        }
        return found;
    }
};

/* Returns the best of a warp's contenders to all lanes. */
__device__ __forceinline__ gumbel_contender merge_best_of_warp(const gumbel_contender &lane_best)
{
    const draw_winner best =
        draw_winner_of_warp({lane_best.score, lane_best.logprob, lane_best.id});
    return {best.id, best.score, best.z};
}

/* A warp's draw by p that lists its best tokens; lane 0 writes the list. */
__device__ __forceinline__ void list_best(const node_argmax &argmax, int begin, int end,
                                          gumbel_short_list *list)
{
    lane_found found = argmax.search_tokens<true>(begin, end);
    gumbel_contender listed = found.best;
#pragma unroll 1
    for (int i = 0; i < GUMBEL_SHORT_LIST_TOKENS; i++) {
        listed = merge_best_of_warp(found.best);
        if (found.best.id == listed.id) {
            found.best = found.next;
            found.next = gumbel_contender_none();
        }
        if (threadIdx.x % 32 == 0)
            list->of[i] = listed;
    }
    const float bound = ordered_float(__reduce_max_sync(~0u, ordered_bits(found.others)));
    if (threadIdx.x % 32 == 0)
        list->bound = fmaxf(bound, listed.score);
}

/* Offers the lanes' tokens that reach the best score, one after the other, by the whole warp. */
__device__ __forceinline__ void multiply_above(const node_argmax &argmax,
                                               const gumbel_contender &own, uint32_t *best_score,
                                               gumbel_contender *best)
{
    const float before = read_best_score(best_score);
#pragma unroll 1
    for (uint32_t pending = __ballot_sync(~0u, own.id >= 0 && own.score >= before); pending;
         pending &= pending - 1) {
        const int lane = __ffs(pending) - 1;
        const int token = __shfl_sync(~0u, own.id, lane);
        const float score = __shfl_sync(~0u, own.score, lane);
        const float logprob = __shfl_sync(~0u, own.logprob, lane);
        gumbel_contender_offer_residual(best, token, score, logprob,
                                        draft_logprob(*argmax.p, argmax.b, token), 1.0f);
        raise_best_score(best_score, best->score);
    }
}

/* Returns to all lanes of a warp the best token by max(p - q, 0) among the tokens in [begin, end)
 * that reach *best_score; `begin` is a multiple of 64. Each token whose score by p reaches it costs
 * a product with the draft's head, so *best_score should be high from the start. */
__device__ __noinline__ gumbel_contender argmax_above(const node_argmax &argmax, int begin, int end,
                                                      uint32_t *best_score)
{
    const draw_philox philox = draw_philox_of(argmax.stream);
    const model_row row = argmax.target;
    const int lane = threadIdx.x % 32;
    gumbel_contender best = gumbel_contender_none();
    turn_blocks blocks = {};
    int turn = 0;
    for (int base = begin; base < end; base += kStep, turn += kQuads) {
        if (turn % kTurns == 0)
            blocks = turn_blocks::from_philox(philox, (uint32_t)base, kTurn);
        four z[kQuads];
        row.load<kTurn>(base + 4 * lane, z);
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const int first = base + 4 * lane + kTurn * k;
            uint32_t may = find_winners(philox, (uint32_t)first, z[k].v, blocks.reach_of(turn + k),
                                        draw_threshold(read_best_score(best_score)));
#pragma unroll 1
            for (; __any_sync(~0u, may != 0); may &= may - 1) {
                gumbel_contender own = gumbel_contender_none();
                if (may) {
                    const int i = __ffs(may) - 1;
                    own = argmax.make_contender(first + i, draw_select_of_four(z[k].v, i));
                }
                multiply_above(argmax, own, best_score, &best);
            }
        }
    }
    return best;
}

} // namespace

#endif

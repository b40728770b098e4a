/* SPDX-License-Identifier: Apache-2.0
 *
 * A race behind a node: the target's own draw, or one by max(r p - q, 0). A token's score in the
 * second is at most its score in the first, so that in both whoever cannot come to the best score
 * so far by the noise of its block is passed over, and no q of it is read. Where the draft's head
 * has to be multiplied for each q, a race lists the best by p instead, whose best by max(p - q, 0)
 * is mostly the best of all; where it may not be, a race above that finds who else can be.
 */
#ifndef GUMBEL_CUDA_DRAFT_RACE_CUH
#define GUMBEL_CUDA_DRAFT_RACE_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/step/weighed_row.cuh"

namespace
{

constexpr int kTurn = 128; /* tokens of a warp's turn */
static_assert(kQuads * kTurn == kStep && kTurns % kQuads == 0, "four turns are a step");

/* The best score by max(p - q, 0) that a CTA has found so far, of which a warp's lanes all get what
 * one of them has read. */
__device__ __forceinline__ float read_floor(uint32_t *floor)
{
    const uint32_t read = threadIdx.x % 32 == 0 ? atomicMax(floor, 0u) : 0;
    return ordered_float(__shfl_sync(~0u, read, 0));
}

__device__ __forceinline__ void raise_floor(uint32_t *floor, float score)
{
    if (threadIdx.x % 32 == 0)
        atomicMax(floor, ordered_bits(score + 0.0f));
    __syncwarp();
}

/* The GUMBEL_LISTED-th largest score of 32 lanes; -inf where fewer have one. */
__device__ __forceinline__ float least_of_listed(float score)
{
    const uint32_t none = ordered_bits(-INFINITY);
    uint32_t key = ordered_bits(score + 0.0f), largest = none;
#pragma unroll
    for (int i = 0; i < GUMBEL_LISTED; i++) {
        largest = __reduce_max_sync(~0u, key);
        const uint32_t owners = __ballot_sync(~0u, key == largest);
        if ((int)threadIdx.x % 32 == __ffs(owners) - 1)
            key = none;
    }
    return ordered_float(largest);
}

/* What a lane has found: its best and, in a race that lists, its second, and what no other token
 * that it has scored is above. */
struct lane_found {
    gumbel_contender best, next;
    float others;

    static __device__ __forceinline__ lane_found none()
    {
        return {gumbel_contender_none(), gumbel_contender_none(), -INFINITY};
    }

    /* Put in a token, once. */
    __device__ __forceinline__ void list(gumbel_contender own)
    {
        const gumbel_contender best_before = best, next_before = next;
        gumbel_contend_all(&best, &own);
        if (best.id == own.id)
            own = best_before;
        gumbel_contend_all(&next, &own);
        others = fmaxf(others, next.id == own.id ? next_before.score : own.score);
    }
};

struct draft_race {
    const gumbel_weighing *p;
    int64_t b;
    weighed_row target, draft;
    gumbel_stream stream;
    bool greedy, residual;
    float rest, target_lse, draft_lse;

    static __device__ __forceinline__ draft_race of(const gumbel_weighing &p, const gumbel_chain &c,
                                                    int32_t j, bool residual)
    {
        const int64_t b = c.first + j;
        const gumbel_row row = gumbel_problem_row(&p.by.target, b);
        draft_race race;
        race.p = &p;
        race.b = b;
        race.target = weighed_row::of(p, false, b);
        race.draft = weighed_row::of(p, true, b);
        race.greedy = row.greedy;
        race.residual = residual;
        race.stream = residual ? gumbel_residual_stream(&c, j) : row.stream;
        race.rest = p.by.weighed[b].rest;
        race.target_lse = p.by.target_lse[b];
        race.draft_lse = p.by.draft_lse[b];
        return race;
    }

    /* Its score by p. */
    __device__ __forceinline__ gumbel_contender contender(int token, float z) const
    {
        return {token, z + draw_token_noise_noinline(stream, (uint32_t)token),
                gumbel_logprob_of(z, target_lse)};
    }

    /* Offer a token. */
    template <bool lists>
    __device__ __noinline__ void score(lane_found *found, int token, float z) const
    {
        const gumbel_contender own = contender(token, z);
        if (lists)
            found->list(own);
        else if (residual)
            gumbel_offer(&found->best, token, own.score, own.logprob,
                         gumbel_logprob_of(draft.at(token), draft_lse), rest);
        else
            gumbel_contend_all(&found->best, &own);
    }

    /* The four turns of a step, whose first is the `turn`-th of those whose blocks are known. */
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

    /* Score the token of a lane's block that has the most noise, and may have the best score. */
    template <bool lists>
    __device__ __forceinline__ void score_likely(lane_found *found, const weighed_row &row,
                                                 const turn_blocks &blocks, int end) const
    {
        const int likely = (int)blocks.most_likely();
        const float z = likely < end ? row.at(likely) : -INFINITY;
        if (z > -INFINITY)
            score<lists>(found, likely, z);
    }

    /* A warp's race among the tokens [begin, end), from a multiple of 64 on: what each lane has
     * found. What a race that `lists` passes over is not above the last that it lists. */
    template <bool lists> __device__ __forceinline__ lane_found run(int begin, int end) const
    {
        const draw_philox philox = draw_philox_of(stream);
        const weighed_row row = target; /* in registers, as score() has the address of the other */
        const int lane = threadIdx.x % 32;
        lane_found found = lane_found::none();
        turn_blocks blocks = {};
        float floor = -INFINITY;
        int turn = 0, seen = -1;
        for (int base = begin; base < end; base += kStep, turn += kQuads) {
            if (!greedy && turn % kTurns == 0) {
                blocks = turn_blocks::from_philox(philox, (uint32_t)base, kTurn);
                if (lists) { /* they are met again, by lanes that may list them */
                    lane_found likely = lane_found::none();
                    score_likely<lists>(&likely, row, blocks, end);
                    floor = fmaxf(floor, least_of_listed(likely.best.score));
                } else {
                    score_likely<lists>(&found, row, blocks, end);
                }
            }
            four z[kQuads];
            row.load<kTurn>(base + 4 * lane, z);
            if (greedy) {
#pragma unroll
                for (int i = 0; i < 4 * kQuads; i++)
                    gumbel_contend(&found.best, base + 4 * lane + kTurn * (i / 4) + i % 4,
                                   z[i / 4].v[i % 4],
                                   gumbel_logprob_of(z[i / 4].v[i % 4], target_lse));
                continue;
            }
            if (!lists) {
                floor = fmaxf(floor, draw_score_bound_of_warp(found.best.score));
            } else if (__any_sync(~0u, found.best.id != seen)) {
                floor = fmaxf(floor, least_of_listed(found.best.score));
                seen = found.best.id;
            }
            draw_step<lists>(&found, philox, blocks, turn, base + 4 * lane, z,
                             draw_threshold(floor));
        }
        return found;
    }
};

/* The best of a warp's, for all lanes. */
__device__ __forceinline__ gumbel_contender best_of_warp(const gumbel_contender &own)
{
    const draw_winner best = draw_winner_of_warp({own.score, own.logprob, own.id});
    return {best.id, best.score, best.z};
}

/* A warp's race, which lists: the list, by lane 0. */
__device__ __forceinline__ void list_best(const draft_race &race, int begin, int end,
                                          gumbel_short_list *list)
{
    lane_found found = race.run<true>(begin, end);
    gumbel_contender listed = found.best;
#pragma unroll 1
    for (int i = 0; i < GUMBEL_LISTED; i++) {
        listed = best_of_warp(found.best);
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

/* Offer the lanes' tokens that come to the floor, one after the other, by all of a warp. */
__device__ __forceinline__ void multiply_above(const draft_race &race, const gumbel_contender &own,
                                               uint32_t *floor, gumbel_contender *best)
{
    const float before = read_floor(floor);
#pragma unroll 1
    for (uint32_t left = __ballot_sync(~0u, own.id >= 0 && own.score >= before); left;
         left &= left - 1) {
        const int lane = __ffs(left) - 1;
        const int token = __shfl_sync(~0u, own.id, lane);
        const float score = __shfl_sync(~0u, own.score, lane);
        const float logprob = __shfl_sync(~0u, own.logprob, lane);
        gumbel_offer(best, token, score, logprob, draft_logprob(*race.p, race.b, token), 1.0f);
        raise_floor(floor, best->score);
    }
}

/* The best by max(p - q, 0) that a warp finds among the tokens [begin, end), from a multiple of 64
 * on, of those that come to *floor, for all lanes. A product of the draft's head is made of each
 * token that does by p, so that a floor is asked for that leaves few. */
__device__ __noinline__ gumbel_contender race_above(const draft_race &race, int begin, int end,
                                                    uint32_t *floor)
{
    const draw_philox philox = draw_philox_of(race.stream);
    const weighed_row row = race.target;
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
                                        draw_threshold(read_floor(floor)));
#pragma unroll 1
            for (; __any_sync(~0u, may != 0); may &= may - 1) {
                gumbel_contender own = gumbel_contender_none();
                if (may) {
                    const int i = __ffs(may) - 1;
                    own = race.contender(first + i, draw_select_of_four(z[k].v, i));
                }
                multiply_above(race, own, floor, &best);
            }
        }
    }
    return best;
}

} // namespace

#endif

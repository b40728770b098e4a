/* SPDX-License-Identifier: Apache-2.0
 *
 * A race behind a node: the target's own draw, or one by max(r p - q, 0). A token's score in the
 * second is at most its score in the first, so that in both whoever cannot come to the best score
 * so far by the noise of its block is passed over, and no q of it is read. Where the draft's head
 * has to be multiplied for each q, a race lists the best by p instead, whose best by max(p - q, 0)
 * is mostly the best of all.
 */
#ifndef GUMBEL_CUDA_DRAFT_RACE_CUH
#define GUMBEL_CUDA_DRAFT_RACE_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/step/weighed_row.cuh"

namespace
{

constexpr int kTurn = 128; /* tokens of a warp's turn */
static_assert(kQuads * kTurn == kStep && kTurns % kQuads == 0, "four turns are a step");

/* Every lanes-th product of two rows of one type, from `lane` on: eight are asked for at once. */
template <gumbel_dtype type>
__device__ __forceinline__ float dot_of_rows(const gumbel_tensor &a, int64_t from_a,
                                             const gumbel_tensor &b, int64_t from_b, int lane,
                                             int lanes)
{
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t k = lane; k < a.cols; k += lanes)
        sum = fmaf(widen_element(a.data, type, from_a + k), widen_element(b.data, type, from_b + k),
                   sum);
    return sum;
}

/* What one of so many lanes adds to the draft's logit of a token, beside its bias. */
__device__ __forceinline__ float dot_of_lane(const gumbel_problem &q, int64_t b, int token,
                                             int lane, int lanes)
{
    const int64_t hidden = b * q.hidden.stride;
    const int64_t weight = (token - q.first_token) * q.weight.stride;
    float sum = 0.0f;
    if (q.hidden.dtype == GUMBEL_BFLOAT16 && q.weight.dtype == GUMBEL_BFLOAT16)
        return dot_of_rows<GUMBEL_BFLOAT16>(q.hidden, hidden, q.weight, weight, lane, lanes);
    if (q.hidden.dtype == GUMBEL_FLOAT16 && q.weight.dtype == GUMBEL_FLOAT16)
        return dot_of_rows<GUMBEL_FLOAT16>(q.hidden, hidden, q.weight, weight, lane, lanes);
    for (int64_t k = lane; k < q.hidden_size; k += lanes)
        sum = fmaf(widen_element(q.hidden.data, q.hidden.dtype, hidden + k),
                   widen_element(q.weight.data, q.weight.dtype, weight + k), sum);
    return sum;
}

/* z of a token by that sum. */
__device__ __forceinline__ float z_of_dot(const gumbel_weighing &p, int64_t b, int token, float sum)
{
    const gumbel_problem &q = p.by.draft;
    if (q.bias.data)
        sum += widen_element(q.bias.data, q.bias.dtype, token - q.first_token);
    return gumbel_transform(sum, q.scale, q.soft_cap, p.inverse_caps[1],
                            gumbel_problem_row(&q, b).inverse_temperature);
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

    /* Offer a token: in a race that lists, *second is what this lane has seen beside its best. */
    __device__ __noinline__ void score(gumbel_contender *best, float *second, int token,
                                       float z) const
    {
        const float s = z + draw_noise_of_token(stream, (uint32_t)token);
        const float log_p = gumbel_logprob_of(z, target_lse);
        if (residual) {
            const float other =
                p->by.dots ? z_of_dot(*p, b, token, dot_of_lane(p->by.draft, b, token, 0, 1))
                           : draft.at(token);
            gumbel_offer(best, token, s, log_p, gumbel_logprob_of(other, draft_lse), rest);
        } else if (token != best->id) {
            *second = fmaxf(*second, fminf(s, best->score));
            gumbel_contend(best, token, s, log_p);
        }
    }

    /* The four turns of a step, whose first is the `turn`-th of those whose blocks are known. */
    __device__ __forceinline__ void draw_step(gumbel_contender *best, float *second,
                                              const draw_philox &philox, const turn_blocks &blocks,
                                              int turn, int token, const four (&z)[kQuads],
                                              float threshold) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const float reach = blocks.reach_of(turn + k);
            const int first = token + kTurn * k;
#pragma unroll 1
            for (uint32_t may = find_winners(philox, (uint32_t)first, z[k].v, reach, threshold);
                 may; may &= may - 1) {
                const int i = __ffs(may) - 1;
                score(best, second, first + i, draw_choose(z[k].v, i));
            }
        }
    }

    /* Score the token of a lane's block that has the most noise, and may have the best score. */
    __device__ __forceinline__ void score_likely(gumbel_contender *best, float *second,
                                                 const weighed_row &row, const turn_blocks &blocks,
                                                 int end) const
    {
        const int likely = (int)blocks.most_likely();
        const float z = likely < end ? row.at(likely) : -INFINITY;
        if (z > -INFINITY)
            score(best, second, likely, z);
    }

    /* A warp's race among the tokens [begin, end), from a multiple of 64 on: each lane's best. Of a
     * race that `lists`, what is passed over is not above all that it lists and *second. */
    template <bool lists>
    __device__ __forceinline__ gumbel_contender run(int begin, int end, float *second) const
    {
        const draw_philox philox = draw_philox_of(stream);
        const weighed_row row = target; /* in registers, as score() has the address of the other */
        const int lane = threadIdx.x % 32;
        gumbel_contender best = gumbel_contender_none();
        turn_blocks blocks = {};
        float floor = -INFINITY;
        int turn = 0;
        for (int base = begin; base < end; base += kStep, turn += kQuads) {
            if (!greedy && turn % kTurns == 0) {
                blocks = turn_blocks::of(philox, (uint32_t)base, kTurn);
                if (lists) { /* they are met again, by lanes that may list them */
                    gumbel_contender likely = gumbel_contender_none();
                    float other = -INFINITY;
                    score_likely(&likely, &other, row, blocks, end);
                    floor = fmaxf(floor, least_of_listed(likely.score));
                } else {
                    score_likely(&best, second, row, blocks, end);
                }
            }
            four z[kQuads];
            row.load<kTurn>(base + 4 * lane, z);
            if (greedy) {
#pragma unroll
                for (int i = 0; i < 4 * kQuads; i++)
                    gumbel_contend(&best, base + 4 * lane + kTurn * (i / 4) + i % 4,
                                   z[i / 4].v[i % 4],
                                   gumbel_logprob_of(z[i / 4].v[i % 4], target_lse));
                continue;
            }
            floor =
                fmaxf(floor, lists ? least_of_listed(best.score) : draw_floor_of_warp(best.score));
            draw_step(&best, second, philox, blocks, turn, base + 4 * lane, z,
                      draw_threshold(floor));
        }
        *second = fmaxf(*second, floor);
        return best;
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
    float second = -INFINITY;
    gumbel_contender own = race.run<true>(begin, end, &second), listed = own;
#pragma unroll 1
    for (int i = 0; i < GUMBEL_LISTED; i++) {
        listed = best_of_warp(own);
        if (own.id == listed.id)
            own = gumbel_contender_none();
        if (threadIdx.x % 32 == 0)
            list->of[i] = listed;
    }
    const float bound = ordered_float(__reduce_max_sync(~0u, ordered_bits(second)));
    if (threadIdx.x % 32 == 0)
        list->bound = fmaxf(bound, listed.score);
}

} // namespace

#endif

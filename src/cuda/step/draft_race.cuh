/* SPDX-License-Identifier: Apache-2.0
 *
 * A race behind a node: the target's own draw, or one by max(r p - q, 0). A token's score in the
 * second is at most its score in the first, so that in both whoever cannot come to the best score
 * so far by the noise of its block is passed over, and no q of it is read.
 */
#ifndef GUMBEL_CUDA_DRAFT_RACE_CUH
#define GUMBEL_CUDA_DRAFT_RACE_CUH

#include "cuda/common/turn_blocks.cuh"
#include "cuda/step/weighed_row.cuh"

namespace
{

constexpr int kTurn = 128; /* tokens of a warp's turn */
static_assert(kQuads * kTurn == kStep && kTurns % kQuads == 0, "four turns are a step");

struct draft_race {
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

    /* Offer a token whose score in a draw by p is s. */
    __device__ __forceinline__ void offer(gumbel_contender *best, int token, float z, float s) const
    {
        const float p = gumbel_logprob_of(z, target_lse);
        if (residual)
            gumbel_offer(best, token, s, p, gumbel_logprob_of(draft.at(token), draft_lse), rest);
        else
            gumbel_contend(best, token, s, p);
    }

    __device__ __noinline__ void score(gumbel_contender *best, int token, float z) const
    {
        offer(best, token, z, z + draw_noise_of_token(stream, (uint32_t)token));
    }

    /* The four turns of a step, whose first is the `turn`-th of those whose blocks are known. */
    __device__ __forceinline__ void draw_step(gumbel_contender *best, const draw_philox &philox,
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
                score(best, first + i, draw_choose(z[k].v, i));
            }
        }
    }

    /* A warp's race among the tokens [begin, end), from a multiple of 64 on: each lane's best. */
    __device__ __forceinline__ gumbel_contender run(int begin, int end) const
    {
        const draw_philox philox = draw_philox_of(stream);
        const weighed_row row = target; /* in registers, as score() has the address of the other */
        const int lane = threadIdx.x % 32;
        gumbel_contender best = gumbel_contender_none();
        turn_blocks blocks = {};
        int turn = 0;
        for (int base = begin; base < end; base += kStep, turn += kQuads) {
            if (!greedy && turn % kTurns == 0) {
                blocks = turn_blocks::of(philox, (uint32_t)base, kTurn);
                const int likely = (int)blocks.most_likely();
                const float z = likely < end ? row.at(likely) : -INFINITY;
                if (z > -INFINITY)
                    score(&best, likely, z);
            }
            four z[kQuads];
            row.load<kTurn>(base + 4 * lane, z);
            if (greedy)
#pragma unroll
                for (int i = 0; i < 4 * kQuads; i++)
                    gumbel_contend(&best, base + 4 * lane + kTurn * (i / 4) + i % 4,
                                   z[i / 4].v[i % 4],
                                   gumbel_logprob_of(z[i / 4].v[i % 4], target_lse));
            else
                draw_step(&best, philox, blocks, turn, base + 4 * lane, z,
                          draw_threshold(draw_floor_of_warp(best.score)));
        }
        return best;
    }
};

/* The best of a warp's, for all lanes. */
__device__ __forceinline__ gumbel_contender best_of_warp(const gumbel_contender &own)
{
    const draw_winner best = draw_winner_of_warp({own.score, own.logprob, own.id});
    return {best.id, best.score, best.z};
}

} // namespace

#endif

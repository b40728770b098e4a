/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   serves rows with top_p alone, drawn before they are truncated (docs/maths.md, section 9).
 *        A plain draw has written the winner among all tokens. This winner, the pivot, is the row's
 *        token if the mass above it is less than top_p of all, as in 19 of 20 rows at 0.95.
 *        Otherwise no token at or below the pivot is kept, and the winner among the tokens above it
 *        is the next pivot: 1 - ln(top_p) rounds on average. The noise stays the same, so the token
 *        equals that of truncation followed by a draw. FlashInfer searches by pivots with fresh
 *        noise.
 * COST   reads B V elements once, with an exponential a token; 4 us for few rows. A further round
 *        takes 6 us: a draw and a sum from shared memory, each with a round trip to the
 *        second-level cache.
 * MAP p.splits CTAs a row, each with kSplitTokens of its tokens. A thread sums and draws from the
 *        quads that it has copied itself; only the J of blocks are read across threads. If the CTAs
 *        of a row do not run at the same time, they abandon it, and the first CTA serves the row
 *        alone (pivots_alone.cuh).
 * SMEM   the logits of the split, and 32 bytes of results a warp.
 * SYNC   in each step a CTA publishes its result and waits for the results of all other CTAs of its
 *        row (split_exchange.cuh); all reach the same decision. If a CTA waits in vain, the row is
 *        marked as abandoned.
 * NUMERICS  float sums relative to the pivot's mass; where these cannot decide (pivot.cuh), integer
 *        sums as in the other kernels. A float overflows if the pivot lies 88 below the largest:
 *        2^31 tokens that far below have less than 2^-24 of the mass, so the pivot is dropped.
 */
#include "cuda/truncated/pivots/pivots_alone.cuh"
#include "cuda/truncated/pivots/split_exchange.cuh"
#include "cuda/truncated/pivots/truncated_pivots.cuh"

namespace
{

/* Finds the token of a row by pivots; the first pivot is the winner among all tokens. Returns no
 * winner if the first pivot is kept, or if the row is abandoned. By all threads of all its CTAs. */
__device__ __forceinline__ draw_winner find_token(const cuda_truncated_params &p, int64_t b,
                                                  int64_t begin, pivot_row &row)
{
    const split_row &from = row;
    draw_winner winner = draw_winner_none();
    for (uint32_t step = 1;;) {
        const split_float_sums all = join_row(p, b, step++, sum_split(row));
        const pivot_verdict verdict = determine_pivot_verdict(row.rules, {0, all.above, all.all});
        bool stays = verdict == PIVOT_KEPT;
        if (verdict == PIVOT_UNSURE) {
            row.largest = all.largest;
            const split_exact_sums exact = join_row(p, b, step++, sum_split_exactly(row));
            stays = exact.above.value() < gumbel_nucleus_mass(row.rules.top_p, exact.all.value());
        }
        if (stays || split_memory().is_abandoned)
            return winner;
        const float likely = row.values.before ? NAN : row.pivot + logf(all.above) - kUnlikelyGap;
        const values_above above = {row.pivot};
        winner = join_row(p, b, step++, draw_from_split(from, above, begin, likely)).best;
        if (winner.score < likely)
            winner = join_row(p, b, step++, draw_from_split(from, above, begin, NAN)).best;
        if (split_memory().is_abandoned || winner.id < 0)
            return winner;
        row.pivot = row.values.before ? value_of_token(p.problem, row, b, winner.id) : winner.z;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kGroupThreads, CUDA_PIVOT_CTAS)
    gumbel_truncated_pivots(const __grid_constant__ cuda_truncated_params p)
{
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    const int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * kSplitTokens;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (threadIdx.x == 0) { /* by one thread: a later read may see the new token of an abandoned
                             * row */
        split_memory().is_abandoned = ptx_load_relaxed_8(&p.exchange[b]) != 0;
        split_memory().token = __ldcg(&p.output.tokens[b]);
    }
    pivot_row row = load_pivot_row(q, b); /* first, since loads queue behind the copies */
    __syncthreads();
    if (split_memory().token < 0 || !(row.rules.top_p < 1.0f)) /* no token, or no truncation */
        return;
    row.pivot = value_of_token(q, row, b, split_memory().token);
    load_split(q, b, begin);
    ptx_copy_async_wait<0>();
    draw_winner winner = find_token(p, b, begin, row);
    if (split_memory().is_abandoned) {
        if (threadIdx.x == 0)
            *(volatile uint64_t *)&p.exchange[b] = 1;
        if (split == 0)
            winner = find_token_alone(p, b, split_memory().token);
    }
    if (winner.id < 0 || split != 0 || threadIdx.x != 0)
        return;
    p.output.tokens[b] = winner.id;
    if (p.output.scores)
        p.output.scores[b] = winner.score;
}

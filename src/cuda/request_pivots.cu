/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   rows of which a top_p is all that is asked, drawn before they are cut (docs/maths.md,
 *        section 9): the winner among all tokens, which a plain draw has written, is the row's if
 *        what lies above it, its pivot, weighs less than top_p of all. That is so in 19 of 20 rows
 *        of 0.95. Else nothing at or below it stays; the winner above it is next, and so on: 1 -
 *        ln(top_p) rounds. The noise is the same each time, so the token is the one that a cut and
 *        then a draw give; a search by pivots with fresh noise is FlashInfer's.
 * COST   reads B V elements once, with an exponential a token; 4 us for few rows. A row that goes
 *        on takes 6 us more: a draw and a sum from shared memory, and a trip to the second-level
 *        cache and back for each of them.
 * MAP    p.parts CTAs a row, each with kHeld of its tokens. A thread looks at none but the quads
 *        that it has copied.
 * SMEM   the logits of the part, and what warps have found, 32 bytes each.
 * SYNC   each CTA of a row tells all others what it has found, and all come to the same end. Words
 *        carry the number of the row's step beside what they tell; the launch before has cleared
 *        them. They alternate: when a CTA tells of a step, all have told of the one before, and so
 *        have read what was told before that. All CTAs of a row must run at once: they have
 *        neighbouring numbers, and the GPU starts CTAs in order.
 * NUMERICS  sums of floats, relative to the pivot's mass; where these do not decide
 *        (cuda/pivot.cuh), the sums of integers by which rows are cut elsewhere. A float
 *        overflows where the pivot lies 88 below the largest: 2^31 tokens so far below weigh less
 *        than 2^-24 of all, so it goes.
 */
#include "cuda/request_pivots.cuh"

namespace
{

/* Words of a T, each of which is told beside the number of its step. */
template <class T> constexpr int words_of = sizeof(T) / sizeof(uint32_t);

/* Tell what this CTA has found in a step, by a warp. */
template <class T>
__device__ __forceinline__ void tell_part(uint64_t *told, uint32_t step, const T &own)
{
    uint32_t words[words_of<T>];
    memcpy(words, &own, sizeof own);
#pragma unroll
    for (int i = 0; i < words_of<T>; i++)
        if (threadIdx.x == i)
            *(volatile uint64_t *)&told[i] = (uint64_t)words[i] << 32 | step;
}

/* What a CTA of the row has found in a step, once it tells, by any thread. */
template <class T> __device__ __forceinline__ T hear_part(const uint64_t *told, uint32_t step)
{
    uint32_t words[words_of<T>];
    T own;
    for (bool there = false; !there;) {
        there = true;
#pragma unroll
        for (int i = 0; i < words_of<T>; i++) {
            uint64_t word = ptx_look_8(&told[i]);
            words[i] = (uint32_t)(word >> 32);
            there &= (uint32_t)word == step;
        }
    }
    memcpy(&own, words, sizeof own);
    return own;
}

/* What the CTAs of a row find in a step, for all threads of all of them: each has `own`. Steps are
 * numbered from 1 on. */
template <class T>
__device__ __forceinline__ T over_row(const cuda_request_params &p, int64_t b, uint32_t step, T own)
{
    static_assert(sizeof(T) <= sizeof held().warps[0] && words_of<T> <= CUDA_REQUEST_TOLD, "fits");
    uint64_t *row = p.told + (2 * b + step % 2) * p.parts * CUDA_REQUEST_TOLD;
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)held().warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
        own = threadIdx.x < kGroupWarps ? *(const T *)held().warps[threadIdx.x] : T::none();
        own.join_warp();
        tell_part(row + blockIdx.x % p.parts * CUDA_REQUEST_TOLD, step, own);
        own = T::none();
        for (int part = threadIdx.x; part < p.parts; part += 32)
            own.join(hear_part<T>(row + part * CUDA_REQUEST_TOLD, step));
        __syncwarp();
        own.join_warp();
        if (threadIdx.x == 0)
            *(T *)held().row = own;
    }
    __syncthreads();
    return *(const T *)held().row;
}

/* The value of a token of row b. */
__device__ __forceinline__ float value_of_token(const gumbel_problem &q, const pivot_row &row,
                                                int64_t b, int32_t token)
{
    return row.value(
        widen_element(q.logits.data, q.logits.dtype, b * q.logits.stride + token - q.first_token));
}

/* What is known of a row before it is weighed, and its token; whether there is anything to do: not
 * if it has no token, or no cut. */
__device__ __forceinline__ bool know_row(const cuda_request_params &p, int64_t b, pivot_row &row,
                                         int32_t &token)
{
    const gumbel_problem &q = p.problem;
    token = __ldcg(&p.output.tokens[b]);
    const gumbel_row draw = gumbel_problem_row(&q, b);
    row.rules = rules_of(q, b, draw.greedy);
    row.unit = q.scale;
    row.values = {draw.inverse_temperature, row.rules.before != 0};
    row.stream = draw.stream;
    return token >= 0 && row.rules.top_p < 1.0f;
}

/* The best score above a pivot lies below ln(mass above it) by this once in 200,000 draws,
 * exp(-exp(2.5)), and 12 tokens of a row reach that: they are looked for first. */
constexpr float kUnlikely = 2.5f;

/* Find the token of a row, by pivots from its winner among all tokens on; none if that stays. By
 * all threads of all its CTAs. */
__device__ __forceinline__ draw_winner find_token(const cuda_request_params &p, int64_t b,
                                                  int64_t begin, pivot_row &row)
{
    draw_winner winner = draw_winner_none();
    for (uint32_t step = 1;;) {
        const part_weighed all = over_row(p, b, step++, weigh_part(row));
        const pivot_verdict verdict = judge_pivot(row.rules, {0, all.above, all.all});
        bool stays = verdict == PIVOT_STAYS;
        if (verdict == PIVOT_UNSURE) {
            row.largest = all.largest;
            const part_masses exact = over_row(p, b, step++, weigh_part_exactly(row));
            stays = exact.above.wide() < gumbel_nucleus(row.rules.top_p, exact.all.wide());
        }
        if (stays)
            return winner;
        const float likely = row.values.before ? NAN : row.pivot + logf(all.above) - kUnlikely;
        winner = over_row(p, b, step++, draw_part(row, begin, likely)).best;
        if (winner.score < likely)
            winner = over_row(p, b, step++, draw_part(row, begin, NAN)).best;
        row.pivot = row.values.before ? value_of_token(p.problem, row, b, winner.id) : winner.z;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(kGroupThreads, CUDA_REQUEST_PIVOT_CTAS)
    gumbel_request_pivots(const __grid_constant__ cuda_request_params p)
{
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
    const int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + part * kHeld;
    pivot_row row;
    int32_t token;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (!know_row(p, b, row, token)) /* first, since loads queue behind the copies */
        return;
    row.pivot = value_of_token(q, row, b, token);
    hold_part(q, b, begin);
    ptx_copy_async_wait<0>();
    const draw_winner winner = find_token(p, b, begin, row);
    if (winner.id < 0 || part != 0 || threadIdx.x != 0)
        return;
    p.output.tokens[b] = winner.id;
    if (p.output.scores)
        p.output.scores[b] = winner.score;
}

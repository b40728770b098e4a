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
 * MAP    p.parts CTAs a row, each with kHeld of its tokens. A thread weighs and draws from none but
 *        the quads that it has copied; each block's J is looked up once all have met. CTAs of a
 *        row that do not run at once give it up, and the first of them serves it alone
 *        (request_pivots_alone.cuh).
 * SMEM   the logits of the part, and what warps have found, 32 bytes each.
 * SYNC   each CTA of a row tells all others what it has found, and all come to the same end. Words
 *        carry the number of the row's step beside what they tell; the launch before has cleared
 *        them. They alternate: when a CTA tells of a step, all have told of the one before, and so
 *        have read what was told before that. CTAs of a row have neighbouring numbers, so that they
 *        mostly run at once, but nothing promises that they do: a CTA looks kPatience times for
 *        what another one tells, then says in the row's own word that it has left.
 * NUMERICS  sums of floats, relative to the pivot's mass; where these do not decide
 *        (pivot.cuh), the sums of integers by which rows are cut elsewhere. A float
 *        overflows where the pivot lies 88 below the largest: 2^31 tokens so far below weigh less
 *        than 2^-24 of all, so it goes.
 */
#include "cuda/request/pivots/request_pivots.cuh"
#include "cuda/request/pivots/request_pivots_alone.cuh"

namespace
{

/* Words of a T, each of which is told beside the number of its step. */
template <class T> constexpr int words_of = sizeof(T) / sizeof(uint32_t);

/* Tell what this CTA has found in a step, by a warp. */
template <class T>
__device__ __forceinline__ void publish_part(uint64_t *place, uint32_t step, const T &own)
{
    uint32_t words[words_of<T>];
    memcpy(words, &own, sizeof own);
#pragma unroll
    for (int i = 0; i < words_of<T>; i++)
        if (threadIdx.x == i)
            *(volatile uint64_t *)&place[i] = (uint64_t)words[i] << 32 | step;
}

/* Looks at what another CTA tells, of 0.5 us and more: ten times what takes where others come a
 * wave of CTAs later. */
constexpr int kPatience = 250;

/* Join what a CTA of the row tells of a step, by any thread; whether it did so in time. */
template <class T>
__device__ __forceinline__ bool read_part(const uint64_t *place, uint32_t step, T &own)
{
    uint32_t words[words_of<T>];
    T part;
    bool there = false;
#pragma unroll 1
    for (int looks = 0; !there && looks < kPatience; looks++) {
        there = true;
#pragma unroll
        for (int i = 0; i < words_of<T>; i++) {
            uint64_t word = ptx_load_relaxed_8(&place[i]);
            words[i] = (uint32_t)(word >> 32);
            there &= (uint32_t)word == step;
        }
    }
    memcpy(&part, words, sizeof part);
    own.join(part);
    return there;
}

/* What the CTAs of a row find in a step, for all threads of all of them: each has `own`. Means
 * nothing where the row is given up, which shared().given_up tells then. Steps are numbered from 1
 * on. */
template <class T>
__device__ __forceinline__ T over_row(const cuda_request_params &p, int64_t b, uint32_t step, T own)
{
    static_assert(sizeof(T) <= sizeof shared().warps[0] &&
                      words_of<T> <= CUDA_REQUEST_EXCHANGE_WORDS,
                  "fits");
    uint64_t *row =
        p.exchange + p.problem.batch + (2 * b + step % 2) * p.parts * CUDA_REQUEST_EXCHANGE_WORDS;
    own.join_warp();
    if (threadIdx.x % 32 == 0)
        *(T *)shared().warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
        own = threadIdx.x < kGroupWarps ? *(const T *)shared().warps[threadIdx.x] : T::none();
        own.join_warp();
        publish_part(row + blockIdx.x % p.parts * CUDA_REQUEST_EXCHANGE_WORDS, step, own);
        own = T::none();
        bool complete = !shared().given_up;
        for (int part = threadIdx.x; complete && part < p.parts; part += 32)
            complete = read_part(row + part * CUDA_REQUEST_EXCHANGE_WORDS, step, own);
        if (__any_sync(~0u, !complete))
            shared().given_up = 1;
        own.join_warp();
        if (threadIdx.x == 0)
            *(T *)shared().row = own;
    }
    __syncthreads();
    return *(const T *)shared().row;
}

/* The best score above a pivot lies below ln(mass above it) by this once in 200,000 draws,
 * exp(-exp(2.5)), and 12 tokens of a row reach that: they are looked for first. */
constexpr float kUnlikely = 2.5f;

/* Find the token of a row, by pivots from its winner among all tokens on; none if that stays, or if
 * the row is given up. By all threads of all its CTAs. */
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
        if (stays || shared().given_up)
            return winner;
        const float likely = row.values.before ? NAN : row.pivot + logf(all.above) - kUnlikely;
        winner = over_row(p, b, step++, draw_part(row, begin, likely)).best;
        if (winner.score < likely)
            winner = over_row(p, b, step++, draw_part(row, begin, NAN)).best;
        if (shared().given_up || winner.id < 0)
            return winner;
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
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (threadIdx.x == 0) { /* alone, as a row that was given up may have another token by now */
        shared().given_up = ptx_load_relaxed_8(&p.exchange[b]) != 0;
        shared().token = __ldcg(&p.output.tokens[b]);
    }
    pivot_row row = know_row(q, b); /* first, since loads queue behind the copies */
    __syncthreads();
    if (shared().token < 0 || !(row.rules.top_p < 1.0f)) /* no token, or no cut */
        return;
    row.pivot = value_of_token(q, row, b, shared().token);
    hold_part(q, b, begin);
    ptx_copy_async_wait<0>();
    draw_winner winner = find_token(p, b, begin, row);
    if (shared().given_up) {
        if (threadIdx.x == 0)
            *(volatile uint64_t *)&p.exchange[b] = 1;
        if (part == 0)
            winner = find_token_alone(p, b, shared().token);
    }
    if (winner.id < 0 || part != 0 || threadIdx.x != 0)
        return;
    p.output.tokens[b] = winner.id;
    if (p.output.scores)
        p.output.scores[b] = winner.score;
}

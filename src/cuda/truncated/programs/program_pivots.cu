/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   serves rows whose program has one rule besides TEMPERATURE (single_rule.cuh), drawn before
 *        the rule. A plain draw has written the winner among all tokens. The winner is the row's
 *        token if the rule keeps it; otherwise the winner among the tokens that the rule may keep
 *        is tried next, with the same noise. Rows with two rules, and rows for which floats do not
 *        decide, go to clusters (program_cluster.cu).
 * COST   reads B V elements once, with an exponential a token; TYPICAL_P and TOP_P sum the masses
 *        of closer tokens in a second pass over shared memory. A removed winner costs a draw and,
 *        for these two rules, another sum.
 * MAP, SYNC  those of truncated_pivots.cu. The first CTA of a row writes its token, and publishes
 *        its state to the clusters of the next launch.
 * SMEM   split_shared; the row's program and the values that its rule keeps.
 * NUMERICS  float sums relative to the winner's mass, then to the largest token's. The token is
 *        that of the exact sums of program_cluster.cu.
 */
#include "cuda/common/cuda_program_params.h"
#include "cuda/truncated/pivots/split_exchange.cuh"
#include "cuda/truncated/programs/single_rule.cuh"
#include "cuda/truncated/row/row_states.cuh"

namespace
{

struct program_split_shared {
    split_shared split; /* first, for split_memory() */
    gumbel_row_program program;
    single_rule single;
    kept_values kept;
};
static_assert(sizeof(program_split_shared) <= CUDA_PIVOT_BYTES, "the launcher reserves that much");

__device__ __forceinline__ program_split_shared &program_split()
{
    return *(program_split_shared *)&split_memory();
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* Sums over a split, and its largest value. */
struct split_facts {
    pivot_facts sums;
    float largest;

    static __device__ __forceinline__ split_facts empty()
    {
        return {pivot_facts::empty(), -INFINITY};
    }
    __device__ __forceinline__ void join(const split_facts &other)
    {
        sums.join(other.sums);
        largest = fmaxf(largest, other.largest);
    }
    __device__ __forceinline__ void join_warp()
    {
        sums.join_warp();
#pragma unroll
        for (int half = 16; half > 0; half /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, half));
    }
};

/* Sums relative to the value `reference`. */
template <class Facts>
__device__ __noinline__ split_facts sum_facts_of_split(split_row row, float reference)
{
    split_facts own = split_facts::empty();
    each_own_value(row, [&](float v) {
        Facts::add(own.sums, reference - v);
        own.largest = fmaxf(own.largest, v);
    });
    return own;
}

__device__ __forceinline__ split_facts sum_required_facts(const split_row &row, int required,
                                                          float reference)
{
    return required & GUMBEL_FACT_SPREAD    ? sum_facts_of_split<spread_facts>(row, reference)
           : required & GUMBEL_FACT_ENTROPY ? sum_facts_of_split<mass_facts<true>>(row, reference)
                                            : sum_facts_of_split<mass_facts<false>>(row, reference);
}

/* As sum_closer() of program_pivot.cuh, over a split. */
__device__ __noinline__ closer_masses sum_closer_of_split(split_row row, values_near values,
                                                          float winner, float error)
{
    const float reach = values.find_distance(winner);
    closer_masses own = closer_masses::empty();
    each_own_value(row, [&](float v) { own.add(values, v, winner, reach, error); });
    return own;
}

/* ------------------------------------------------------------------------------------ row ---- */

/* Progress of a row. */
struct program_row : split_row {
    float value;        /* of the winner to be tried */
    draw_winner winner; /* none, if it is that of the plain draw */
    uint32_t step;      /* of the next exchange, from 1 on */
};

/* Determines what the row's rule keeps, by all threads of all its CTAs. */
__device__ __forceinline__ kept_values find_kept_values(const cuda_truncated_params &p, int64_t b,
                                                        program_row &row)
{
    program_split_shared &own = program_split();
    const int required = facts_of_rule(own.single.rule);
    const split_facts facts =
        join_row(p, b, row.step++, sum_required_facts(row, required, row.value));
    const float shift = facts.largest - row.value;
    if (threadIdx.x == 0)
        own.kept = describe_kept(own.program, own.single.rule, facts.largest,
                                 rebase_facts(required, facts.sums, shift), shift);
    __syncthreads();
    return own.kept;
}

/* Sets the next winner, among the tokens closer than kept.values.reach. `likely` is a score that it
 * probably reaches; NaN if none is known. Returns whether there is one. */
__device__ __forceinline__ bool draw_next_winner(const cuda_truncated_params &p, int64_t b,
                                                 int64_t begin, const kept_values &kept,
                                                 float likely, program_row &row)
{
    const split_row &from = row;
    row.winner = join_row(p, b, row.step++, draw_from_split(from, kept.values, begin, likely)).best;
    if (row.winner.score < likely)
        row.winner =
            join_row(p, b, row.step++, draw_from_split(from, kept.values, begin, NAN)).best;
    if (split_memory().is_abandoned || row.winner.id < 0)
        return false;
    row.value = row.values.before ? value_of_token(p.problem, row, b, row.winner.id) : row.winner.z;
    return true;
}

/* Finds the token of a row, by all threads of all its CTAs. Returns false if clusters must. */
__device__ __forceinline__ bool find_program_token(const cuda_truncated_params &p, int64_t b,
                                                   int64_t begin, program_row &row)
{
    const gumbel_program_rule rule = program_split().single.rule;
    kept_values kept = find_kept_values(p, b, row);
#pragma unroll 1
    for (int round = 0; round < kPivots; round++) {
        pivot_verdict verdict;
        float likely = NAN;
        if (sums_closer_tokens(rule)) {
            const closer_masses closer =
                join_row(p, b, row.step++,
                         sum_closer_of_split(row, kept.values, row.value,
                                             error_of_distance(kept, row.value)));
            verdict =
                determine_mass_verdict(program_split().program, rule, kept, closer, row.value);
            if (!row.values.before)
                likely = kept.values.largest + logf(closer.certain) - kUnlikelyGap;
        } else {
            verdict = determine_threshold_verdict(kept, row.value);
        }
        if (split_memory().is_abandoned || verdict == PIVOT_UNSURE)
            return false;
        if (verdict == PIVOT_KEPT)
            return true;
        if (!draw_next_winner(p, b, begin, kept, likely, row))
            return false;
    }
    return false;
}

/* Sets the row's program, by one thread. */
__device__ __noinline__ void load_program(const cuda_program_params &p, int64_t b)
{
    program_split_shared &own = program_split();
    own.program = gumbel_read_program(&p.call.problem, p.rules, b);
    own.single = find_single_rule(own.program);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kGroupThreads, CUDA_PROGRAM_PIVOT_CTAS)
    gumbel_program_pivots(const __grid_constant__ cuda_program_params params)
{
    const cuda_truncated_params &p = params.call;
    const gumbel_problem &q = p.problem;
    const int64_t b = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    const int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * kSplitTokens;
    ptx_wait_for_launch();
    if (split == 0 && threadIdx.x == 0) {
        publish_row_state(p, b, CUDA_ROW_PENDING);
        __threadfence(); /* clusters that start early must not read the state of an earlier call */
    }
    ptx_allow_launch();
    if (threadIdx.x == 0) {
        split_memory().is_abandoned = ptx_load_relaxed_8(&p.exchange[b]) != 0;
        split_memory().token = __ldcg(&p.output.tokens[b]);
    }
    if (threadIdx.x / 32 == 1)
        prefetch_program(q, b);
    const gumbel_row draw = gumbel_problem_row(&q, b);
    load_split(q, b, begin);
    if (threadIdx.x == 32)
        load_program(params, b);
    __syncthreads();
    const single_rule single = program_split().single;
    const bool stands = split_memory().token < 0 || draw.greedy ||
                        (single.is_single && single.rule == GUMBEL_PROGRAM_END);
    program_row row;
    row.unit = q.scale;
    row.values = {draw.inverse_temperature, single.before};
    row.stream = draw.stream;
    row.winner = draw_winner_none();
    row.step = 1;
    ptx_copy_async_wait<0>();
    bool found = stands;
    if (!stands && single.is_single) {
        row.value = value_of_token(q, row, b, split_memory().token);
        found = find_program_token(p, b, begin, row);
    }
    if (split_memory().is_abandoned && threadIdx.x == 0)
        *(volatile uint64_t *)&p.exchange[b] = 1;
    if (split != 0)
        return;
    if (!found) {
        publish_fallback_row(p, b);
    } else if (threadIdx.x == 0) {
        if (row.winner.id >= 0) {
            p.output.tokens[b] = row.winner.id;
            if (p.output.scores)
                p.output.scores[b] = row.winner.score;
        }
        publish_row_state(p, b, CUDA_ROW_SERVED);
    }
}

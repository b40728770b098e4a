/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of the row that a CTA serves, which of the row's largest tokens can matter to it, and
 * sums of its rules.
 */
#ifndef GUMBEL_CUDA_PROGRAM_STATE_CUH
#define GUMBEL_CUDA_PROGRAM_STATE_CUH

#include "cuda/common/facts.cuh"
#include "cuda/truncated/programs/single_rule.cuh"
#include "cuda/truncated/few/truncated_shared.cuh"

namespace
{

/* A row's program, and the result of running it on a list of tokens. */
struct program_state {
    gumbel_row_program program;
    float factor; /* the rules from `first` on begin with the values y * factor */
    int first;
    bool runs;                /* the row is not greedy */
    single_rule single;       /* of a cluster */
    bool suffices;            /* the result of describe_program(), of a cluster */
    required_tokens required; /* of a cluster */
    int begin, end;           /* of the tokens that remain, in the order of the list */
    uint32_t flags;           /* of their values */
};
static_assert(sizeof(program_state) <= sizeof(row_shared::top), "fits");

/* The memory of the most likely tokens, which are listed later. */
__device__ __forceinline__ program_state &program_memory()
{
    return *(program_state *)shared_state().top;
}

/* Whether a list of the tokens that the prefix keeps suffices; sets the tokens that are required.
 * Later rules see no other tokens. */
__device__ __forceinline__ bool prefix_suffices(const gumbel_program_prefix &prefix,
                                                int64_t min_keep, required_tokens &required)
{
    const int64_t k = prefix.top_k <= CUDA_TRUNCATED_TOP_MAX ? prefix.top_k : 0;
    const bool either = prefix.min_p > 0.0f && min_keep > 1; /* MIN_P keeps that many */
    const float log_min_p = gumbel_log_min_p(prefix.min_p);
    if (k > 0)
        required = {(uint32_t)k, either ? -INFINITY : log_min_p, false};
    else
        required = {either ? (uint32_t)min_keep : 0, log_min_p, either};
    return k > 0 || (prefix.min_p > 0.0f && min_keep <= CUDA_TRUNCATED_TOP_MAX);
}

/* Sets the program of row b, by one thread. Returns whether its largest tokens suffice to serve the
 * row, and sets those that are required. */
__device__ __forceinline__ bool describe_program(const cuda_truncated_params &p, int64_t b,
                                                 truncated_row &row, required_tokens &required)
{
    program_state &state = program_memory();
    const gumbel_row_program program = gumbel_problem_program(&p.problem, b);
    const bool greedy = program.temperature == 0.0f;
    state.program = program;
    /* From memory, so that the loop over rules stays rolled. */
    const gumbel_program_prefix prefix = gumbel_find_program_prefix(&state.program);
    const bool scaled = prefix.scaled && !greedy;
    set_rules(row, gumbel_problem_rules(&p.problem, b, greedy)); /* none */
    state.runs = !greedy;
    state.first = prefix.length;
    state.factor =
        scaled ? fminf(1.0f / program.temperature, GUMBEL_INVERSE_TEMPERATURE_HIGHEST) : 1.0f;
    return greedy ? candidates_suffice(p, row, true, required)
                  : !p.partials && prefix_suffices(prefix, program.min_keep, required);
}

/* The values with which the row's rules begin, and by which its tokens are gathered. */
__device__ __forceinline__ logit_values program_values()
{
    return {program_memory().factor, false};
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* The sums of gumbel_facts that one rule requires, without the count. */
struct fact_sums {
    gumbel_wide first, second;
};

__device__ __forceinline__ fact_sums pack_facts(const gumbel_facts &own, int required)
{
    if (required & GUMBEL_FACT_SPREAD)
        return {(gumbel_wide)(__int128)own.sum, own.squares};
    return {own.mass, required & GUMBEL_FACT_SQUARED ? own.squared : own.weighted};
}

__device__ __forceinline__ gumbel_facts unpack_facts(fact_sums sums, int64_t count, int required)
{
    const bool spread = required & GUMBEL_FACT_SPREAD;
    gumbel_facts facts = {};
    facts.count = count;
    facts.mass = spread ? 0 : sums.first;
    facts.sum = spread ? (int64_t)sums.first : 0;
    facts.squares = spread ? sums.second : 0;
    facts.squared = required & GUMBEL_FACT_SQUARED ? sums.second : 0;
    facts.weighted = required & GUMBEL_FACT_ENTROPY ? sums.second : 0;
    return facts;
}

} // namespace

#endif

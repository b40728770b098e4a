/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_plans.h"

static const gumbel_dtype dtypes[3] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
static const int64_t sizes[15] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 256};

/* The first token of a shard of `vocab` rows: aligned to a block, not aligned, or at the upper
 * limit of ids. */
static int64_t first_token_of(uint32_t choice, int64_t vocab)
{
    const int64_t starts[] = {0, 0, 64, 37, 1000003, 4096, (INT64_C(1) << 31) - vocab};
    return starts[choice % 7];
}

problem_plan plan_by_size(int index)
{
    int dtype = index % 9;
    return (problem_plan){
        .batch = 1 + index % 5,
        .vocab = 131,
        .hidden_size = sizes[index / 9],
        .samples = 2,
        .weight_dtype = dtypes[dtype / 3],
        .hidden_dtype = dtypes[dtype % 3],
        .bias_dtype = index % 4 == 3 ? 0 : dtypes[index % 4],
        .weight_gap = index % 2 ? 5 : 0,
        .hidden_gap = index % 3 ? 0 : 3,
        .seed = 1000 + (uint64_t)index,
    };
}

problem_plan plan_by_vocab(int index)
{
    int64_t vocab = 1 + index;
    int64_t first = first_token_of((uint32_t)index, vocab);
    return (problem_plan){
        .batch = 3,
        .vocab = vocab,
        .hidden_size = 17,
        .samples = 3,
        .weight_dtype = dtypes[index % 3],
        .hidden_dtype = dtypes[index / 3 % 3],
        .first_token = first,
        .vocab_size = index % 5 == 1 ? first + (vocab + 1) / 2 : 0,
        .temperature = -0.8f,
        .seed = 2000 + (uint64_t)index,
    };
}

problem_plan plan_at_random(int index)
{
    static const int64_t batches[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33};
    static const int64_t gaps[] = {0, 0, 1, 7, 64};
    static const float scales[] = {0, 0, 1, 0.5f, -2, 0.0625f};
    static const float caps[] = {0, 0, 30, 5, 2};
    static const float temperatures[] = {0, 0, 0.7f, 0.05f, -1.3f, 12};
    uint64_t state = 3000 + (uint64_t)index;
    problem_plan plan = {.seed = random_bits(&state) >> 20};
    plan.batch = batches[random_below(&state, 13)];
    plan.vocab = 1 + random_below(&state, index % 10 == 9 ? 9000 : 500);
    plan.hidden_size = sizes[random_below(&state, 15)];
    plan.samples = 1 + (int32_t)random_below(&state, 5);
    plan.weight_dtype = dtypes[random_below(&state, 3)];
    plan.hidden_dtype = dtypes[random_below(&state, 3)];
    plan.bias_dtype = random_below(&state, 2) ? dtypes[random_below(&state, 3)] : 0;
    plan.weight_gap = gaps[random_below(&state, 5)];
    plan.hidden_gap = gaps[random_below(&state, 5)];
    plan.first_token = first_token_of(random_below(&state, 7), plan.vocab);
    if (random_below(&state, 3) == 0)
        plan.vocab_size = plan.first_token + 1 + random_below(&state, (uint32_t)plan.vocab);
    plan.scale = scales[random_below(&state, 6)];
    plan.soft_cap = caps[random_below(&state, 5)];
    plan.temperature = temperatures[random_below(&state, 6)];
    plan.domain = random_below(&state, 6);
    plan.first_sample = random_below(&state, 4) ? 0 : UINT32_MAX - 1;
    return plan;
}

problem_plan plan_strided(problem_plan plan, const gumbel_dtype types[3], const int64_t gaps[5],
                          int index)
{
    plan.weight_dtype = types[index % 3];
    plan.hidden_dtype = types[index / 3 % 3];
    plan.weight_gap = gaps[index / 9 % 5];
    plan.hidden_gap = gaps[index / 45];
    plan.bias_dtype = index % 4 ? types[index % 4 - 1] : 0;
    return plan;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems for draws with a screen.
 */
#ifndef TESTS_EMULATOR_SCREEN_PROBLEMS_H
#define TESTS_EMULATOR_SCREEN_PROBLEMS_H

#include "launch_screen.h"

extern "C" {
#include "outcome.h"
}

#include <vector>

/* A problem by number, of up to 64 draws. */
static inline problem_plan make_screen_plan(int index, uint64_t *random)
{
    static const int64_t batches[] = {3, 1, 4, 8, 13, 16, 30, 5, 64, 9};
    problem_plan plan = {};
    plan.batch = batches[index % 10];
    plan.vocab = 16 * (20 + random_below(random, 70));
    plan.hidden_size = 64 + 8 * random_below(random, one_in(random, 4) ? 150 : 30);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.weight_gap = 8 * random_below(random, 3);
    plan.hidden_gap = 8 * random_below(random, 3);
    plan.samples = plan.batch <= 16 && one_in(random, 3) ? 2 + (int)random_below(random, 3) : 1;
    plan.first_token = one_in(random, 3) ? 64 * random_below(random, 1000) : 0;
    if (one_in(random, 3))
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.temperature = one_in(random, 6) ? 0.002f : -0.8f;
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* A mask of all rows that allows few tokens, half of them, or none, and a bias with the same
 * effect, which the full pass receives instead. */
struct token_mask {
    std::vector<uint32_t> words;
    std::vector<float> bias;

    token_mask(const problem_plan &plan, uint64_t *random)
        : words((size_t)(plan.first_token + plan.vocab + 31) / 32), bias((size_t)plan.vocab)
    {
        const uint32_t kind = random_below(random, 6);
        for (int64_t i = 0; i < plan.vocab; i++) {
            const bool allowed = kind == 0  ? false
                                 : kind < 3 ? one_in(random, 40)
                                            : one_in(random, 2);
            const int64_t token = plan.first_token + i;
            words[(size_t)token / 32] |= (uint32_t)allowed << token % 32;
            bias[(size_t)i] = allowed ? 0.0f : -INFINITY;
        }
    }
};

#endif

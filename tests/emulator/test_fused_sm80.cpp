// SPDX-License-Identifier: Apache-2.0
//
// The portable kernels' sources on a CPU, their threads in a random order: against the CPU backend,
// and against each other, bit by bit.
#include "launch_sm80.h"

#include "agreement.h"
#include "fused_problems.h"
#include "launch_sm90.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

namespace
{

problem_plan plan_of(int index, uint64_t *random)
{
    static const int64_t batches[] = {40, 7, 64, 130, 30, 100, 16, 128, 65, 3};
    problem_plan plan = {};
    plan.batch = batches[index % 10];
    plan.vocab = 16 * (20 + random_below(random, 60)) + random_below(random, 16);
    plan.hidden_size = 8 + 8 * random_below(random, 24);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.weight_gap = 8 * random_below(random, 3);
    plan.samples = one_in(random, 4) ? 2 : 1;
    if (one_in(random, 4))
        plan.bias_dtype = GUMBEL_FLOAT16;
    plan.soft_cap = one_in(random, 4) ? 5.0f : 0.0f;
    plan.scale = one_in(random, 4) ? -0.75f : 0.0f;
    plan.first_token = one_in(random, 2) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 3)) /* invalid tokens at the end */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.temperature = one_in(random, 6) ? 0.002f : -0.8f; /* masses far apart, or nearly equal */
    plan.seed = random_bits(random) >> 20;
    return plan;
}

fused_problem make(int index)
{
    fused_problem test = {};
    test.random = (uint64_t)index;
    problem_plan plan = plan_of(index, &test.random);
    test.generated = problem_make(&plan);
    test.parts =
        one_in(&test.random, 2) ? OUTCOME_ALL : (outcome_parts)(OUTCOME_TOKENS | OUTCOME_SCORES);
    test.ctas = 1 + (int)random_below(&test.random, 3);
    if (one_in(&test.random, 5))
        set_nan(test.generated, one_in(&test.random, 4));
    snprintf(test.what, sizeof test.what, "problem %d, %d CTAs: %s", index, test.ctas,
             problem_describe(&plan));
    return test;
}

cuda_params params_of(fused_problem *test)
{
    return emulated_launch_of(test->generated->head, test->generated->sampling,
                              (test->parts & OUTCOME_MASS) != 0, 0, 2, &test->random, test->what)
        .params;
}

/* Draws by a kernel. `thresholds` holds the thresholds of the launch before. */
void draw_emulated(fused_problem *test, int kernel, uint64_t tag, uint64_t *thresholds,
                   outcome *into)
{
    emulated_launch merge = {};
    cuda_params p = params_of(test);
    prepare_sm80(&p, kernel, test->ctas, &test->random);
    set_outputs(&p, into, tag, thresholds);
    emulate_sm80(p, kernel, &test->random, test->what);
    merge.params = p;
    merge.any = true;
    merge.random = &test->random;
    merge.what = test->what;
    emulate_finish(merge);
    free(p.summaries);
}

/* The logits that a kernel stores: -12345 where it stores none. */
std::vector<float> store_emulated(fused_problem *test, int kernel)
{
    cuda_params p = params_of(test);
    prepare_sm80(&p, kernel, test->ctas, &test->random);
    const size_t batch = (size_t)p.problem.batch;
    p.logits_out_stride = (p.problem.vocab + 3) / 4 * 4;
    std::vector<float> logits(batch * (size_t)p.logits_out_stride, -12345.0f);
    std::vector<gumbel_summary> summaries((size_t)p.splits * batch *
                                          (size_t)p.problem.sampling.num_samples);
    std::vector<uint64_t> thresholds(batch * (size_t)p.problem.sampling.num_samples *
                                     CUDA_THRESHOLD_WORDS);
    p.logits_out = logits.data();
    p.summaries = summaries.data();
    p.row_thresholds = thresholds.data();
    emulate_sm80(p, kernel, &test->random, test->what);
    return logits;
}

/* ---------------------------------------------------------------------------- comparison ---- */

/* Three of the kernels that serve a problem: the first, and two others at random. */
std::vector<int> kernels_for(const gumbel_problem &q, uint64_t *random)
{
    std::vector<int> serving;
    for (int kernel = 0; kernel < kSm80Kernels; kernel++)
        if (emulated_sm80_serves(kernel, q))
            serving.push_back(kernel);
    while (serving.size() > 3)
        serving.erase(serving.begin() + 1 + random_below(random, (uint32_t)serving.size() - 1));
    return serving;
}

bool passes(int index, gumbel_device *cpu, int *near_ties)
{
    fused_problem test = make(index);
    const problem_plan *plan = &test.generated->plan;
    outcome *host = outcome_make(plan->batch, plan->samples);
    outcome *first = outcome_make(plan->batch, plan->samples);
    outcome *other = outcome_make(plan->batch, plan->samples);
    const size_t draws = (size_t)(plan->batch * plan->samples);
    uint64_t *thresholds =
        (uint64_t *)poisoned_workspace(draws * CUDA_THRESHOLD_WORDS * sizeof *thresholds);
    const std::vector<int> serving = kernels_for(params_of(&test).problem, &test.random);
    const bool stores = one_in(&test.random, 3);
    std::vector<float> stored;
    bool good = draw(cpu, &test.generated->head, &test.generated->sampling, host) == GUMBEL_OK;
    for (size_t i = 0; good && i < serving.size(); i++) {
        outcome *ours = i == 0 ? first : other;
        draw_emulated(&test, serving[i], 1 + (uint64_t)index * 8 + i, thresholds, ours);
        good = agree(host, ours, test.parts, test.what, near_ties) &&
               (i == 0 || outcome_same(first, 0, ours, test.parts, test.what));
        if (!good || !stores)
            continue;
        const std::vector<float> logits = store_emulated(&test, serving[i]);
        if (i == 0)
            stored = logits;
        good = memcmp(logits.data(), stored.data(), logits.size() * sizeof(float)) == 0;
        if (!good)
            printf("%s: %d columns store other logits than %d\n", test.what,
                   emulated_sm80_columns(serving[i]), emulated_sm80_columns(serving[0]));
    }
    free(thresholds);
    outcome_free(other);
    outcome_free(first);
    outcome_free(host);
    problem_free(test.generated);
    return good;
}

} // namespace

/* usage: test_fused_sm80 [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int near_ties = 0;
    int failed = run_cpu_problems(
        argc, argv, 20, 300, [&](int i, gumbel_device *cpu) { return passes(i, cpu, &near_ties); });
    printf("%d near ties\n", near_ties);
    return failed != 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel's source on a CPU, its threads in a random order, against the CPU backend; and
// against itself in another order, usually by another kernel that serves the call, bit by bit.
#include "launch_sm90.h"

#include "agreement.h"
#include "fused_problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

namespace
{

/* ------------------------------------------------------------------------------- a problem ---- */

/* A plain call requests nothing rare. */
problem_plan plan_of(int index, bool plain, uint64_t *random)
{
    static const int64_t batches[] = {3, 8, 13, 30, 64, 100, 128, 200, 256, 40};
    problem_plan plan = {};
    plan.batch = batches[index % 10];
    plan.vocab = 16 * (20 + random_below(random, 70));
    plan.hidden_size = 64 + 8 * random_below(random, 30);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.weight_gap = 8 * random_below(random, 3);
    plan.samples = 1;
    if (!plain) {
        plan.samples = plan.batch <= 64 && one_in(random, 4) ? 2 + random_below(random, 2) : 1;
        if (one_in(random, 4))
            plan.bias_dtype = GUMBEL_FLOAT16;
        plan.soft_cap = one_in(random, 4) ? 5.0f : 0.0f;
        plan.scale = one_in(random, 4) ? -0.75f : 0.0f;
    }
    plan.first_token = one_in(random, 3) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 3)) /* up to a tile of invalid tokens at the end */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.temperature = one_in(random, 6) ? 0.002f : -0.8f; /* masses far apart, or nearly equal */
    if (one_in(random, 8))
        plan.temperature = 1e-31f; /* z beyond the range of masses: lse is the largest z */
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Makes logits ascend with the token, by `total` from the first to the last: later tiles pass the
 * bounds of earlier ones, with more tokens than lists hold. */
void ascend(problem *generated, float total)
{
    const gumbel_tensor *w = &generated->head.weight, *h = &generated->head.hidden;
    for (int64_t v = 0; v < w->rows; v++)
        dtype_store(generated->weight, w->dtype, v * (w->stride ? w->stride : w->cols),
                    total * (float)v / (float)w->rows);
    for (int64_t b = 0; b < h->rows; b++)
        dtype_store(generated->hidden, h->dtype, b * (h->stride ? h->stride : h->cols), 1.0f);
}

fused_problem make(int index)
{
    fused_problem test = {};
    test.random = (uint64_t)index;
    bool plain = one_in(&test.random, 3);
    problem_plan plan = plan_of(index, plain, &test.random);
    test.generated = problem_make(&plan);
    test.parts =
        one_in(&test.random, 2) ? OUTCOME_ALL : (outcome_parts)(OUTCOME_TOKENS | OUTCOME_SCORES);
    test.ctas = 2 + 2 * (int)random_below(&test.random, 2); /* whole clusters at all widths */
    if (one_in(&test.random, 5))
        set_nan(test.generated, one_in(&test.random, 4));
    if (one_in(&test.random, 6))
        ascend(test.generated, one_in(&test.random, 2) ? 10.0f : 100.0f);
    return test;
}

/* Stride of stored logits, and their value before. */
int64_t stride_of(const fused_problem &test) { return (test.generated->plan.vocab + 3) / 4 * 4; }
constexpr float kUntouched = -12345.0f;

/* Launches as cuda_run_sm90(), or the kernel for any draw, or the kernel that also stores the
 * logits, unless `stored` is NULL. `thresholds` holds the thresholds of the launch before. */
void draw_emulated(fused_problem *test, bool any, int width, uint64_t tag, uint64_t *thresholds,
                   outcome *into, float *stored)
{
    emulated_launch own = emulated_launch_of(test->generated->head, test->generated->sampling,
                                             (test->parts & OUTCOME_MASS) != 0, width, test->ctas,
                                             &test->random, test->what);
    cuda_params *p = &own.params;
    own.any = any;
    p->logits_out = stored;
    p->logits_out_stride = stride_of(*test);
    p->also_draw = stored != NULL;
    set_outputs(p, into, tag, thresholds);
    emulate_fused(own);
    emulate_finish(own);
    free(p->summaries);
}

/* Whether a kernel draws as requested and also stores the logits. */
bool can_store_too(const fused_problem &test, int width)
{
    const problem_plan &plan = test.generated->plan;
    return !(test.parts & OUTCOME_MASS) && CUDA_SM90_HAS_BOTH(emulated_rows(width)) &&
           plan.soft_cap == 0.0f && plan.scale >= 0.0f && plan.samples == 1;
}

/* Whether the logits equal those of the kernel that only stores. */
bool stored_agree(fused_problem *test, int width, const std::vector<float> &logits)
{
    std::vector<float> alone(logits.size(), kUntouched);
    emulated_launch own = emulated_launch_of(test->generated->head, test->generated->sampling,
                                             false, width, test->ctas, &test->random, test->what);
    own.params.logits_out = alone.data();
    own.params.logits_out_stride = stride_of(*test);
    emulate_fused(own);
    if (memcmp(alone.data(), logits.data(), logits.size() * sizeof(float)) == 0)
        return true;
    printf("%s: a draw stores other logits than the product alone\n", test->what);
    return false;
}

/* ---------------------------------------------------------------------------- comparison ---- */

bool passes(int index, gumbel_device *cpu, int *near_ties)
{
    fused_problem test = make(index);
    const problem_plan *plan = &test.generated->plan;
    outcome *host = outcome_make(plan->batch, plan->samples);
    outcome *ours = outcome_make(plan->batch, plan->samples);
    outcome *again = outcome_make(plan->batch, plan->samples);
    size_t draws = (size_t)(plan->batch * plan->samples);
    uint64_t *thresholds =
        (uint64_t *)poisoned_workspace(draws * CUDA_THRESHOLD_WORDS * sizeof *thresholds);
    int width = emulated_width_for(plan->batch),
        other = emulated_width(plan->batch, plan->samples, &test.random);
    uint64_t tag = 1 + 2 * (uint64_t)index;
    snprintf(test.what, sizeof test.what, "problem %d, %d CTAs, width %d and %d: %s", index,
             test.ctas, emulated_rows(width), emulated_rows(other), problem_describe(plan));
    bool good = draw(cpu, &test.generated->head, &test.generated->sampling, host) == GUMBEL_OK;
    const bool stores = can_store_too(test, other) && !one_in(&test.random, 3);
    std::vector<float> stored(stores ? (size_t)(plan->batch * stride_of(test)) : 0, kUntouched);
    draw_emulated(&test, false, width, tag, thresholds, ours, NULL);
    draw_emulated(&test, !stores && one_in(&test.random, 2), other, tag + 1, thresholds, again,
                  stores ? stored.data() : NULL);
    good = good && agree(host, ours, test.parts, test.what, near_ties) &&
           outcome_same(ours, 0, again, test.parts, test.what) &&
           (!stores || stored_agree(&test, other, stored));
    free(thresholds);
    outcome_free(again);
    outcome_free(ours);
    outcome_free(host);
    problem_free(test.generated);
    return good;
}

} // namespace

/* usage: test_fused_sm90 [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int near_ties = 0;
    int failed = run_cpu_problems(
        argc, argv, 40, 700, [&](int i, gumbel_device *cpu) { return passes(i, cpu, &near_ties); });
    printf("%d near ties\n", near_ties);
    return failed != 0;
}

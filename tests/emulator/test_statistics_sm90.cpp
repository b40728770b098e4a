// SPDX-License-Identifier: Apache-2.0
//
// The Hopper kernel that draws and computes statistics of rows, its source on a CPU: its tokens,
// scores and likeliest tokens against those that the CPU backend draws from the same product's
// logits, and every output against the same kernel in another thread order and, usually, of another
// width, bit by bit.
#include "launch_sm90.h"

extern "C" {
#include "validate/validate_features.h"
#include "outcome.h"
}

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

struct test_problem {
    problem *generated;
    gumbel_transforms transforms; /* banned tokens, or none */
    std::vector<int64_t> offsets;
    std::vector<int32_t> ids;
    int ctas, num_top;
    bool entropy;
    uint64_t random;
    char what[400];
};

problem_plan plan_of(int index, uint64_t *random)
{
    static const int64_t batches[] = {3, 8, 13, 30, 64, 100, 128, 200, 256, 1};
    problem_plan plan = {};
    plan.batch = batches[index % 10];
    plan.vocab = 16 * (1 + random_below(random, one_in(random, 4) ? 10 : 90));
    plan.hidden_size = 64 + 8 * random_below(random, 30);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.samples = 1;
    plan.scale = one_in(random, 4) ? 0.75f : 0.0f;
    if (one_in(random, 3)) /* up to a tile of padding at the end */
        plan.vocab_size = plan.vocab - std::min<int64_t>(random_below(random, 140), plan.vocab - 1);
    plan.temperature = one_in(random, 6) ? 0.002f : -0.8f; /* entropies of 0, or large ones */
    plan.spread = one_in(random, 6) ? 1e-3f : 0.0f;        /* nearly equal logits */
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Lists of banned tokens: a few a row, or up to all, with ids that no row has and ids listed twice.
 */
void ban_tokens(test_problem *test)
{
    const problem_plan &plan = test->generated->plan;
    const bool many = one_in(&test->random, 3);
    test->offsets = {0};
    for (int64_t b = 0; b < plan.batch; b++) {
        const uint32_t count = random_below(&test->random, many ? 60 : 4);
        for (uint32_t i = 0; i < count; i++)
            test->ids.push_back((int32_t)random_below(&test->random, (uint32_t)plan.vocab + 200));
        if (many && one_in(&test->random, 9))
            for (int64_t t = 0; t < plan.vocab; t++)
                test->ids.push_back((int32_t)t);
        test->offsets.push_back((int64_t)test->ids.size());
    }
    test->ids.push_back(0);
    test->transforms.banned.offsets = test->offsets.data();
    test->transforms.banned.ids = test->ids.data();
}

/* Repeats the first rows of the weights, so that several tokens have the largest logit. */
void repeat_weights(test_problem *test)
{
    const problem_plan &plan = test->generated->plan;
    const int64_t period = 1 + random_below(&test->random, (uint32_t)plan.vocab / 4);
    uint16_t *weight = (uint16_t *)test->generated->weight; /* [V, D] */
    for (int64_t i = period * plan.hidden_size; i < plan.vocab * plan.hidden_size; i++)
        weight[i] = weight[i - period * plan.hidden_size];
}

test_problem make(int index)
{
    test_problem test = {};
    test.random = (uint64_t)index;
    problem_plan plan = plan_of(index, &test.random);
    test.generated = problem_make(&plan);
    test.transforms.struct_size = sizeof test.transforms;
    test.ctas = 2 + 2 * (int)random_below(&test.random, 2);
    test.num_top = 1 + (int)random_below(&test.random, 2);
    test.entropy = !one_in(&test.random, 4);
    if (one_in(&test.random, 2))
        ban_tokens(&test);
    const gumbel_head &head = test.generated->head;
    if (one_in(&test.random, 6)) /* a row of NaN logits */
        dtype_store_nan(test.generated->hidden, head.hidden.dtype,
                        plan.batch / 2 * plan.hidden_size + 7);
    if (one_in(&test.random, 3))
        repeat_weights(&test);
    return test;
}

outcome *make_outcome(const test_problem &test)
{
    outcome *empty = outcome_make(test.generated->plan.batch, 1);
    outcome_widen(empty, test.num_top, GUMBEL_PROCESSED);
    if (test.entropy)
        outcome_add_entropy(empty);
    empty->output.ranks = empty->output.kept = NULL;
    return empty;
}

gumbel_sampling sampling_of(const test_problem &test)
{
    gumbel_sampling sampling = test.generated->sampling;
    sampling.transforms = &test.transforms;
    return sampling;
}

/* `thresholds` holds the words of the launch before. */
void draw_emulated(test_problem *test, int width, uint64_t tag, uint64_t *thresholds, outcome *into)
{
    emulated_launch own = emulated_launch_of(test->generated->head, sampling_of(*test), true, width,
                                             test->ctas, &test->random, test->what);
    cuda_params *p = &own.params;
    const size_t count = (size_t)(p->splits * p->problem.batch);
    outcome_poison(into);
    p->output = into->output;
    gumbel_problem_request(&p->problem, &into->output);
    p->problem.with_mass = 1;
    p->tag = tag;
    p->row_thresholds = thresholds;
    p->summaries = (gumbel_summary *)poisoned_workspace(count * sizeof *p->summaries);
    own.statistics = (cuda_row_statistics *)poisoned_workspace(count * sizeof *own.statistics);
    emulate_fused(own);
    emulate_finish(own);
    free(own.statistics);
    free(p->summaries);
}

/* The logits of the kernel that stores them. */
std::vector<float> store_logits(test_problem *test)
{
    const problem_plan &plan = test->generated->plan;
    std::vector<float> logits((size_t)(plan.batch * plan.vocab), -INFINITY);
    emulated_launch own =
        emulated_launch_of(test->generated->head, test->generated->sampling, false,
                           emulated_width_for(plan.batch), test->ctas, &test->random, test->what);
    own.params.logits_out = logits.data();
    own.params.logits_out_stride = plan.vocab;
    emulate_fused(own);
    return logits;
}

/* Whether two values differ by no more than `most`, or are the same special value. */
bool near(float x, float y, float most)
{
    return (std::isnan(x) && std::isnan(y)) || x == y || fabsf(x - y) <= most;
}

/* Whether the outputs are those of the CPU from the same logits: entropies as gumbel.h promises
 * them, log-normalisers to within some ulp. */
bool agree(const test_problem &test, const outcome *host, const outcome *ours)
{
    for (int64_t b = 0; b < host->batch; b++) {
        const float ulps = 0x1p-21f * std::max(1.0f, fabsf(host->lse[b]));
        bool good = host->status[b] == ours->status[b] && host->tokens[b] == ours->tokens[b] &&
                    near(host->scores[b], ours->scores[b], 0.0f) &&
                    near(host->lse[b], ours->lse[b], ulps) &&
                    near(host->logprobs[b], ours->logprobs[b], 2 * ulps);
        for (int i = 0; i < test.num_top; i++) {
            const int64_t at = b * test.num_top + i;
            good = good && host->top_ids[at] == ours->top_ids[at] &&
                   near(host->top_logprobs[at], ours->top_logprobs[at], 2 * ulps);
        }
        if (test.entropy)
            good = good && near(host->entropy[b], ours->entropy[b],
                                0x1p-15f + 0x1p-19f * (host->entropy[b] + fabsf(host->lse[b])));
        if (good)
            continue;
        printf(
            "%s: row %d: status %d token %d score %a lse %a, top %d %d; %d %d %a %a, %d %d by the "
            "CPU\n",
            test.what, (int)b, (int)ours->status[b], (int)ours->tokens[b], (double)ours->scores[b],
            (double)ours->lse[b], (int)ours->top_ids[b * test.num_top],
            (int)ours->top_ids[(b + 1) * test.num_top - 1], (int)host->status[b],
            (int)host->tokens[b], (double)host->scores[b], (double)host->lse[b],
            (int)host->top_ids[b * test.num_top], (int)host->top_ids[(b + 1) * test.num_top - 1]);
        if (test.entropy)
            printf("  entropy %a, %a by the CPU\n", (double)ours->entropy[b],
                   (double)host->entropy[b]);
        return false;
    }
    return true;
}

bool passes(int index, gumbel_device *cpu)
{
    test_problem test = make(index);
    const problem_plan *plan = &test.generated->plan;
    outcome *host = make_outcome(test), *ours = make_outcome(test), *again = make_outcome(test);
    uint64_t *thresholds = (uint64_t *)poisoned_workspace(
        (size_t)plan->batch * CUDA_THRESHOLD_WORDS * sizeof *thresholds);
    const int width = emulated_width_for(plan->batch);
    const int other = emulated_width(plan->batch, 1, &test.random);
    snprintf(test.what, sizeof test.what, "problem %d, %d CTAs, %d banned, rows %d and %d: %s",
             index, test.ctas, (int)test.ids.size(), emulated_rows(width), emulated_rows(other),
             problem_describe(plan));
    const std::vector<float> stored = store_logits(&test);
    const gumbel_sampling sampling = sampling_of(test);
    gumbel_logits logits = {};
    logits.struct_size = sizeof logits;
    logits.logits = {stored.data(), GUMBEL_FLOAT32, plan->batch, plan->vocab, 0, 0};
    logits.vocab_size = plan->vocab_size;
    logits.scale = plan->scale;
    bool good = draw_logits(cpu, &logits, &sampling, host) == GUMBEL_OK;
    draw_emulated(&test, width, 2 * (uint64_t)index + 1, thresholds, ours);
    draw_emulated(&test, other, 2 * (uint64_t)index + 2, thresholds, again);
    good = good && agree(test, host, ours) && outcome_same(ours, 0, again, OUTCOME_ALL, test.what);
    free(thresholds);
    outcome_free(again);
    outcome_free(ours);
    outcome_free(host);
    problem_free(test.generated);
    return good;
}

} // namespace

/* usage: test_statistics_sm90 [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int failed = run_cpu_problems(argc, argv, 40, 1000,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu); });
    return failed != 0;
}

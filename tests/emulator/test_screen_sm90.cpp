// SPDX-License-Identifier: Apache-2.0
//
// Compares draws with a screen on Hopper with draws of the full pass, bit by bit. The kernels'
// source runs on a CPU, with threads in a random order. Only calls with a NaN, short lists or many
// draws may fall back to the full pass.
#include "launch_sm90.h"
#include "screen_problems.h"

#include <stdio.h>
#include <stdlib.h>

namespace
{

struct draw_counts {
    int by_screen, by_full_pass;
    int64_t rows, listed;
};

bool run_problem(int index, draw_counts *counts)
{
    uint64_t random = (uint64_t)index;
    char what[400];
    problem_plan plan = make_screen_plan(index, &random);
    problem *generated = problem_make(&plan);
    const bool has_nan = one_in(&random, 6), short_lists = one_in(&random, 6);
    const bool nibbles = one_in(&random, 2);
    const gumbel_screen_certificate certificate =
        nibbles ? GUMBEL_SCREEN_PROBABLE : choose_certificate(&random);
    const bool leans = certificate == GUMBEL_SCREEN_CERTAIN && !has_nan && one_in(&random, 2);
    if (has_nan)
        set_nan(generated, one_in(&random, 2));
    if (leans)
        enlarge_steps(generated->head.weight);
    const int ctas = 1 + (int)random_below(&random, 5), width = cuda_sm90_width_for(plan.batch);
    const bool is_masked = !has_nan && one_in(&random, 2);
    snprintf(what, sizeof what, "problem %d, %d CTAs%s%s%s%s%s: %s", index, ctas,
             short_lists ? ", short lists" : "", is_masked ? ", masked" : "",
             nibbles ? ", nibbles" : "", certificate == GUMBEL_SCREEN_CERTAIN ? ", certain" : "",
             leans ? ", leaning" : "", problem_describe(&plan));
    outcome *full = outcome_make(plan.batch, plan.samples),
            *ours = outcome_make(plan.batch, plan.samples);
    uint64_t *thresholds = (uint64_t *)poisoned_workspace(
        (size_t)(plan.batch * plan.samples) * CUDA_THRESHOLD_WORDS * sizeof *thresholds);
    const token_mask mask(plan, &random);
    gumbel_head head = generated->head;
    if (is_masked)
        head.bias = tensor_of(mask.bias.data(), GUMBEL_FLOAT32, 1, plan.vocab, 0);
    emulated_launch launch =
        emulated_launch_of(head, generated->sampling, false, width, 2, &random, what);
    void *screen =
        emulate_prepare_screen(launch.params.problem.weight, certificate, random_bits(&random),
                               short_lists ? 1 : GUMBEL_SCREEN_LIST_MAX, &random, what,
                               nibbles ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES);
    if (leans)
        lean_on_dither(generated->head.hidden, screen);
    launch.params.row_thresholds = thresholds;
    launch.params.tag = 1 + 3 * (uint64_t)index;
    outcome_poison(full);
    launch.params.output = full->output;
    launch.params.output.lse = launch.params.output.logprobs = NULL;
    gumbel_summary *summaries = (gumbel_summary *)poisoned_workspace(
        (size_t)(launch.params.splits * plan.batch * plan.samples) * sizeof *summaries);
    launch.params.summaries = summaries;
    emulate_fused(launch);
    emulate_finish(launch);
    outcome_poison(ours);
    launch.params.output = ours->output;
    launch.params.output.lse = launch.params.output.logprobs = NULL;
    launch.params.tag++;
    launch.params.problem.screen = screen;
    launch.params.problem.screen_format = nibbles ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES;
    launch.params.problem.bias = {};
    if (is_masked) {
        launch.params.problem.features |= GUMBEL_FEATURE_MASK;
        launch.params.problem.transforms.mask = {(const int32_t *)mask.words.data(), 0};
    }
    int64_t listed = 0;
    const bool fell_back = emulate_screen(launch.params, ctas, &random, what, &listed);
    bool good = true;
    /* With few tiles and many draws, more tokens may pass the filter than lists hold; by coarse
     * bounds most of the tokens may. */
    const bool is_coarse = cuda_screen_case_of(&launch.params.problem) == CUDA_SCREEN_NESTED;
    if (fell_back && !has_nan && !short_lists && plan.batch * plan.samples < (is_coarse ? 6 : 30)) {
        printf("%s: the call fell back to the full pass\n", what);
        good = false;
    }
    counts->by_full_pass += fell_back;
    counts->by_screen += !fell_back;
    good &= outcome_same(full, 0, ours, (outcome_parts)(OUTCOME_TOKENS | OUTCOME_SCORES), what);
    if (!fell_back) {
        counts->rows += plan.batch * plan.samples;
        counts->listed += listed;
    }
    free(summaries);
    free(thresholds);
    free(screen);
    outcome_free(full);
    outcome_free(ours);
    problem_free(generated);
    return good;
}

} // namespace

/* usage: test_screen_sm90 [FIRST_PROBLEM [COUNT]] */
int main(int argc, char **argv)
{
    draw_counts counts = {};
    uint64_t random = 1;
    const bool verifies = finds_norm_fault(&random);
    if (!verifies)
        printf("verification of the norms of weights is wrong\n");
    int failed = run_problems(argc, argv, 40, 700, [&](int i) { return run_problem(i, &counts); });
    printf("%d calls with the screen, %d by the full pass, %.1f candidates a draw\n",
           counts.by_screen, counts.by_full_pass,
           counts.rows ? (double)counts.listed / (double)counts.rows : 0.0);
    return failed != 0 || !verifies;
}

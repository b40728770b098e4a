// SPDX-License-Identifier: Apache-2.0
//
// Compares draws with a screen by mma.sync with draws of the portable kernels, bit by bit. The
// kernels' source runs on a CPU, with threads in a random order. Only calls with a NaN, short lists
// or many draws may fall back to the full pass.
#include "launch_sm80.h"
#include "launch_sm90.h"
#include "screen_problems.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

namespace
{

struct draw_counts {
    int by_screen, by_full_pass;
    int64_t rows, listed;
};

/* Shared memory of a multiprocessor: of capability 8.6, 8.0 and 9.0. */
constexpr int kSharedBytes[] = {100 * 1024, 164 * 1024, 228 * 1024};

/* A problem, and how it is drawn. */
struct screen_problem {
    problem_plan plan;
    bool has_nan, short_lists, is_masked, leans;
    gumbel_screen_certificate certificate;
    int ctas, shared_bytes;
    char what[400];
};

screen_problem make_problem(int index, uint64_t *random)
{
    screen_problem chosen = {};
    chosen.plan = make_screen_plan(index, random);
    chosen.plan.vocab += random_below(random, 16);
    chosen.has_nan = one_in(random, 6);
    chosen.short_lists = one_in(random, 5);
    chosen.is_masked = !chosen.has_nan && one_in(random, 2);
    chosen.certificate = choose_certificate(random);
    chosen.leans =
        chosen.certificate == GUMBEL_SCREEN_CERTAIN && !chosen.has_nan && one_in(random, 2);
    chosen.ctas = 1 + (int)random_below(random, 5);
    chosen.shared_bytes = kSharedBytes[random_below(random, 3)];
    snprintf(chosen.what, sizeof chosen.what, "problem %d, %d CTAs%s%s%s%s%s: %s", index,
             chosen.ctas, chosen.has_nan ? ", NaN" : "", chosen.short_lists ? ", short lists" : "",
             chosen.is_masked ? ", masked" : "",
             chosen.certificate == GUMBEL_SCREEN_CERTAIN ? ", certain" : "",
             chosen.leans ? ", leaning" : "", problem_describe(&chosen.plan));
    return chosen;
}

/* Draws by a portable kernel, at random a narrow or a wide one. */
void draw_by_full_pass(emulated_launch launch, int ctas, uint64_t *random, const char *what)
{
    cuda_params &p = launch.params;
    int kernel;
    do
        kernel = (int)random_below(random, kSm80Kernels);
    while (!emulated_sm80_serves(kernel, p.problem));
    prepare_sm80(&p, kernel, ctas, random);
    const size_t draws = (size_t)(p.problem.batch * p.problem.sampling.num_samples);
    p.summaries =
        (gumbel_summary *)poisoned_workspace((size_t)p.splits * draws * sizeof *p.summaries);
    emulate_sm80(p, kernel, random, what);
    launch.any = true;
    emulate_finish(launch);
    free(p.summaries);
}

/* Draws with and without a screen, and compares; counts how. */
bool compare_draws(const screen_problem &chosen, problem *generated, uint64_t tag, uint64_t *random,
                   draw_counts *counts)
{
    const problem_plan &plan = chosen.plan;
    const char *what = chosen.what;
    outcome *full = outcome_make(plan.batch, plan.samples),
            *ours = outcome_make(plan.batch, plan.samples);
    const token_mask mask(plan, random);
    gumbel_head head = generated->head;
    if (chosen.is_masked)
        head.bias = tensor_of(mask.bias.data(), GUMBEL_FLOAT32, 1, plan.vocab, 0);
    emulated_launch launch =
        emulated_launch_of(head, generated->sampling, false, 0, 2, random, what);
    cuda_params &p = launch.params;
    void *screen =
        emulate_prepare_screen(p.problem.weight, chosen.certificate, random_bits(random),
                               chosen.short_lists ? 1 : GUMBEL_SCREEN_LIST_MAX, random, what);
    if (chosen.leans)
        lean_on_dither(generated->head.hidden, screen);
    p.row_thresholds = (uint64_t *)poisoned_workspace((size_t)(plan.batch * plan.samples) *
                                                      CUDA_THRESHOLD_WORDS * sizeof(uint64_t));
    p.tag = tag;
    outcome_poison(full);
    p.output = full->output;
    p.output.lse = p.output.logprobs = NULL;
    draw_by_full_pass(launch, chosen.ctas, random, what);
    outcome_poison(ours);
    p.output = ours->output;
    p.output.lse = p.output.logprobs = NULL;
    p.tag++;
    p.problem.screen = screen;
    p.problem.bias = {};
    if (chosen.is_masked) {
        p.problem.features |= GUMBEL_FEATURE_MASK;
        p.problem.transforms.mask = {(const int32_t *)mask.words.data(), 0};
    }
    int64_t listed = 0;
    const bool fell_back =
        emulate_screen_sm80(p, chosen.ctas, chosen.shared_bytes, random, what, &listed);
    bool good = outcome_same(full, 0, ours, (outcome_parts)(OUTCOME_TOKENS | OUTCOME_SCORES), what);
    /* With few tiles and many draws, more tokens may pass the filter than lists hold. */
    if (fell_back && !chosen.has_nan && !chosen.short_lists && plan.batch * plan.samples < 30) {
        printf("%s: the call fell back to the full pass\n", what);
        good = false;
    }
    counts->by_full_pass += fell_back;
    counts->by_screen += !fell_back;
    counts->rows += fell_back ? 0 : plan.batch * plan.samples;
    counts->listed += fell_back ? 0 : listed;
    free(p.row_thresholds);
    free(screen);
    outcome_free(full);
    outcome_free(ours);
    return good;
}

bool run_problem(int index, draw_counts *counts)
{
    uint64_t random = (uint64_t)index;
    const screen_problem chosen = make_problem(index, &random);
    problem *generated = problem_make(&chosen.plan);
    if (chosen.has_nan)
        set_nan(generated, one_in(&random, 2));
    if (chosen.leans)
        enlarge_steps(generated->head.weight);
    const bool good = compare_draws(chosen, generated, 1 + 200 * (uint64_t)index, &random, counts);
    problem_free(generated);
    return good;
}

} // namespace

/* usage: test_screen_sm80 [FIRST_PROBLEM [COUNT]] */
int main(int argc, char **argv)
{
    draw_counts counts = {};
    int failed = run_problems(argc, argv, 40, 700, [&](int i) { return run_problem(i, &counts); });
    printf("%d calls with the screen, %d by the full pass, %.1f candidates a draw\n",
           counts.by_screen, counts.by_full_pass,
           counts.rows ? (double)counts.listed / (double)counts.rows : 0.0);
    return failed != 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// Tests the kernel that completes rows whose draw precedes their truncation. The kernel's source
// runs on a CPU, with its threads in a random order. Outputs are compared with those of the CPU
// backend, which also makes the initial draws.
#include "launch_pivots.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "outcome.h"
}

namespace
{

/* Numbers of rows by the path that determined them (pivot_paths). `abandoned` rows were finished by
 * one CTA alone, because the CTAs of the row did not run at the same time. */
struct row_counts {
    int all, drawn, missed, exactly, abandoned;
};

struct test_problem {
    request *req;
    std::vector<float> top_p;
    uint64_t random;
    char what[500];
};

/* ------------------------------------------------------------------------------- a problem ---- */

request_plan plan_of(uint64_t *random)
{
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 6);
    plan.vocab = 1 + random_below(random, one_in(random, 2) ? 40000 : 600);
    choose_range(&plan, random);
    plan.order = (gumbel_order)random_below(random, 1 + GUMBEL_ORDER_TOP_K_TOP_P_MIN_P);
    plan.kind = one_in(random, 2) ? 1 + ROW_GAUSSIAN : 0;
    plan.dtype = one_in(random, 2) ? GUMBEL_FLOAT32 : (gumbel_dtype)(1 + random_below(random, 3));
    plan.scale = one_in(random, 4) ? 0.5f : 0.0f;
    plan.truncation = 1;
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Makes half of the logits of row b slightly lower than the others and sets top_p to one half, so
 * that the nucleus ends between two nearly equal logits. */
void tie_halves(test_problem *test, int64_t b)
{
    const gumbel_tensor &t = test->req->logits.logits;
    for (int64_t i = 0; t.dtype == GUMBEL_FLOAT32 && i < t.cols; i++)
        ((float *)t.data)[b * t.stride + i] = i % 2 ? 1.0f : 1.0f - 0x1p-22f;
    test->top_p[(size_t)b] = 0.5f;
}

/* Fills in *test, which must outlive its request: the request points to test->top_p. */
void make_test(test_problem *test, int index, gumbel_device *cpu)
{
    static const float top_ps[] = {0.3f,    0.5f,      0.8f, 0.95f, 0.95f,
                                   0.9999f, 1 - 1e-7f, 1.0f, 1e-30f};
    test->random = (uint64_t)index;
    request_plan plan = plan_of(&test->random);
    test->req = request_make(&plan, cpu);
    gumbel_truncation *cut = &test->req->truncation;
    clear_truncation(cut);
    for (int64_t b = 0; b < plan.batch; b++)
        test->top_p.push_back(top_ps[random_below(&test->random, 9)]);
    cut->top_p = {test->top_p.data(), 0};
    if (one_in(&test->random, 3)) {
        const uint32_t shape = random_below(&test->random, REQUEST_SHAPES + 1);
        if (shape == REQUEST_SHAPES)
            crowd(test->req, &test->random);
        else
            make_hostile(test->req, shape);
    }
    if (!one_in(&test->random, 3))
        tie_halves(test, plan.batch - 1);
}

/* ---------------------------------------------------------------------------- comparison ---- */

/* Draws the request without truncation: the draw from which the kernel starts. */
void draw_plainly(const test_problem &test, gumbel_device *cpu, outcome *into)
{
    request plain = *test.req;
    plain.sampling.truncation = NULL;
    if (request_draw(cpu, &plain, into) != GUMBEL_OK)
        exit(1);
}

/* Runs the kernel over all rows; returns whether all requested outputs agree with the CPU's. */
bool serve_rows(test_problem *test, gumbel_device *cpu, const cuda_truncated_params &p,
                const outcome *host, outcome *ours, row_counts *counts)
{
    draw_plainly(*test, cpu, ours);
    const bool at_once = !one_in(&test->random, 3);
    std::vector<pivot_paths> paths = emulate_pivots(p, at_once, &test->random, test->what);
    for (int64_t b = 0; b < p.problem.batch; b++) {
        if (!row_agrees(host, p.output, b, test->what))
            return false;
        const pivot_paths &way = paths[(size_t)b];
        counts->all++;
        counts->abandoned += !at_once && p.exchange[b];
        counts->drawn += way.drawn;
        counts->missed += way.missed;
        counts->exactly += way.exactly;
    }
    return true;
}

bool passes(int index, gumbel_device *cpu, row_counts *counts)
{
    test_problem test = {};
    make_test(&test, index, cpu);
    outcome *host = request_outcome(test.req), *ours = request_outcome(test.req);
    gumbel_output wanted = ours->output;
    wanted.lse = wanted.logprobs = wanted.top_logprobs = NULL;
    wanted.ranks = wanted.top_ids = wanted.kept = NULL;
    cuda_truncated_params p = params_of(*test.req, wanted);
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    p.splits = (int32_t)cuda_pivot_splits(range);
    std::vector<uint64_t> expected((size_t)cuda_pivot_exchange_words(q.batch, p.splits));
    p.exchange = expected.data();
    snprintf(test.what, sizeof test.what, "problem %d: %s", index,
             request_describe(&test.req->plan));
    bool good = request_draw(cpu, test.req, host) == GUMBEL_OK;
    good = good && serve_rows(&test, cpu, p, host, ours, counts);
    outcome_free(ours);
    outcome_free(host);
    request_free(test.req);
    return good;
}

} // namespace

/* usage: test_truncated_pivots [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    row_counts counts = {};
    int failed = run_problems(argc, argv, 80, 2000, [&](int i) { return passes(i, cpu, &counts); });
    printf("%d rows: %d drawn again, %d of them twice, %d summed exactly, %d by one CTA alone\n",
           counts.all, counts.drawn, counts.missed, counts.exactly, counts.abandoned);
    /* With fewer rows a path may not occur at all. */
    bool idle = counts.all >= 80 && std::min({counts.drawn, counts.missed, counts.exactly,
                                              counts.abandoned}) < counts.all / 60;
    if (idle)
        printf("a way to serve rows does so too seldom\n");
    gumbel_close(cpu);
    return failed != 0 || idle;
}

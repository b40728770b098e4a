// SPDX-License-Identifier: Apache-2.0
//
// Tests the kernel that truncates rows after their draw. Its source runs on a CPU, with threads in
// a random order. Outputs are compared with those of the CPU backend, which also makes the draws.
#include "launch_pivots.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "outcome.h"
}

namespace
{

/* Rows by path (pivot_paths). One CTA alone finishes a row whose CTAs do not run at the same time.
 */
struct row_counts {
    int all, drawn_again, drawn_twice, summed_exactly, finished_by_one_cta;
};

struct test_problem {
    request *req;
    std::vector<float> top_p;
    uint64_t random;
    char what[500];
};

/* ------------------------------------------------------------------------------- a problem ---- */

request_plan make_plan(uint64_t *random)
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
    request_plan plan = make_plan(&test->random);
    test->req = request_make(&plan, cpu);
    gumbel_truncation *truncation = &test->req->truncation;
    clear_truncation(truncation);
    for (int64_t b = 0; b < plan.batch; b++)
        test->top_p.push_back(top_ps[random_below(&test->random, 9)]);
    truncation->top_p = {test->top_p.data(), 0};
    if (one_in(&test->random, 3)) {
        const uint32_t shape = random_below(&test->random, REQUEST_SHAPES + 1);
        if (shape == REQUEST_SHAPES)
            set_adjacent_logits(test->req, &test->random);
        else
            set_hostile_logits(test->req, shape);
    }
    if (!one_in(&test->random, 3))
        tie_halves(test, plan.batch - 1);
}

/* ---------------------------------------------------------------------------- comparison ---- */

/* Makes the draw from which the kernel starts. */
void draw_without_truncation(const test_problem &test, gumbel_device *cpu, outcome *plain_draw)
{
    request plain = *test.req;
    plain.sampling.truncation = NULL;
    if (request_draw(cpu, &plain, plain_draw) != GUMBEL_OK)
        exit(1);
}

/* Runs the kernel; returns whether all requested outputs of all rows agree with the CPU's. */
bool run_and_compare_rows(test_problem *test, gumbel_device *cpu, const cuda_truncated_params &p,
                          const outcome *host, outcome *ours, row_counts *counts)
{
    draw_without_truncation(*test, cpu, ours);
    const bool at_once = !one_in(&test->random, 3);
    std::vector<pivot_paths> paths = emulate_pivots(p, at_once, &test->random, test->what);
    for (int64_t b = 0; b < p.problem.batch; b++) {
        if (!row_agrees(host, p.output, b, test->what))
            return false;
        const pivot_paths &path = paths[(size_t)b];
        counts->all++;
        counts->finished_by_one_cta += !at_once && p.exchange[b];
        counts->drawn_again += path.drawn_again;
        counts->drawn_twice += path.drawn_twice;
        counts->summed_exactly += path.summed_exactly;
    }
    return true;
}

bool run_problem(int index, gumbel_device *cpu, row_counts *counts)
{
    test_problem test = {};
    make_test(&test, index, cpu);
    outcome *host = request_outcome(test.req), *ours = request_outcome(test.req);
    gumbel_output requested = ours->output;
    requested.lse = requested.logprobs = requested.top_logprobs = NULL;
    requested.ranks = requested.top_ids = requested.kept = NULL;
    cuda_truncated_params p = params_of(*test.req, requested);
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    p.splits = (int32_t)cuda_pivot_splits(range);
    std::vector<uint64_t> exchange((size_t)cuda_pivot_exchange_words(q.batch, p.splits));
    p.exchange = exchange.data();
    snprintf(test.what, sizeof test.what, "problem %d: %s", index,
             request_describe(&test.req->plan));
    bool good = request_draw(cpu, test.req, host) == GUMBEL_OK;
    good = good && run_and_compare_rows(&test, cpu, p, host, ours, counts);
    outcome_free(ours);
    outcome_free(host);
    request_free(test.req);
    return good;
}

} // namespace

/* usage: test_truncated_pivots [FIRST_PROBLEM [COUNT]] */
int main(int argc, char **argv)
{
    row_counts counts = {};
    int failed = run_cpu_problems(argc, argv, 80, 2000, [&](int i, gumbel_device *cpu) {
        return run_problem(i, cpu, &counts);
    });
    printf("%d rows: %d drawn again, %d of them twice, %d summed exactly, %d by one CTA alone\n",
           counts.all, counts.drawn_again, counts.drawn_twice, counts.summed_exactly,
           counts.finished_by_one_cta);
    /* With fewer than 80 rows a path may not occur at all. */
    bool path_too_rare =
        counts.all >= 80 && std::min({counts.drawn_again, counts.drawn_twice, counts.summed_exactly,
                                      counts.finished_by_one_cta}) < counts.all / 60;
    if (path_too_rare)
        printf("some path served fewer than one row in 60\n");
    return failed != 0 || path_too_rare;
}

// SPDX-License-Identifier: Apache-2.0
//
// The kernel that draws rows by their programs, from source on a CPU, the threads of a cluster in a
// random order, against the CPU backend.
#include "launch_cluster.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "random_programs.h"
}

namespace
{

struct test_problem {
    request *req;
    random_programs programs;
    int32_t live_rows;
    std::vector<int32_t> given;
    uint64_t random;
    char what[500];
};

request_plan plan_of(uint64_t *random)
{
    static const uint32_t vocabs[] = {70, 600, 5000, 20000};
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 2);
    plan.vocab = 1 + random_below(random, vocabs[random_below(random, 4)]);
    choose_range(&plan, random);
    plan.ties = (gumbel_ties)random_below(random, 2);
    plan.kind = one_in(random, 2) ? 1 + ROW_GAUSSIAN : 0;
    plan.truncation = 1;
    plan.seed = random_bits(random) >> 20;
    plan.samples = 1 + one_in(random, 3);
    plan.num_top = one_in(random, 2) ? 1 + (int32_t)random_below(random, 128) : 0;
    plan.dtype = (gumbel_dtype)(1 + random_below(random, 3));
    plan.scale = one_in(random, 4) ? 0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 5.0f : 0.0f;
    plan.logprobs_of = one_in(random, 5) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    plan.transforms = one_in(random, 3);
    plan.history = one_in(random, 2);
    plan.given_noise = one_in(random, 8);
    return plan;
}

void make_test(test_problem *test, int index, gumbel_device *cpu)
{
    test->random = (uint64_t)index + 1000;
    request_plan plan = plan_of(&test->random);
    test->req = request_make(&plan, cpu);
    random_programs_set(&test->programs, test->req, &test->random);
    if (one_in(&test->random, 2))
        test->req->transforms.banned = test->req->transforms.bias = {};
    if (one_in(&test->random, 3))
        set_adjacent_logits(test->req, &test->random);
    else if (one_in(&test->random, 3))
        set_hostile_logits(test->req, random_below(&test->random, REQUEST_SHAPES));
    test->live_rows = (int32_t)plan.batch - 1;
    if (one_in(&test->random, 8))
        test->req->sampling.live_rows = &test->live_rows;
}

/* Draws the rows; returns whether all agree with the CPU backend. */
bool draws_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p)
{
    outcome *host = request_outcome(test->req);
    bool good = request_draw(cpu, test->req, host) == GUMBEL_OK;
    emulate_programs(p, &test->random, test->what);
    for (int64_t b = 0; good && b < p.problem.batch; b++)
        good = row_agrees(host, p.output, b, test->what);
    outcome_free(host);
    return good;
}

/* Processes the rows; returns whether all have the CPU backend's bits. */
bool processed_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p)
{
    const gumbel_problem &q = p.problem;
    std::vector<float> host((size_t)(q.batch * q.vocab)), ours(host.size(), -12345.0f);
    if (request_process(cpu, &test->req->logits, &test->req->sampling, host.data()))
        return false;
    p.processed_stride = q.vocab;
    p.processed = ours.data();
    emulate_programs(p, &test->random, test->what);
    for (size_t i = 0; i < host.size(); i++)
        if (!same_float(host[i], ours[i])) {
            printf("%s: processed[%zu] is %a, not %a\n", test->what, i, (double)ours[i],
                   (double)host[i]);
            return false;
        }
    return true;
}

bool passes(int index, gumbel_device *cpu)
{
    test_problem test = {};
    make_test(&test, index, cpu);
    const bool processed = one_in(&test.random, 3) && !test.req->sampling.live_rows;
    outcome *ours = request_outcome(test.req);
    gumbel_output none = {};
    cuda_truncated_params p =
        params_of(*test.req, processed ? none : choose_outputs(ours, &test.random));
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(std::max<int64_t>(q.end_token - origin, 1));
    snprintf(test.what, sizeof test.what, "problem %d, %s: %s: %s", index,
             processed ? "processed" : "drawn", request_describe(&test.req->plan),
             test.programs.text);
    const bool good = processed ? processed_agree(&test, cpu, p) : draws_agree(&test, cpu, p);
    outcome_free(ours);
    request_free(test.req);
    return good;
}

} // namespace

/* usage: test_program_cluster [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    int failed = run_problems(argc, argv, 40, 3000, [&](int i) { return passes(i, cpu); });
    gumbel_close(cpu);
    return failed != 0;
}

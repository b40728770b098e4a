// SPDX-License-Identifier: Apache-2.0
//
// The kernels that draw from logits, from source on a CPU, their threads in a random order, against
// the CPU backend: plain, with masses, with given noise, and with edits.
#include "launch_logits.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "outcome.h"
}

namespace
{

/* A call with masks and penalties only, or a plain one. */
request *make_call(uint64_t *random, gumbel_device *cpu)
{
    request_plan plan = plan_logits_draw(16000, random);
    plan.transforms = plan.history = !one_in(random, 3);
    plan.given_noise = !plan.transforms && one_in(random, 3);
    plan.seed = random_bits(random) >> 20;
    return make_request_without_lists(plan, cpu);
}

/* Outputs other than tokens: log-probabilities of plain logits only. */
gumbel_output outputs_of(const outcome *ours, bool with_mass)
{
    gumbel_output wanted = ours->output;
    wanted.ranks = wanted.top_ids = wanted.kept = NULL;
    wanted.top_logprobs = NULL;
    wanted.num_top = 0;
    if (!with_mass)
        wanted.lse = wanted.logprobs = NULL;
    return wanted;
}

/* Launch parameters as the CUDA backend prepares them, with a few splits a row. */
cuda_params launch_of(const request &req, const gumbel_output &output, uint64_t *random)
{
    cuda_params p = {};
    const cuda_truncated_params from = params_of(req, output);
    p.problem = from.problem;
    p.inverse_cap = from.inverse_cap;
    p.output = output;
    const gumbel_problem &q = p.problem;
    const int64_t range = q.end_token - q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.split_size = cuda_split_size(range, 1 + random_below(random, 4), CUDA_LOGITS_STEP);
    p.splits = (int32_t)((range + p.split_size - 1) / p.split_size);
    p.tag = random_bits(random) >> 24;
    return p;
}

/* Numbers of calls of each kind. */
struct call_counts {
    int edited, with_mass, given;
};

bool passes(int index, gumbel_device *cpu, call_counts *counts)
{
    uint64_t random = (uint64_t)index;
    char what[500];
    request *req = make_call(&random, cpu);
    outcome *host = request_outcome(req), *ours = request_outcome(req);
    const bool with_mass = !req->plan.transforms && one_in(&random, 2);
    snprintf(what, sizeof what, "problem %d: %s", index, request_describe(&req->plan));
    cuda_params p = launch_of(*req, outputs_of(ours, with_mass), &random);
    p.problem.with_mass = with_mass;
    const size_t draws = (size_t)(p.problem.batch * p.problem.sampling.num_samples);
    std::vector<gumbel_summary> summaries(draws * (size_t)p.splits);
    std::vector<uint64_t> thresholds(draws * CUDA_THRESHOLD_WORDS, random_bits(&random));
    p.summaries = summaries.data();
    p.row_thresholds = thresholds.data();
    counts->edited += p.problem.features != 0;
    counts->with_mass += with_mass;
    counts->given += p.problem.sampling.noise != NULL;
    bool good = request_draw(cpu, req, host) == GUMBEL_OK;
    for (int replay = 0; good && replay < 2; replay++) {
        emulate_logits(p, &random, what);
        for (int64_t b = 0; good && b < p.problem.batch; b++)
            good = row_agrees(host, p.output, b, what);
    }
    outcome_free(ours);
    outcome_free(host);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_logits [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    call_counts counts = {};
    int failed = run_cpu_problems(
        argc, argv, 200, 20000, [&](int i, gumbel_device *cpu) { return passes(i, cpu, &counts); });
    printf("%d calls edited, %d with masses, %d took given noise\n", counts.edited,
           counts.with_mass, counts.given);
    return failed != 0;
}

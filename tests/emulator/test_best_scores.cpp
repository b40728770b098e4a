// SPDX-License-Identifier: Apache-2.0
//
// The kernel that lists the best scores of a draw, from source on a CPU, against the CPU backend:
// rows of every kind of request, with ties, with few tokens, and without tokens.
#include "launch_step.h"
#include "truncated_rows.h"

extern "C" {
#include "outcome.h"
}

namespace
{

/* A request with one draw a row. */
request *make_request(int index, uint64_t *random, gumbel_device *cpu)
{
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 3);
    plan.vocab = 1 + random_below(random, one_in(random, 3) ? 20000 : 3000);
    choose_range(&plan, random);
    plan.kind = one_in(random, 3) ? 1 + (int)random_below(random, ROW_KINDS) : 0;
    plan.truncation = one_in(random, 2);
    plan.transforms = plan.history = one_in(random, 3);
    plan.given_noise = one_in(random, 4);
    plan.samples = 1;
    plan.seed = (uint64_t)index + 1;
    return request_make(&plan, cpu);
}

bool lists_agree(const gumbel_output &host, const gumbel_output &ours, int64_t batch,
                 const char *what)
{
    for (int64_t i = 0; i < batch * host.num_best; i++)
        if ((ours.best_ids && host.best_ids[i] != ours.best_ids[i]) ||
            !same_float(host.best_scores[i], ours.best_scores[i])) {
            printf("%s: row %d, place %d: token %d of score %a, not %d of %a\n", what,
                   (int)(i / host.num_best), (int)(i % host.num_best),
                   ours.best_ids ? (int)ours.best_ids[i] : -1, (double)ours.best_scores[i],
                   (int)host.best_ids[i], (double)host.best_scores[i]);
            return false;
        }
    return true;
}

bool passes(int index, gumbel_device *cpu)
{
    uint64_t random = (uint64_t)index;
    char what[500];
    request *req = make_request(index, &random, cpu);
    outcome *host = request_outcome(req);
    const int32_t best = 1 + (int32_t)random_below(&random, GUMBEL_BEST_MAX);
    const size_t listed = (size_t)(req->plan.batch * best);
    std::vector<int32_t> host_ids(listed), our_ids(listed, -7);
    std::vector<float> host_scores(listed), our_scores(listed, -7.0f);
    gumbel_output &wanted = host->output;
    wanted.num_best = best;
    wanted.best_ids = host_ids.data();
    wanted.best_scores = host_scores.data();
    snprintf(what, sizeof what, "problem %d, %d best: %s", index, (int)best,
             request_describe(&req->plan));
    bool good = request_draw(cpu, req, host) == GUMBEL_OK;
    gumbel_output ours = wanted;
    ours.best_ids = index % 4 ? our_ids.data() : nullptr; /* scores only */
    ours.best_scores = our_scores.data();
    cuda_best_params p = {};
    p.problem = params_of(*req, ours).problem;
    p.output = ours;
    p.stride = p.problem.vocab;
    std::vector<float> rows((size_t)(req->plan.batch * p.stride));
    p.rows = rows.data();
    good = good && request_process(cpu, &req->logits, &req->sampling, rows.data()) == GUMBEL_OK;
    if (good) {
        emulate_best(p, &random, what);
        good = lists_agree(wanted, ours, req->plan.batch, what);
    }
    outcome_free(host);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_best_scores [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int failed = run_cpu_problems(argc, argv, 60, 3000,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu); });
    return failed != 0;
}

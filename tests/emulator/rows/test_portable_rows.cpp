// SPDX-License-Identifier: Apache-2.0
//
// The kernels that serve rows of requests on every GPU, by one CTA or from the candidates of
// several, from source on a CPU, their threads in a random order, against the CPU backend.
#include "launch_portable_rows.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

namespace
{

/* Numbers of rows: of the two-pass kernel, of those it served from candidates, and of rows whose
 * sets were listed. */
struct row_counts {
    int64_t two_pass, from_candidates, listed;
    entropy_counts entropies;
};

request_plan plan_of(uint64_t *random)
{
    request_plan plan = plan_logits_draw(one_in(random, 4) ? 30000 : 6000, random);
    plan.samples = 1 + (int32_t)random_below(random, 2);
    plan.num_top = one_in(random, 2) ? 1 + (int32_t)random_below(random, 128) : 0;
    plan.order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    plan.ties = (gumbel_ties)random_below(random, 2);
    plan.logprobs_of = one_in(random, 4) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    plan.transforms = one_in(random, 2);
    plan.history = one_in(random, 2);
    plan.truncation = !one_in(random, 6);
    plan.given_noise = one_in(random, 6);
    plan.seed = random_bits(random) >> 20;
    plan.kept_capacity = 1 + (int32_t)random_below(random, one_in(random, 3)   ? 30
                                                           : one_in(random, 2) ? 700
                                                                               : 20000);
    plan.entropy = one_in(random, 2);
    return plan;
}

/* Truncates to at most 256 tokens, by rules that candidates determine. */
void truncate_to_candidates(request *req, int32_t *top_k, uint64_t *random)
{
    clear_truncation(&req->truncation);
    req->truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    *top_k = 1 + (int32_t)random_below(random, CUDA_TRUNCATED_TOP_MAX);
    req->truncation.top_k = {top_k, GUMBEL_SAME};
}

/* Sets the CTAs of a row, and a poisoned workspace. */
void split_rows(cuda_truncated_params *p, uint64_t *random)
{
    const gumbel_problem &q = p->problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    const size_t rows = (size_t)q.batch;
    p->split_size = CUDA_TRUNCATED_TILE * (1 + random_below(random, 4));
    p->splits = (int32_t)((range + p->split_size - 1) / p->split_size);
    p->tag = 1 + random_below(random, 1000);
    const size_t splits = rows * (size_t)p->splits;
    p->counters = (uint64_t *)poisoned_workspace(rows * CUDA_THRESHOLD_WORDS * sizeof *p->counters);
    p->split_results = (cuda_split_result *)poisoned_workspace(splits * sizeof *p->split_results);
    p->candidates = (cuda_candidate *)poisoned_workspace(splits * CUDA_TRUNCATED_CANDIDATES *
                                                         sizeof *p->candidates);
}

bool rows_agree(const cuda_truncated_params &p, const outcome *host, const char *what)
{
    for (int64_t b = 0; b < p.problem.batch; b++)
        if (!row_agrees(host, p.output, b, what))
            return false;
    return true;
}

/* Runs a problem by one CTA a row; those with an even number also in two passes. */
bool passes(int index, gumbel_device *cpu, row_counts *counts)
{
    char what[500];
    uint64_t random = (uint64_t)index;
    request_plan plan = plan_of(&random);
    if (index % 8 == 3)
        plan.kept_capacity = 1;
    request *req = request_make(&plan, cpu);
    int32_t top_k, live_rows = (int32_t)plan.batch - 1;
    if (index % 4 == 0)
        truncate_to_candidates(req, &top_k, &random);
    if (one_in(&random, 4))
        set_hostile_logits(req, random_below(&random, REQUEST_SHAPES));
    else if (one_in(&random, 4))
        set_adjacent_logits(req, &random);
    if (one_in(&random, 6))
        req->sampling.live_rows = &live_rows;
    outcome *host = request_outcome(req), *ours = request_outcome(req);
    cuda_truncated_params p = params_of(*req, choose_outputs(ours, &random));
    snprintf(what, sizeof what, "problem %d: %s", index, request_describe(&plan));
    bool good = request_draw(cpu, req, host) == GUMBEL_OK;
    emulate_alone(p, &random, what);
    good = good && rows_agree(p, host, what);
    for (int64_t b = 0; p.output.kept_ids && b < plan.batch; b++)
        counts->listed += host->kept[b] > 0 && host->kept[b] <= plan.kept_capacity;
    for (int64_t b = 0; b < plan.batch; b++)
        counts->entropies.add(host, p.output, b);
    if (good && index % 2 == 0) { /* which returns no entropies */
        p.problem.features &= ~(uint32_t)GUMBEL_FEATURE_ENTROPY;
        p.output.entropy = NULL;
        split_rows(&p, &random);
        outcome_poison(ours);
        counts->from_candidates += emulate_two_pass(p, &random, what);
        counts->two_pass += plan.batch;
        good = rows_agree(p, host, what);
        free(p.counters);
        free(p.split_results);
        free(p.candidates);
    }
    outcome_free(ours);
    outcome_free(host);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_portable_rows [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    row_counts counts = {};
    int failed = run_cpu_problems(
        argc, argv, 60, 3000, [&](int i, gumbel_device *cpu) { return passes(i, cpu, &counts); });
    printf("%d of %d rows served from candidates, %d sets listed\n", (int)counts.from_candidates,
           (int)counts.two_pass, (int)counts.listed);
    /* Few problems do not reach every path. */
    bool idle = counts.two_pass >= 60 &&
                (counts.from_candidates * 4 < counts.two_pass || counts.listed < 20);
    if (idle)
        printf("a way to serve rows does so too seldom\n");
    idle |= !counts.entropies.check("alone", counts.two_pass >= 60 ? 2 : 0);
    return failed != 0 || idle;
}

// SPDX-License-Identifier: Apache-2.0
//
// The kernels that compute entropies, from source on a CPU, against the CPU backend: rows of z of
// every kind of request, and logits that they transform or read raw, by one CTA and by a cluster.
#include "launch_step.h"
#include "truncated_rows.h"

extern "C" {
#include "outcome.h"
}

namespace
{

/* A request: `direct` ones have no transforms and no truncation. */
request *make_request(int index, bool direct, uint64_t *random, gumbel_device *cpu)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_BFLOAT16, GUMBEL_FLOAT16};
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 3);
    plan.vocab = 1 + random_below(random, one_in(random, 3) ? 20000 : 3000);
    choose_range(&plan, random);
    plan.kind = one_in(random, 3) ? 1 + (int)random_below(random, ROW_KINDS) : 0;
    plan.dtype = dtypes[index % 3];
    plan.truncation = !direct && one_in(random, 2);
    plan.transforms = plan.history = !direct && one_in(random, 3);
    plan.programs = !direct && one_in(random, 3) ? 2 : 0;
    plan.scale = one_in(random, 4) ? -0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 30.0f : 0.0f;
    plan.logprobs_of = direct && one_in(random, 2) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    plan.samples = 1 + (int32_t)random_below(random, 2);
    plan.num_top = 1;
    plan.entropy = 1;
    plan.seed = (uint64_t)index + 1;
    return request_make(&plan, cpu);
}

bool passes(int index, gumbel_device *cpu)
{
    uint64_t random = (uint64_t)index;
    char what[500];
    const bool direct = index % 2, by_cluster = index / 2 % 2;
    request *req = make_request(index, direct, &random, cpu);
    const int64_t batch = req->plan.batch, vocab = req->plan.vocab;
    outcome *host = request_outcome(req);
    std::vector<float> found((size_t)batch, -7.0f), rows((size_t)(batch * vocab));
    snprintf(what, sizeof what, "problem %d, %s, %s: %s", index, direct ? "logits" : "z",
             by_cluster ? "clusters" : "CTAs", request_describe(&req->plan));
    bool good = request_draw(cpu, req, host) == GUMBEL_OK &&
                request_process(cpu, &req->logits, &req->sampling, rows.data()) == GUMBEL_OK;
    const cuda_truncated_params call = params_of(*req, host->output);
    cuda_entropy_params p = {};
    p.problem = call.problem;
    p.inverse_cap = call.inverse_cap;
    p.transforms = direct && req->plan.logprobs_of == GUMBEL_PROCESSED;
    p.status = host->status;
    p.entropy = found.data();
    if (!direct)
        p.problem.logits = tensor_of(rows.data(), GUMBEL_FLOAT32, batch, vocab, vocab);
    if (good)
        emulate_entropy(p, by_cluster, &random, what);
    for (int64_t b = 0; good && b < batch; b++)
        if (!same_float(host->entropy[b], found[(size_t)b])) {
            printf("%s: row %d: %a, not %a\n", what, (int)b, (double)found[(size_t)b],
                   (double)host->entropy[b]);
            good = false;
        }
    outcome_free(host);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_entropies [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int failed = run_cpu_problems(argc, argv, 80, 3000,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu); });
    return failed != 0;
}

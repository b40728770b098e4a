// SPDX-License-Identifier: Apache-2.0
//
// Draws from the logits of allowed tokens, from source on a CPU, their threads in a random order,
// against the CPU backend: with masses, penalties, given noise and many samples. Logits of tokens
// that are not allowed are NaN.
#include "launch_allowed.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "outcome.h"
}

namespace
{

request *make_call(uint64_t *random, gumbel_device *cpu)
{
    request_plan plan = plan_logits_draw(30000, random);
    plan.transforms = plan.history = 1;
    plan.given_noise = one_in(random, 4);
    plan.seed = random_bits(random) >> 20;
    return make_request_without_lists(plan, cpu);
}

/* Replaces the masks: few tokens, a run, every one, or none. Logits that no row allows are NaN. */
void set_masks(request *req, std::vector<int32_t> *masks, uint64_t *random)
{
    const request_plan &plan = req->plan;
    const int64_t words = (plan.first_token + plan.vocab + 31) / 32;
    masks->assign((size_t)(plan.batch * words), 0);
    for (int64_t b = 0; b < plan.batch; b++) {
        int32_t *row = &(*masks)[(size_t)(b * words)];
        const uint32_t kind = random_below(random, 5);
        const uint32_t count = kind == 0 ? random_below(random, 3) : random_below(random, 400);
        const uint32_t from = random_below(random, (uint32_t)plan.vocab);
        if (one_in(random, 8))
            std::fill(row, row + words, -1);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t place =
                kind == 1 ? from + i : random_below(random, (uint32_t)plan.vocab);
            const int64_t token = plan.first_token + place % plan.vocab;
            row[token / 32] |= (int32_t)(1u << token % 32);
        }
        for (int64_t i = 0; i < plan.vocab; i++)
            if (!((uint32_t)row[(plan.first_token + i) / 32] >> (plan.first_token + i) % 32 & 1))
                dtype_store_nan((void *)req->logits.logits.data, req->logits.logits.dtype,
                                b * req->logits.logits.stride + i);
    }
    req->transforms.mask = {masks->data(), 0};
    req->sampling.transforms = &req->transforms;
    req->sampling.slots = {};
}

gumbel_output outputs_of(const outcome *ours, bool with_mass)
{
    gumbel_output wanted = ours->output;
    wanted.ranks = wanted.top_ids = wanted.kept = wanted.kept_ids = NULL;
    wanted.top_logprobs = wanted.kept_logprobs = NULL;
    wanted.num_top = wanted.kept_capacity = 0;
    if (!with_mass)
        wanted.lse = wanted.logprobs = NULL;
    return wanted;
}

bool passes(int index, gumbel_device *cpu)
{
    uint64_t random = (uint64_t)index;
    char what[500];
    std::vector<int32_t> masks;
    request *req = make_call(&random, cpu);
    outcome *host = request_outcome(req), *ours = request_outcome(req);
    const bool with_mass = one_in(&random, 2);
    snprintf(what, sizeof what, "problem %d: %s", index, request_describe(&req->plan));
    set_masks(req, &masks, &random);
    const cuda_truncated_params from = params_of(*req, outputs_of(ours, with_mass));
    cuda_params p = {};
    p.problem = from.problem;
    p.problem.with_mass = with_mass;
    p.inverse_cap = from.inverse_cap;
    p.output = from.output;
    const gumbel_problem &q = p.problem;
    const int64_t range = q.end_token - q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const size_t draws = (size_t)(q.batch * q.sampling.num_samples);
    p.split_size = cuda_split_size(range, 1 + random_below(&random, 4),
                                   one_in(&random, 2) ? CUDA_ALLOWED_SPLIT_UNIT : GUMBEL_BLOCK);
    p.splits = (int32_t)((range + p.split_size - 1) / p.split_size);
    p.tag = random_bits(&random) >> 24;
    std::vector<gumbel_summary> summaries(draws * (size_t)p.splits);
    std::vector<uint64_t> thresholds(draws * CUDA_THRESHOLD_WORDS, random_bits(&random));
    p.summaries = summaries.data();
    p.row_thresholds = thresholds.data();
    bool good = request_draw(cpu, req, host) == GUMBEL_OK;
    for (int replay = 0; good && replay < 2; replay++) {
        emulate_draw_allowed(p, &random, what);
        for (int64_t b = 0; good && b < q.batch; b++)
            good = row_agrees(host, p.output, b, what);
    }
    outcome_free(ours);
    outcome_free(host);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_draw_allowed [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    int failed = run_cpu_problems(argc, argv, 150, 10000,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu); });
    return failed != 0;
}

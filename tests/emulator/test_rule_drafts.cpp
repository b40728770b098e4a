// SPDX-License-Identifier: Apache-2.0
//
// Drafts verified by probabilities with the source of the kernels, over rows split at random: the
// CPU backend's tokens, and log-probabilities within the tolerance of two logarithms, in any order
// of threads, whether or not the drafter supplies its log-probabilities.
#include "draft_device.h"

extern "C" {
#include "wide_drafts.h"
}

namespace
{

/* Splits of a row for 64 requests on 132 multiprocessors. The residual is a tenth of the target, so
 * nine tokens precede the one that the residual draws. */
constexpr int near_splits = 8, near_requests = 24, near_calls = 2; /* supplied by the drafter */
constexpr int64_t near_vocab = 151936;
constexpr float near_unseen = 0.125f;
constexpr int64_t near_products = 16, near_tokens = 1000; /* maximum per row, on average */

struct rule_counts {
    int64_t emitted, accepted, cut;
};

bool passes(wide_drafts *req, gumbel_device *cpu, emulated_device *device, rule_counts *counts)
{
    verified_arrays *wanted = verified_make(req->requests, req->max_nodes, req->requests);
    bool good = wide_verify(cpu, req, wanted) == GUMBEL_OK;
    for (int turn = 0; turn < 3 && good; turn++) {
        if (turn == 1)
            wide_supply_logprobs(req, cpu);
        verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
        good = wide_verify(&device->base, req, found) == GUMBEL_OK &&
               verified_same(wanted, found, 2e-6f);
        verified_free(found);
    }
    if (!good)
        printf("%s\n", device->what);
    for (int32_t r = 0; r < req->requests; r++) {
        counts->emitted += wanted->emitted[r];
        counts->accepted += wanted->accepted[r];
        counts->cut += wanted->accepted[r] + 1 < req->nodes[r];
    }
    verified_free(wanted);
    wide_free(req);
    return good;
}

/* A request that uses another request's rows, and a request with an invalid row, emit nothing; the
 * other requests do. */
bool shared_rows_pass(int i, gumbel_device *cpu, emulated_device *device)
{
    wide_drafts *req = wide_make_near(i, 4, 3000, 0.5f);
    const int32_t offsets[] = {0, 2, 0, 2, 4};
    wide_supply_logprobs(req, cpu);
    memcpy(req->offsets, offsets, sizeof offsets);
    verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
    bool good = wide_verify(&device->base, req, found) == GUMBEL_OK;
    for (int32_t r = 0; r < req->requests; r++)
        good &= found->status[r] == (r < 2 ? GUMBEL_ROW_DRAFT : GUMBEL_ROW_OK) &&
                (found->emitted[r] > 0) == (r >= 2);
    if (!good)
        printf("%s: rows of two requests\n", device->what);
    verified_free(found);
    wide_free(req);
    return good;
}

/* The coupled rule also requires a row to belong to one request. */
bool shared_root_passes(int i, emulated_device *device)
{
    wide_drafts *req = wide_make(1 + 6 * i, 300); /* from logits */
    if (req->requests < 3) {
        wide_free(req);
        return true;
    }
    const int32_t offsets[] = {0, 1, 0, 1, 1}, nodes[] = {1, 1, 1, 0};
    memcpy(req->offsets, offsets, sizeof *offsets * (size_t)(req->requests + 1));
    memcpy(req->nodes, nodes, sizeof *nodes * (size_t)req->requests);
    req->draft.rule = GUMBEL_RULE_COUPLED;
    verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
    const bool good =
        wide_verify(&device->base, req, found) == GUMBEL_OK &&
        found->status[1] == GUMBEL_ROW_DRAFT &&
        (found->status[0] == GUMBEL_ROW_DRAFT) != (found->status[2] == GUMBEL_ROW_DRAFT);
    if (!good)
        printf("%s: a root of two requests\n", device->what);
    verified_free(found);
    wide_free(req);
    return good;
}

/* Whether residual draws of near drafts needed few tokens. */
bool takes_little(const argmax_effort &effort)
{
    const int64_t rows = near_calls * near_requests;
    printf("%.1f products a row, %d warps of %d raced again\n", (double)effort.products / rows,
           (int)effort.races, (int)(rows * near_splits * CUDA_MASS_THREADS / 32));
    return effort.products >= rows && effort.products <= near_products * rows &&
           effort.tokens <= near_tokens * rows;
}

} // namespace

/* usage: test_rule_drafts [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    rule_counts counts = {};
    int64_t raced = 0;
    auto rule = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make(i, i % 8 ? 3000 : 14000), cpu, device, &counts);
    };
    auto verify_crowded = [&](int i, gumbel_device *cpu, emulated_device *device) {
        device->effort = {};
        const bool good = passes(wide_make_crowded(i), cpu, device, &counts);
        raced += device->effort.races;
        return good;
    };
    auto verify_near = [&](int i, gumbel_device *cpu, emulated_device *device) {
        device->effort = {};
        device->splits = near_splits;
        return passes(wide_make_near(i, near_requests, near_vocab, near_unseen), cpu, device,
                      &counts) &&
               takes_little(device->effort);
    };
    auto verify_small = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make_near(i, 64, 900 + 400 * (i % 5), 0.5f / (1 + i % 4)), cpu, device,
                      &counts);
    };
    int failed = run_drafts(argc, argv, 200, 10000, rule);
    failed |= run_drafts(argc, argv, 60, 500, verify_crowded);
    failed |= argc < 2 && raced == 0; /* lists cannot settle crowded rows */
    failed |= run_drafts(argc, argv, 10, 500, verify_small);
    failed |= run_drafts(argc, argv, 1, 60, verify_near);
    failed |= run_drafts(argc, argv, 8, 60, [](int i, gumbel_device *cpu, emulated_device *device) {
        return shared_rows_pass(i, cpu, device) && shared_root_passes(i, device);
    });
    printf("%d tokens emitted, %d of them drafts; %d requests cut short\n", (int)counts.emitted,
           (int)counts.accepted, (int)counts.cut);
    return failed != 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// Drafts weighed by the source of the kernels, over rows that are cut into parts at random: what
// the CPU backend emits, within the tolerance of two logarithms, whatever the order of threads, and
// whether the draft's call tells its log-probabilities or not.
#include "draft_device.h"

extern "C" {
#include "wide_drafts.h"
}

namespace
{

/* Parts of a row that 132 multiprocessors give each of 64 requests. The draft leaves a tenth of the
 * target as a residual, so that nine tokens come before the one that is drawn by that. */
constexpr int near_parts = 8, near_requests = 24, near_calls = 2; /* told */
constexpr int64_t near_vocab = 151936;
constexpr float near_unseen = 0.125f;
constexpr int64_t near_products = 16, near_tokens = 1000; /* at most a row, on average */

struct weigh_counts {
    int64_t emitted, accepted, cut;
};

bool passes(wide_drafts *req, gumbel_device *cpu, emulated_device *device, weigh_counts *counts)
{
    verified_arrays *wanted = verified_make(req->requests, req->max_nodes, req->requests);
    bool good = wide_verify(cpu, req, wanted) == GUMBEL_OK;
    for (int turn = 0; turn < 3 && good; turn++) {
        if (turn == 1)
            report_wide_difference(req, cpu);
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

/* A request whose rows are another's, too, and one whose rows cannot be, emit nothing; the others
 * do. */
bool shared_rows_pass(int i, gumbel_device *cpu, emulated_device *device)
{
    wide_drafts *req = wide_make_near(i, 4, 3000, 0.5f);
    const int32_t offsets[] = {0, 2, 0, 2, 4};
    report_wide_difference(req, cpu);
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

/* By the coupled rule, too, one row is one request's alone. */
bool shared_root_passes(int i, emulated_device *device)
{
    wide_drafts *req = wide_make(1 + 6 * i, 300); /* by logits */
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

/* Whether races behind a draft that is near went by few tokens. */
bool takes_little(const race_effort &effort)
{
    const int64_t rows = near_calls * near_requests;
    printf("%.1f products a row, %d warps of %d raced again\n", (double)effort.products / rows,
           (int)effort.races, (int)(rows * near_parts * CUDA_MASS_THREADS / 32));
    return effort.products >= rows && effort.products <= near_products * rows &&
           effort.tokens <= near_tokens * rows;
}

} // namespace

/* usage: test_weigh_drafts [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    weigh_counts counts = {};
    int64_t raced = 0;
    auto weigh = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make(i, i % 8 ? 3000 : 14000), cpu, device, &counts);
    };
    auto weigh_crowded = [&](int i, gumbel_device *cpu, emulated_device *device) {
        device->effort = {};
        const bool good = passes(wide_make_crowded(i), cpu, device, &counts);
        raced += device->effort.races;
        return good;
    };
    auto weigh_near = [&](int i, gumbel_device *cpu, emulated_device *device) {
        device->effort = {};
        device->parts = near_parts;
        return passes(wide_make_near(i, near_requests, near_vocab, near_unseen), cpu, device,
                      &counts) &&
               takes_little(device->effort);
    };
    auto weigh_small = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make_near(i, 64, 900 + 400 * (i % 5), 0.5f / (1 + i % 4)), cpu, device,
                      &counts);
    };
    int failed = run_drafts(argc, argv, 200, 10000, weigh);
    failed |= run_drafts(argc, argv, 60, 500, weigh_crowded);
    failed |= argc < 2 && raced == 0; /* lists cannot settle crowds */
    failed |= run_drafts(argc, argv, 10, 500, weigh_small);
    failed |= run_drafts(argc, argv, 1, 60, weigh_near);
    failed |= run_drafts(argc, argv, 8, 60, [](int i, gumbel_device *cpu, emulated_device *device) {
        return shared_rows_pass(i, cpu, device) && shared_root_passes(i, device);
    });
    printf("%d tokens emitted, %d of them drafts; %d requests cut short\n", (int)counts.emitted,
           (int)counts.accepted, (int)counts.cut);
    return failed != 0;
}

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

bool passes(wide_drafts *asked, gumbel_device *cpu, emulated_device *device, weigh_counts *counts)
{
    verified_arrays *wanted = verified_make(asked->requests, asked->max_nodes, asked->requests);
    bool good = wide_verify(cpu, asked, wanted) == GUMBEL_OK;
    for (int turn = 0; turn < 3 && good; turn++) {
        if (turn == 1)
            wide_tell(asked, cpu);
        verified_arrays *found = verified_make(asked->requests, asked->max_nodes, asked->requests);
        good = wide_verify(&device->base, asked, found) == GUMBEL_OK &&
               verified_same(wanted, found, 2e-6f);
        verified_free(found);
    }
    if (!good)
        printf("%s\n", device->what);
    for (int32_t r = 0; r < asked->requests; r++) {
        counts->emitted += wanted->emitted[r];
        counts->accepted += wanted->accepted[r];
        counts->cut += wanted->accepted[r] + 1 < asked->nodes[r];
    }
    verified_free(wanted);
    wide_free(asked);
    return good;
}

/* Whether races behind a draft that is near went by few tokens. */
bool takes_little(const race_effort &effort)
{
    const int64_t rows = near_calls * near_requests;
    printf("%.1f products a row, %d warps of %d raced again\n", (double)effort.products / rows,
           (int)effort.races, (int)(rows * near_parts * CUDA_WEIGH_THREADS / 32));
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
    printf("%d tokens emitted, %d of them drafts; %d requests cut short\n", (int)counts.emitted,
           (int)counts.accepted, (int)counts.cut);
    return failed != 0;
}

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

} // namespace

/* usage: test_weigh_drafts [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    weigh_counts counts = {};
    auto weigh = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make(i, i % 8 ? 3000 : 14000), cpu, device, &counts);
    };
    auto weigh_crowded = [&](int i, gumbel_device *cpu, emulated_device *device) {
        return passes(wide_make_crowded(i), cpu, device, &counts);
    };
    int failed = run_drafts(argc, argv, 200, 10000, weigh);
    failed |= run_drafts(argc, argv, 12, 500, weigh_crowded);
    printf("%d tokens emitted, %d of them drafts; %d requests cut short\n", (int)counts.emitted,
           (int)counts.accepted, (int)counts.cut);
    return failed != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the Hopper kernel, and the kernel that merges its CTAs' results. A test
 * passes what the CUDA backend passes to the driver.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SM90_H
#define TESTS_EMULATOR_LAUNCH_SM90_H

#include "cuda/common/cuda_statistics_params.h"
#include "cuda/policy/cuda_policy.h"
#include "problems.h"

struct emulated_launch {
    cuda_params params;
    int width; /* of the kernel: an index of cuda_sm90_widths */
    bool any;  /* use the kernel of CUDA_SM90_ANY, even if another one could serve */
    cuda_row_statistics *statistics; /* [splits][B], or NULL */
    uint64_t *random;                /* state of the thread order */
    const char *what;
};

/* A width of launches is an index of cuda_sm90_widths, or this one: paired CTAs of the widest. */
constexpr int kPairedWidth = CUDA_SM90_WIDTHS;

/* The narrowest width that holds a batch of one launch; or at random that one or a wider one that
 * also holds its draws. */
int emulated_width_for(int64_t batch);
int emulated_width(int64_t batch, int samples, uint64_t *random);

/* The number of rows that a launch of this width holds. */
int emulated_rows(int width);

/* A launch over `ctas` CTAs in whole clusters, or over as many as there are tiles, as
 * cuda_run_sm90() prepares it, but at random with a shorter ring of stages, which even a small D
 * fills. All device pointers are NULL. Keeps `random` and `what`. Ends the program if the library
 * refuses the problem. */
emulated_launch emulated_launch_of(const gumbel_head &head, const gumbel_sampling &sampling,
                                   bool with_mass, int width, int ctas, uint64_t *random,
                                   const char *what);

/* Run a kernel, its clusters one after the other; shared memory starts poisoned. Both end the
 * program if threads deadlock. The second does nothing if the first has finished the call. */
void emulate_fused(const emulated_launch &launch);
void emulate_finish(const emulated_launch &launch);

#endif

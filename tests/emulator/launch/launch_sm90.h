/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the Hopper kernel, and of the one that merges what its CTAs found, as fibers: what a
 * test hands over is what the CUDA backend hands to the driver.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SM90_H
#define TESTS_EMULATOR_LAUNCH_SM90_H

#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"
#include "problems.h"

struct emulated_launch {
    cuda_params params;
    int width;        /* of the kernel: its place in cuda_sm90_widths */
    bool any;         /* draw by the kernel of CUDA_SM90_ANY, though another one might serve */
    uint64_t *random; /* state: of the order in which threads run */
    const char *what; /* for messages */
};

/* The place of the narrowest width that holds a batch of one launch, or at random of a wider one
 * that holds its draws too. */
int emulated_width(int64_t batch, int samples, uint64_t *random);

/* A launch over `ctas` CTAs in whole clusters, or as many as there are tiles, as cuda_run_sm90()
 * prepares it, but at random with a shorter ring of stages, which even a small D fills: all device
 * pointers are NULL yet. Keeps `random` and `what`. Ends the program where the library refuses the
 * problem. */
emulated_launch emulated_launch_of(const gumbel_head &head, const gumbel_sampling &sampling,
                                   bool with_mass, int width, int ctas, uint64_t *random,
                                   const char *what);

/* Run a kernel, its clusters one after the other; what a CTA finds in shared memory is poison. Both
 * end the program where threads wait for ever. The second does nothing where the first one has
 * ended the call. */
void emulate_fused(const emulated_launch &launch);
void emulate_finish(const emulated_launch &launch);

#endif

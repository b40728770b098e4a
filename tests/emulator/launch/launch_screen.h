/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernels that make screens and draw by them, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SCREEN_H
#define TESTS_EMULATOR_LAUNCH_SCREEN_H

#include "cuda/fused/screen/screen_params.h"
#include "problems.h"

/* The screen of weights [V, D] with a list's room, on the heap, as cuda_screen_prepare() makes it.
 */
void *emulate_making(const gumbel_tensor &weight, int list_most, uint64_t *random,
                     const char *what);

/* What a screened draw is launched with. */
struct emulated_screen {
    cuda_screen_params params;
    int place; /* of the width */
    uint64_t *random;
    const char *what;
};

/* Split, screen and score, over `ctas` CTAs, as cuda_run_screen() prepares them but for a shorter
 * ring; params.call as emulated_launch_of() has it, with outputs, tag and floors. Whether the full
 * pass is to draw the call; else the outputs are there. `listed`: candidates. */
bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed);

#endif

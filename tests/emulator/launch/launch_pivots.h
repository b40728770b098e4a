/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernel that serves rows which are drawn before they are truncated.
 */
#ifndef TESTS_EMULATOR_LAUNCH_PIVOTS_H
#define TESTS_EMULATOR_LAUNCH_PIVOTS_H

#include "cuda/common/cuda_truncated_params.h"

#include <vector>

/* How a row was served after the first winner: drawn again, also because no token reached the
 * likely score, or summed exactly. */
struct pivot_paths {
    bool drawn, missed, exactly;
};

/* Runs the kernel over p.problem.batch rows by p.splits CTAs each: at the same time or, without
 * `at_once`, one after the other, as on a GPU that has no room for all. Returns how each row was
 * served. `random` is the state of the thread order, `what` is for messages. Ends the program if
 * threads deadlock. */
std::vector<pivot_paths> emulate_pivots(const cuda_truncated_params &p, bool at_once,
                                        uint64_t *random, const char *what);

#endif

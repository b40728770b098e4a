/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernel that serves rows which are drawn before they are cut, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_PIVOTS_H
#define TESTS_EMULATOR_LAUNCH_PIVOTS_H

#include "cuda/common/cuda_request.h"

#include <vector>

/* How a row was served, beyond the first look: drawn again, also where no token reached the score
 * that was looked for, and weighed exactly. */
struct pivot_paths {
    bool drawn, missed, exactly;
};

/* Run the kernel over p.problem.batch rows by p.parts CTAs each, side by side or, unless `at_once`,
 * one after the other, as where a GPU has no place for all of them; how each row was served.
 * `random` is the state of the order in which threads run, `what` is for messages. Ends the program
 * where threads wait for ever. */
std::vector<pivot_paths> emulate_pivots(const cuda_request_params &p, bool at_once,
                                        uint64_t *random, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernel that truncates rows after their draw.
 */
#ifndef TESTS_EMULATOR_LAUNCH_PIVOTS_H
#define TESTS_EMULATOR_LAUNCH_PIVOTS_H

#include "cuda/common/cuda_truncated_params.h"

#include <vector>

/* Steps that the kernel took for a row after the first winner: drew again; drew twice, because no
 * token reached the likely score; summed masses exactly. */
struct pivot_paths {
    bool drawn_again, drawn_twice, summed_exactly;
};

/* Runs p.splits CTAs for each of p.problem.batch rows: at the same time if `at_once`, else one
 * after the other, as on a GPU without room for all. Returns the path of each row. `random` is the
 * state of the thread order; messages include `what`. Ends the program if threads deadlock. */
std::vector<pivot_paths> emulate_pivots(const cuda_truncated_params &p, bool at_once,
                                        uint64_t *random, const char *what);

#endif

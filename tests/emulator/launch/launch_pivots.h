/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that truncate rows after their draw, by top_p or by programs.
 */
#ifndef TESTS_EMULATOR_LAUNCH_PIVOTS_H
#define TESTS_EMULATOR_LAUNCH_PIVOTS_H

#include "cuda/common/cuda_program_params.h"

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

/* As emulate_pivots(), for the kernel that draws rows before the only rule of their programs. */
std::vector<pivot_paths> emulate_program_pivots(const cuda_program_params &p, bool at_once,
                                                uint64_t *random, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernel that draws truncated rows and reads few of their blocks.
 */
#ifndef TESTS_EMULATOR_LAUNCH_BLOCKS_H
#define TESTS_EMULATOR_LAUNCH_BLOCKS_H

#include "cuda/common/cuda_truncated_params.h"

/* Runs the kernel over p.problem.batch rows, p.splits CTAs each, one after the other. `random` is
 * the state of the thread order; messages include `what`. Ends the program if threads deadlock. */
void emulate_blocks(const cuda_truncated_params &p, uint64_t *random, const char *what);

/* emulate_blocks() of the kernel that draws rows by programs. */
void emulate_program_blocks(const cuda_truncated_params &p, uint64_t *random, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernel that serves rows of requests from few of their blocks, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_BLOCKS_H
#define TESTS_EMULATOR_LAUNCH_BLOCKS_H

#include "cuda/common/cuda_request.h"

/* Run the kernel over p.problem.batch rows, p.parts CTAs each, one after the other. `random` is the
 * state of the order in which threads run, `what` is for messages. Ends the program where threads
 * wait for ever. */
void emulate_blocks(const cuda_request_params &p, uint64_t *random, const char *what);

#endif

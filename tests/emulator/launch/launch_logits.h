/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that draw from logits.
 */
#ifndef TESTS_EMULATOR_LAUNCH_LOGITS_H
#define TESTS_EMULATOR_LAUNCH_LOGITS_H

#include "cuda/common/cuda_params.h"

/* Runs the kernel that serves p.problem, by p.splits CTAs a row. `random` is the state of the
 * thread order, `what` is for messages. Ends the program if threads deadlock. */
void emulate_logits(const cuda_params &p, uint64_t *random, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernels that draw from logits, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_LOGITS_H
#define TESTS_EMULATOR_LAUNCH_LOGITS_H

#include "cuda/common/cuda_params.h"

/* Run the kernel that serves p.problem, by p.parts CTAs a row: one that edits, where it asks for
 * that. `random` is the state of the order in which threads run, `what` is for messages. Ends the
 * program where threads wait for ever. */
void emulate_logits(const cuda_params &p, uint64_t *random, const char *what);

#endif

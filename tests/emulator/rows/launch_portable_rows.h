/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that serve rows of requests on every GPU.
 */
#ifndef TESTS_EMULATOR_LAUNCH_PORTABLE_ROWS_H
#define TESTS_EMULATOR_LAUNCH_PORTABLE_ROWS_H

#include "cuda/common/cuda_truncated_params.h"

/* Runs the kernel of one CTA a row. `random` is the state of the thread order; messages include
 * `what`. Ends the program if threads deadlock. */
void emulate_alone(const cuda_truncated_params &p, uint64_t *random, const char *what);

/* emulate_alone() of the kernel of p.splits CTAs a row. Returns the number of rows that it served
 * from candidates. */
int64_t emulate_two_pass(const cuda_truncated_params &p, uint64_t *random, const char *what);

#endif

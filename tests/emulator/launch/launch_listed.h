/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernels that draw from the first tokens that ranks list, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_LISTED_H
#define TESTS_EMULATOR_LAUNCH_LISTED_H

#include "cuda/step/ranks/told_params.h"

/* As the backend launches them, by so many CTAs the last; the rest as in launch_step.h. */
void emulate_candidates(const cuda_candidate_params &p, uint64_t *random, const char *what);
void emulate_bound(const cuda_bound_params &p, uint64_t *random, const char *what);
void emulate_told(const cuda_told_params &p, int64_t ctas, uint64_t *random, const char *what);

#endif

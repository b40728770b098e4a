/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels of rows whose masks allow few tokens.
 */
#ifndef TESTS_EMULATOR_LAUNCH_ALLOWED_H
#define TESTS_EMULATOR_LAUNCH_ALLOWED_H

#include "cuda/fused/allowed/allowed_params.h"

/* Stores the logits of allowed tokens in s.call.logits_out, by `ctas` CTAs. `random` is the state
 * of the thread order, `what` is for messages. Both end the program if threads deadlock. */
void emulate_allowed_product(const cuda_allowed_params &s, int64_t ctas, uint64_t *random,
                             const char *what);

/* Draws from hidden states in one launch, by s.call.splits CTAs for each group of rows. */
void emulate_allowed_fused(const cuda_allowed_draw_params &s, uint64_t *random, const char *what);

/* Draws from p.problem.logits by p.splits CTAs a row. */
void emulate_draw_allowed(const cuda_params &p, uint64_t *random, const char *what);

#endif

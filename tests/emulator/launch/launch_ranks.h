/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernels that fetch rows of other ranks on errands, and that draw from the first
 * tokens that ranks list, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_RANKS_H
#define TESTS_EMULATOR_LAUNCH_RANKS_H

#include "core/ranks/host_collective.h"
#include "cuda/step/ranks/top64_params.h"

/* Each by so many CTAs; the rest as in launch_step.h. */
void emulate_ask(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random, const char *what);
void emulate_lay(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random, const char *what);

void emulate_exchange(const cuda_exchange_params &p, int64_t ctas, uint64_t *random,
                      const char *what);

/* As the backend launches them. Rows are listed behind a product that has left peaks. */
void emulate_candidates(const cuda_top64_params &p, uint64_t *random, const char *what);
void emulate_list(const cuda_top64_params &p, uint64_t *random, const char *what);
void emulate_told(const cuda_top64_exchange_params &p, uint64_t *random, const char *what);

#endif

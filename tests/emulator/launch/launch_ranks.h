/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that gather rows of other ranks, and those that draw from local
 * top-64 candidates.
 */
#ifndef TESTS_EMULATOR_LAUNCH_RANKS_H
#define TESTS_EMULATOR_LAUNCH_RANKS_H

#include "core/ranks/host_collective.h"
#include "cuda/step/ranks/top64_params.h"

/* Each launches `ctas` CTAs; other arguments as in launch_step.h. */
void emulate_request_rows(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random,
                          const char *what);
void emulate_scatter_rows(const gumbel_gathered_rows &p, int64_t ctas, uint64_t *random,
                          const char *what);

void emulate_exchange(const cuda_exchange_params &p, int64_t ctas, uint64_t *random,
                      const char *what);

/* As the backend launches them; emulate_select_top64() after a product that stored block maxima. */
void emulate_draw_top64(const cuda_top64_params &p, uint64_t *random, const char *what);
void emulate_select_top64(const cuda_top64_params &p, uint64_t *random, const char *what);
void emulate_exchange_top64(const cuda_top64_exchange_params &p, uint64_t *random,
                            const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the portable kernels of 16-bit weights.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SM80_H
#define TESTS_EMULATOR_LAUNCH_SM80_H

#include "cuda/common/cuda_params.h"
#include "cuda/policy/screen_policy.h"
#include "cuda/policy/wide_policy.h"

/* Shared memory of a multiprocessor of the GPUs with most. */
constexpr int kSm80SharedBytes = 228 * 1024;

/* The kernels: those of widths up to 32, then the wide ones. */
constexpr int kNarrowKernels = CUDA_SM80_WIDTHS - 1;
constexpr int kSm80Kernels = kNarrowKernels + CUDA_WIDE_KERNELS;

/* Columns of a kernel, and whether it can draw for this problem in one launch. */
int emulated_sm80_columns(int kernel);
bool emulated_sm80_serves(int kernel, const gumbel_problem &q);

/* Prepares a launch with at most `ctas` splits, as cuda_run_sm80() does, but with a ring of random
 * size. */
void prepare_sm80(cuda_params *p, int kernel, int ctas, uint64_t *random);

/* Runs the kernel, its CTAs one after the other; shared memory starts poisoned. Ends the program if
 * threads deadlock. */
void emulate_sm80(const cuda_params &p, int kernel, uint64_t *random, const char *what);

/* Runs the full pass after a draw with a screen, for up to 32 rows, if `state` requires it; `last`:
 * CTAs of the call's full passes up to this one. */
void emulate_fallback_sm80(const cuda_params &p, cuda_screen_state *state, uint32_t last,
                           uint64_t *random, const char *what);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that make screens and draw by them.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SCREEN_H
#define TESTS_EMULATOR_LAUNCH_SCREEN_H

#include "cuda/fused/screen/screen_params.h"
#include "problems.h"

/* The screen of weights [V, D], with room for its list, on the heap, as cuda_screen_prepare() makes
 * it. */
void *emulate_making(const gumbel_tensor &weight, int list_max, uint64_t *random, const char *what);

/* The launches of a draw by a screen. */
struct emulated_screen {
    cuda_screen_params params;
    cuda_params whole;   /* of the full pass */
    const int32_t *left; /* [B], for truncated rows */
    int place;           /* index of the width */
    uint64_t *random;
    const char *what;
};

/* Splits, filters, scores and, if candidates do not suffice, draws by the full pass, over `ctas`
 * CTAs and more that score, as cuda_run_screen() prepares them, but with shorter rings. params.call
 * is as of emulated_launch_of(), with outputs, tag and thresholds; the full pass has the next tag.
 * Returns whether the full pass has drawn the call. `listed` receives the number of candidates. */
bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed);

/* Draws truncated rows from the candidates of a screen. */
void emulate_screen_rows(const cuda_screen_rows &rows, uint64_t *random, const char *what);

/* Both for truncated rows, as cuda_run_screen_cut() prepares it, but without the kernels that serve
 * rows from the logits of the full pass: those logits and states go to rows' logits and row_states.
 * Returns whether all rows need these kernels. */
bool emulate_screen_cut(const cuda_params &call, cuda_truncated_params *rows, int ctas,
                        uint64_t *random, const char *what, int64_t *listed);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernels that make screens and draw by them, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_SCREEN_H
#define TESTS_EMULATOR_LAUNCH_SCREEN_H

#include "cuda/fused/screen/screen_params.h"
#include "problems.h"

/* The screen of weights [V, D] with a list's room, on the heap, as cuda_screen_prepare() makes it.
 */
void *emulate_making(const gumbel_tensor &weight, int list_most, uint64_t *random,
                     const char *what);

/* What a screened draw is launched with. */
struct emulated_screen {
    cuda_screen_params params;
    cuda_params whole;   /* of the full pass */
    const int32_t *left; /* [B], where rows are cut */
    int place;           /* of the width */
    uint64_t *random;
    const char *what;
};

/* Split, screen, score and, where that does not tell, draw by the full pass, over `ctas` CTAs and
 * more that score, as cuda_run_screen() prepares them but for shorter rings; params.call as
 * emulated_launch_of() has it, with outputs, tag and floors, and the full pass has the next tag.
 * Whether that has drawn the call. `listed`: candidates. */
bool emulate_screen(const cuda_params &call, int ctas, uint64_t *random, const char *what,
                    int64_t *listed);

/* Draw rows that are cut from what a screen lists of them. */
void emulate_screen_rows(const cuda_screen_rows &rows, uint64_t *random, const char *what);

/* Both where rows are cut, as cuda_run_screen_cut() prepares it, but for what serves rows from
 * the logits of the full pass; rows' logits and row_states are where these go. Whether all rows
 * are left to that. */
bool emulate_screen_cut(const cuda_params &call, cuda_request_params *rows, int ctas,
                        uint64_t *random, const char *what, int64_t *listed);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads with their screens on a GPU, draws by them, and what those leave in their workspace.
 */
#ifndef TESTS_CUDA_SCREENS_H
#define TESTS_CUDA_SCREENS_H

#include "cuda/plan/cuda_plan.h"
#include "cuda_requests.h"
#include "generated_heads.h"

/* A head in device memory, with its screen. */
typedef struct gpu_head {
    gumbel_head head;
    void *weight, *hidden;
    gumbel_screen screen;
} gpu_head;

gpu_head head_on_gpu(const generated_head *generated);
void free_gpu_head(gpu_head *h);

/* Whether a call is for the GPU's screen at all, of draws or of rows that are cut. */
int is_screened(const gumbel_head *head, const gumbel_sampling *sampling);

typedef struct screened_draw {
    void *workspace;
    cuda_workspace pieces;
    cuda_screen_state state;
} screened_draw;

/* Where a call has its pieces. */
cuda_workspace find_pieces(const gumbel_head *head, const gumbel_sampling *sampling,
                           void *workspace);

/* Draw each row once; what it leaves, where the head has a screen, and the workspace, which is the
 * caller's to free. */
void draw_by(const gumbel_head *head, const gumbel_sampling *sampling, outcome *into,
             screened_draw *d);

/* Many draws, in cuda_screen_many.c. */
void screen_many(void);

/* Rows that are cut, in cuda_screen_cuts.c. */
void screen_cuts(void);
void screen_cuts_odd(void);
void screen_cuts_replays(void);
void screen_cuts_small(void);

/* Draws by weights that changed, in cuda_screen_stale.c. */
void screen_stale_draws(void);
void screen_stale_small(void);

/* Tests of what is computed on the way, in cuda_screen_numbers.c. */
void screen_certificates(void);
void screen_stale(void);
void screen_roundings(void);

#endif

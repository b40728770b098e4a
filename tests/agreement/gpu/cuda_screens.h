/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads and their screens in GPU memory, draws from them, and the workspace of such draws.
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

typedef enum screen_kind {
    SCREEN_PROBABLE, /* bytes, by certificate */
    SCREEN_CERTAIN,
    SCREEN_NIBBLES, /* probable */
    SCREEN_KINDS,
} screen_kind;

/* The dither of the screen has a fixed seed. */
gpu_head copy_head_to_gpu(const generated_head *generated, screen_kind kind);
void free_gpu_head(gpu_head *h);

/* Whether a rung with a screen serves the call, truncated or not. */
int is_screened(const gumbel_head *head, const gumbel_sampling *sampling);

/* Whether the GPU draws without the Hopper kernels (options.rungs can exclude them), and then with
 * screens of bytes alone, plain draws alone. */
int draws_bytes_alone(void);
/* Kinds of screens that the GPU draws with: the first ones. */
static inline int count_screen_kinds(void)
{
    return draws_bytes_alone() ? SCREEN_NIBBLES : SCREEN_KINDS;
}
/* Whether tests of truncated rows are skipped; prints why. */
int skips_truncated(void);

/* Masks of `rows` rows of `words` words, in GPU memory, which allow half of all tokens, few, or
 * nearly all; none in `empty_row`, unless that is -1. The caller frees them. */
int32_t *copy_masks_to_gpu(int64_t rows, int64_t words, int64_t empty_row);

static const char *const screen_kind_names[] = {
    [SCREEN_PROBABLE] = "probable", [SCREEN_CERTAIN] = "certain", [SCREEN_NIBBLES] = "nibbles"};

typedef struct screened_draw {
    void *workspace;
    cuda_workspace arrays; /* pointers into `workspace` */
    cuda_screen_state state;
} screened_draw;

/* Pointers to the arrays of a screened call in its workspace. */
cuda_workspace find_workspace_arrays(const gumbel_head *head, const gumbel_sampling *sampling,
                                     void *workspace);

/* Draws each row once into `drawn`. The caller frees `d->workspace`; the other fields of `d` are
 * set if the head has a screen. */
void draw_rows_once(const gumbel_head *head, const gumbel_sampling *sampling, outcome *drawn,
                    screened_draw *d);

/* cuda_screen_many.c: 10^5 draws. */
void screen_many_draws(void);

/* cuda_screen_truncated.c: truncated rows. */
void screen_truncated_rows(void);
void screen_truncated_odd(void);
void screen_truncated_replays(void);
void screen_truncated_small(void);
void screen_truncated_large(void);

/* cuda_screen_stale.c: draws after weights have changed. */
void screen_stale_draws(void);
void screen_stale_small(void);

/* cuda_screen_numbers.c: bytes and error bounds, dither, detection of changed weights, rounding
 * errors. */
void screen_certificates(void);
void screen_dither(void);
void screen_layouts(void);
void screen_stale(void);
void screen_roundings(void);

#endif

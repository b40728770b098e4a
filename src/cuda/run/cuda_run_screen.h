/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of draws with a screen, which the launches on Hopper (cuda_run_sm90.c) and on other
 * GPUs (cuda_run_screen_sm80.c) complete.
 */
#ifndef GUMBEL_CUDA_RUN_SCREEN_H
#define GUMBEL_CUDA_RUN_SCREEN_H

#include "cuda/fused/screen/screen_params.h"
#include "cuda/run/cuda_run.h"

/* Parameters of the kernels of a draw with a screen, with a product of cuda_screen_widths[width]
 * columns. The caller sets `gamma`, `call.stages` and, with each launch sequence, `call.tag`. */
cuda_screen_params cuda_get_screen_params(const cuda_job *job, int width);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of the wide portable kernels (fused_wide_sm80.cu) that host and kernels must agree on, and
 * the rows that these kernels serve. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_WIDE_POLICY_H
#define GUMBEL_CUDA_WIDE_POLICY_H

#include "cuda/policy/cuda_policy.h"

#define CUDA_WIDE_THREADS 256
#define CUDA_WIDE_TILE    256
/* Tokens of a tile that a warp computes, with half of the columns; the vocabulary is split among
 * CTAs in this unit. */
#define CUDA_WIDE_WARP_TILE 64
/* Bytes of a row in a stage. */
#define CUDA_WIDE_DEPTH      64
#define CUDA_WIDE_STAGES_MIN 3
#define CUDA_WIDE_STAGES_MAX 8
/* Maximum CTAs of a launch that take the same tokens and different rows: GPU memory is read once
 * for them. */
#define CUDA_WIDE_GROUPS_MAX 4
/* Fewer rows are served by fused_sm80.cu. */
#ifndef CUDA_WIDE_ROWS_MIN
#define CUDA_WIDE_ROWS_MIN 33
#endif
/* Widths in batch columns that kernels are compiled for. */
#define CUDA_WIDE_WIDTHS 2
static const int cuda_wide_widths[CUDA_WIDE_WIDTHS] = {64, 128};

/* Dynamic shared memory of a CTA of n columns. */
static inline int cuda_wide_bytes(int n, int num_samples, int with_mass, int stages)
{
    return stages * CUDA_WIDE_DEPTH * (CUDA_WIDE_TILE + n) +
           n * num_samples * CUDA_SM80_STATE_BYTES + (with_mass ? n * CUDA_SM80_MASS_BYTES : 0);
}

/* Stages of the ring on a multiprocessor with `available` bytes. */
static inline int cuda_wide_stages(int n, int num_samples, int with_mass, int available)
{
    int remaining = available - CUDA_RESERVED_BYTES - cuda_wide_bytes(n, num_samples, with_mass, 0);
    int stages = remaining / (CUDA_WIDE_DEPTH * (CUDA_WIDE_TILE + n));
    return stages < CUDA_WIDE_STAGES_MAX ? stages : CUDA_WIDE_STAGES_MAX;
}

/* The widest kernel of fused_sm80.cu for a dtype of weights: wide kernels serve more rows. */
static inline int cuda_sm80_widest(int is_float32)
{
    return cuda_sm80_widths[CUDA_SM80_WIDTHS - (is_float32 ? 1 : 2)];
}

/* Maximum rows of a launch of fused_sm80.cu. */
static inline int cuda_sm80_rows_of(const gumbel_problem *p)
{
    const int rows = cuda_sm80_max_rows(p->sampling.num_samples, cuda_sm80_is_mixed(p));
    const int widest = cuda_sm80_widest(p->weight.dtype == GUMBEL_FLOAT32);
    return rows < widest ? rows : widest;
}

/* Index of the width that serves `rows` rows of a problem: the narrowest that holds them, or the
 * widest that fits; -1: no wide kernel serves them. */
static inline int cuda_wide_width_for(const gumbel_problem *p, int64_t rows, int available)
{
    const int samples = p->sampling.num_samples;
    int found = -1;
    if (p->weight.dtype == GUMBEL_FLOAT32 || cuda_sm80_is_mixed(p) || rows < CUDA_WIDE_ROWS_MIN)
        return -1;
    for (int i = 0; i < CUDA_WIDE_WIDTHS; i++) {
        const int n = cuda_wide_widths[i];
        if (n * samples > CUDA_SM80_STATES ||
            cuda_wide_stages(n, samples, p->with_mass, available) < CUDA_WIDE_STAGES_MIN)
            break;
        found = i;
        if (n >= rows)
            break;
    }
    return found;
}

#endif

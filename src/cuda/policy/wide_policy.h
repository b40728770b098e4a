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
#define CUDA_WIDE_WARP_TILE  64
#define CUDA_WIDE_STAGES_MIN 3
#define CUDA_WIDE_STAGES_MAX 8
/* Maximum CTAs of a launch that take the same tokens and different rows: GPU memory is read once
 * for them. */
#define CUDA_WIDE_GROUPS_MAX 4
/* Fewer rows are served by fused_sm80.cu. */
#ifndef CUDA_WIDE_ROWS_MIN
#define CUDA_WIDE_ROWS_MIN 33
#endif

/* A compiled kernel: its columns, which are batch rows, and the bytes of a weight row or hidden
 * state in a stage of its ring. */
typedef struct cuda_wide_kernel {
    int columns, depth;
} cuda_wide_kernel;

/* The kernels, the preferred of equal columns first: deeper stages have fewer barriers, and need
 * 228 or 164 KiB a multiprocessor. */
#define CUDA_WIDE_KERNELS 3
static const cuda_wide_kernel cuda_wide_kernels[CUDA_WIDE_KERNELS] = {
    {128, 64}, {64, 128}, {64, 64}};

static inline int cuda_wide_stage_bytes(cuda_wide_kernel k)
{
    return k.depth * (CUDA_WIDE_TILE + k.columns);
}

/* Dynamic shared memory of a CTA. */
static inline int cuda_wide_bytes(cuda_wide_kernel k, int num_samples, int with_mass, int stages)
{
    return stages * cuda_wide_stage_bytes(k) + CUDA_WIDE_THREADS / 32 * CUDA_SM80_PASSING_BYTES +
           k.columns * num_samples * CUDA_SM80_STATE_BYTES +
           (with_mass ? k.columns * CUDA_SM80_MASS_BYTES : 0);
}

/* Stages of the ring on a multiprocessor with `available` bytes; < CUDA_WIDE_STAGES_MIN: the kernel
 * cannot run. */
static inline int cuda_wide_stages(cuda_wide_kernel k, int num_samples, int with_mass,
                                   int available)
{
    int remaining = available - CUDA_RESERVED_BYTES - cuda_wide_bytes(k, num_samples, with_mass, 0);
    int stages = remaining / cuda_wide_stage_bytes(k);
    return stages < CUDA_WIDE_STAGES_MAX ? stages : CUDA_WIDE_STAGES_MAX;
}

/* The widest kernel of fused_sm80.cu for a dtype of weights: wide kernels serve more rows. */
static inline int cuda_sm80_widest(int is_float32)
{
    return cuda_sm80_widths[CUDA_SM80_WIDTHS - (is_float32 ? 1 : 2)];
}

/* Maximum rows of a launch of fused_sm80.cu on a multiprocessor with `available` bytes. */
static inline int cuda_sm80_rows_of(const gumbel_problem *p, int available)
{
    const int samples = p->sampling.num_samples, mixed = cuda_sm80_is_mixed(p);
    const int most = cuda_sm80_max_rows(samples, mixed);
    const int widest = cuda_sm80_widest(p->weight.dtype == GUMBEL_FLOAT32);
    int rows = most < widest ? most : widest;
    while (rows > cuda_sm80_widths[0] &&
           cuda_sm80_shared_bytes(rows, samples, p->with_mass, mixed) >
               available - CUDA_RESERVED_BYTES)
        rows /= 2;
    return rows;
}

/* Whether a kernel has states for the samples, and room for its ring. */
static inline int cuda_wide_fits(cuda_wide_kernel k, int num_samples, int with_mass, int available)
{
    return num_samples <= CUDA_SM80_STATES / k.columns &&
           cuda_wide_stages(k, num_samples, with_mass, available) >= CUDA_WIDE_STAGES_MIN;
}

/* Index of the wide kernel that serves `rows` rows of a problem; -1: none does. Of the kernels that
 * fit, it is the one that multiplies the fewest columns, and the preferred of these. A narrower
 * kernel than the preferred must serve the rows in one launch. */
static inline int cuda_wide_kernel_for(const gumbel_problem *p, int64_t rows, int available)
{
    int found = -1;
    int64_t fewest = 0;
    if (p->weight.dtype == GUMBEL_FLOAT32 || cuda_sm80_is_mixed(p) || rows < CUDA_WIDE_ROWS_MIN ||
        p->hidden_size % 8 != 0) /* rows are copied by 16 bytes */
        return -1;
    for (int i = 0; i < CUDA_WIDE_KERNELS; i++) {
        const cuda_wide_kernel k = cuda_wide_kernels[i];
        const int64_t groups = (rows + k.columns - 1) / k.columns;
        if (!cuda_wide_fits(k, p->sampling.num_samples, p->with_mass, available))
            continue;
        if (found < 0 || (groups <= CUDA_WIDE_GROUPS_MAX && groups * k.columns < fewest)) {
            found = i;
            fewest = groups * k.columns;
        }
    }
    return found;
}

#endif

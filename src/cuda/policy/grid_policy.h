/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of the cooperative launches that hold rows in shared memory on GPUs without clusters.
 */
#ifndef GUMBEL_CUDA_GRID_POLICY_H
#define GUMBEL_CUDA_GRID_POLICY_H

#include "cuda/policy/cuda_policy.h"

/* CTAs of a cooperative launch that hold a row on GPUs without clusters: enough for a row to fit in
 * multiprocessors of 100 KB. 32-bit words that such a CTA sends in a step; 64-bit words of the
 * steps of a row's CTAs (double-buffered), and of their bins and lists (grid_exchange.cuh). */
#define CUDA_GRID_CTAS           16
#define CUDA_GRID_EXCHANGE_WORDS 14
#define CUDA_GRID_STEP_WORDS     (2 * CUDA_GRID_CTAS * CUDA_GRID_EXCHANGE_WORDS)
#define CUDA_GRID_MEMORY_WORDS   (CUDA_GRID_CTAS * (2 * 1024 + 128))

/* Tokens of a CTA's slice of a row of `range` tokens in a cooperative launch. */
static inline int64_t cuda_grid_slice(int64_t range)
{
    int64_t tokens = (range + CUDA_GRID_CTAS - 1) / CUDA_GRID_CTAS;
    return (tokens + 127) / 128 * 128;
}

/* Rows that a cooperative launch of CTAs with `bytes` of shared memory serves at the same time, on
 * multiprocessors with `shared_bytes`; 0 if a CTA does not fit. Registers allow
 * CUDA_TRUNCATED_CTAS. */
static inline int64_t cuda_grid_rows(int64_t bytes, int multiprocessors, int shared_bytes)
{
    int64_t ctas = shared_bytes / (bytes + CUDA_RESERVED_BYTES);
    ctas = ctas < CUDA_TRUNCATED_CTAS ? ctas : CUDA_TRUNCATED_CTAS;
    return ctas * multiprocessors / CUDA_GRID_CTAS;
}

#endif

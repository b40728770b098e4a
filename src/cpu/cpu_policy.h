/* SPDX-License-Identifier: Apache-2.0
 *
 * Every choice of size that the CPU backend makes; kernels and driver only receive the numbers.
 */
#ifndef GUMBEL_CPU_POLICY_H
#define GUMBEL_CPU_POLICY_H

#include "core/problem.h"

#define CPU_THREADS_MOST 1024
#define CPU_TILE_MOST    4096

/* Vocabulary rows a tile of the fused way in: one draw block. Its lanes of a panel of 8 fill 32 KiB
 * and stay in the second-level cache; a row of weights is long, so a claim is 64 KiB or more. */
#define CPU_FUSED_TILE 192

/* Tokens a tile from logits: 16 KiB of float32, which stay in the first-level cache. */
#define CPU_LOGITS_TILE 4096

/* Tokens of noise that a thread makes at a time, a multiple of GUMBEL_BLOCK: about 20 us. */
#define CPU_NOISE_PIECE 16384

/* Below this many multiply-adds (fused), tokens (logits) or pieces of noise one thread is done
 * before a second one has woken up. */
#define CPU_PARALLEL_PRODUCTS INT64_C(1000000)
#define CPU_PARALLEL_TOKENS   INT64_C(50000)
#define CPU_PARALLEL_PIECES   2

static inline int cpu_worth_threads(const gumbel_problem *p)
{
    int64_t tokens = p->batch > INT64_MAX / p->vocab ? INT64_MAX : p->batch * p->vocab;
    if (p->hidden_size == 0)
        return tokens >= CPU_PARALLEL_TOKENS / p->sampling.num_samples;
    return tokens >= CPU_PARALLEL_PRODUCTS / p->hidden_size;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The edits of a call (edits.h), piece by piece: one that none touches costs a look at a few
 * words. Plain C for every instruction set, as edits are few. cpu_lists.c sorts what lists hold,
 * cpu_edits.c edits.
 */
#ifndef GUMBEL_CPU_EDITS_H
#define GUMBEL_CPU_EDITS_H

#include "maths/edits.h"
#include "core/workspace.h"
#include "cpu/host/cpu_device.h"

/* What the penalties count: the caller's history, or one of B rows made of lists in the workspace,
 * whose token 0 is token `first` of the vocabulary and whose counts are defined where the output's
 * bit is set. */
typedef struct cpu_counted {
    gumbel_history history;
    int64_t first; /* a multiple of 64 */
    int64_t words; /* a row */
    int by_row;    /* it goes by rows, not by slots */
} cpu_counted;

/* A call's edits, over the shard's blocks of 64 tokens from token `base` on. */
typedef struct cpu_edits {
    const gumbel_problem *problem; /* NULL: there are none */
    int64_t base;
    int64_t blocks;
    uint32_t *banned;       /* [B, 2 * blocks] or NULL */
    uint32_t *bias_ends;    /* [B, blocks] where each block's part of bias_order ends, or NULL */
    uint32_t *bias_order;   /* [B, CPU_BIASES * blocks] places in the row's list, by blocks, in one
                             block as listed */
    cpu_counted counted[2]; /* by penalties: the first `sources` */
    int sources;
} cpu_edits;

/* bias_ends[0] of a row whose list is too long for bias_order: each piece reads it through. */
#define CPU_BIASES_UNSORTED UINT32_MAX

struct cpu_piece;

/* Bytes that they take behind the plain workspace. */
size_t cpu_edits_size(const gumbel_problem *problem);

/* Lay them out at `workspace`, and sort what the lists hold. Without transforms in the problem's
 * request: none. */
void cpu_edits_prepare(cpu_edits *edits, cpu_device *cpu, const gumbel_problem *problem,
                       void *workspace);

/* Whether mask and bans leave any token of the piece. */
int cpu_edits_leave(const cpu_edits *edits, const struct cpu_piece *piece);

/* Move `part` to the next stretch of blocks of `whole` that mask and bans leave anything of; 0
 * where there is none. Before the first call, part->token is whole->token and part->high 0. */
int cpu_edits_next(const cpu_edits *edits, const struct cpu_piece *whole, struct cpu_piece *part);

/* Whether the piece's values depend on more than `transform`. */
int cpu_edits_touch(const cpu_edits *edits, const struct cpu_piece *piece);

/* The piece's logits transformed and edited, at z[0] .. z[high - low - 1], which may be `from`. */
void cpu_edits_transform(const cpu_edits *edits, const cpu_kernels *kernels,
                         const struct cpu_piece *piece, const cpu_transform *transform, float *z);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws by a screen (docs/maths.md, section 14): tiles of upper ends of logits instead of logits,
 * from which the kernels that draw list what may win, and exact scores of what is listed.
 */
#ifndef GUMBEL_CPU_SCREEN_H
#define GUMBEL_CPU_SCREEN_H

#include "cpu/call/cpu_job.h"
#include "maths/screen_bound.h"
#include "cpu/cpu_screen_sums.h"

/* A row of the batch on its way through the screen. */
typedef struct cpu_screen_row {
    gumbel_screen_reach reach;
    _Atomic int full; /* it is left to the full pass */
} cpu_screen_row;

typedef struct cpu_screen {
    cpu_job exact; /* the call itself, as its logits are transformed */
    cpu_job ends;  /* the same call of the ends, which have seen the soft-cap where there is one */
    gumbel_problem capped;
    const cpu_screen_sums *product;
    gumbel_screen_header header;
    gumbel_screen_parts parts;
    const gumbel_screen_block *bounds; /* [blocks] */
    const float *steps;                /* [64 * blocks] */
    const uint8_t *copy;
    cpu_screen_row *rows;      /* [B] */
    float *hidden;             /* [B] hidden states packed as batches of one */
    float *wide;               /* [B, ceil(D / 64) * 64], as they are */
    int8_t *planes;            /* [panels] of 2 n [columns] bytes, n the product's */
    int32_t *start;            /* [panels] of [2 n] */
    cpu_candidates *lists;     /* [threads, B, S] */
    cpu_candidate *candidates; /* [threads, B, S, GUMBEL_SCREEN_LIST_MOST] */
    int32_t *sums;             /* [threads, CPU_SCREEN_SUMS] */
    gumbel_summary *again;     /* [B, S] of a full pass */
    float lift;                /* what the soft-cap may round against the order of its values */
    int32_t used;              /* threads */
    _Atomic int64_t next;
} cpu_screen;

/* NULL, or why a call with a screen takes the full pass, of what its needs do not tell. */
const char *cpu_screen_refusal(const cpu_device *cpu, const gumbel_problem *problem);

/* Bytes that a draw by a screen takes behind the plain workspace and its edits. */
size_t cpu_screen_size(const cpu_device *cpu, int64_t batch, int64_t hidden_size,
                       int32_t num_samples);

/* The most of any call within limits. */
size_t cpu_screen_most(const cpu_device *cpu, const gumbel_limits *limits);

/* Fill summaries [B, S], without their masses, of a call that is served by its screen. `workspace`
 * is the plain one, with edits and screen behind it. */
void cpu_screen_draw(cpu_device *cpu, const gumbel_problem *problem, gumbel_summary *summaries,
                     void *workspace);

/* Split the hidden states of rows that a thread claims. */
void cpu_screen_split_rows(cpu_screen *screen);

/* The upper ends of tokens low .. high of a tile, for all rows. */
void cpu_screen_tile(const cpu_job *job, const cpu_slot *slot, int64_t token, int low, int high);

/* The candidates of row b on thread `thread`, [S]. */
cpu_candidates *cpu_screen_lists(const cpu_job *job, int64_t thread, int64_t b);

/* Whether row b is left to the full pass; a row whose candidates are too many is from then on. */
int cpu_screen_left(const cpu_job *job, int64_t thread, int64_t b);

#endif

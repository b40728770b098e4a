/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws by a screen (docs/maths.md, section 14): tiles of upper ends of logits instead of logits,
 * from which the kernels that draw list what may win, and exact scores of what is listed.
 */
#ifndef GUMBEL_CPU_SCREEN_H
#define GUMBEL_CPU_SCREEN_H

#include "cpu/call/cpu_stage.h"
#include "maths/screen_bound.h"
#include "cpu/cpu_screen_sums.h"

/* A row of the batch on its way through the screen. */
typedef struct cpu_screen_row {
    gumbel_screen_hidden_error reach;
    _Atomic int full; /* it is left to the full pass */
    int cut;          /* its request removes tokens, so that both ends of all values are kept */
    float bar;        /* lower values are known to be removed, */
    int64_t bar_end;  /* and this one's tokens from this global id on */
} cpu_screen_row;

struct cpu_screen;

/* Settle row b of a call that cuts, whose draws are settled as if nothing were removed; 0 where its
 * ends do not tell enough. */
typedef int cpu_screen_cut(struct cpu_screen *screen, int64_t b, int32_t thread);

typedef struct cpu_screen {
    cpu_job exact; /* the call itself, as its logits are transformed */
    cpu_job ends;  /* the same call of the ends, which have seen the soft-cap where there is one */
    cpu_job upper, lower; /* the same of one end, whose values are left whole */
    cpu_stage uppers, lowers;
    cpu_screen_cut *cut;
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
    float lift;                /* what the soft-cap may round against the order of its values */
    int32_t used;              /* threads */
    _Atomic int64_t next;
} cpu_screen;

/* NULL, or why a call with a screen takes the full pass, of what its needs do not tell. */
const char *cpu_screen_refusal(const cpu_device *cpu, const gumbel_problem *problem);

/* Rows first .. end of a batch; none where they are the same. */
typedef struct cpu_row_range {
    int64_t first, end;
} cpu_row_range;

/* Bytes that a draw of these rows, or of the first of them, by a screen takes behind the plain
 * workspace and its edits; 0 if a screen draws no number of them. */
size_t cpu_screen_size(const cpu_device *cpu, const gumbel_problem *problem);

/* The most of any call with as many rows and samples, or fewer. */
size_t cpu_screen_most(const cpu_device *cpu, const gumbel_problem *problem);

/* Fill summaries [B, S], without their masses, of a call that is served by its screen, but for the
 * rows that are left to the full pass: all those are in what is returned, and some between them.
 * `workspace` is the plain one, with edits and screen behind it. */
cpu_row_range cpu_screen_draw(cpu_device *cpu, const gumbel_problem *problem, cpu_screen_cut *cut,
                              gumbel_summary *summaries, void *workspace);

/* The value of a token of row b, as the full pass has it at this temperature. `thread` owns the
 * slot whose room it takes. */
float cpu_screen_value(const cpu_screen *screen, int32_t thread, int64_t b, int64_t token,
                       float inverse_temperature);

/* Score what all threads' lists of a draw may still win by, the highest first. */
void cpu_screen_settle(cpu_screen *screen, int64_t draw, int32_t thread);

/* Split the hidden states of rows that a thread claims. */
void cpu_screen_split_rows(cpu_screen *screen);

/* The upper ends of tokens low .. high of a tile, for all rows; of those that are cut the lower
 * ones, too, where they are kept. */
void cpu_screen_tile(const cpu_job *job, const cpu_slot *slot, int64_t token, int low, int high);

/* Keep both ends of a piece of a row that is cut. */
void cpu_screen_keep(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z);

/* The candidates of row b on thread `thread`, [S]. */
cpu_candidates *cpu_screen_lists(const cpu_job *job, int64_t thread, int64_t b);

/* Whether row b is left to the full pass; a row whose candidates are too many is from then on. */
int cpu_screen_left(const cpu_job *job, int64_t thread, int64_t b);

#endif

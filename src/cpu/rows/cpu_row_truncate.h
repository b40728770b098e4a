/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole rows of a call, and the truncation of each.
 */
#ifndef GUMBEL_CPU_ROW_TRUNCATE_H
#define GUMBEL_CPU_ROW_TRUNCATE_H

#include "cpu/call/cpu_stage.h"

/* The truncation of one row. */
typedef struct cpu_row_truncation {
    uint32_t flags;   /* gumbel_summary flags; without any, the row's largest value is finite */
    float scale;      /* z = value * scale */
    float bound;      /* lower values are removed */
    int64_t tied_end; /* tokens of this value survive below this global id */
    int64_t kept;     /* number of survivors, if requested */
    int empty;        /* no token counts */
} cpu_row_truncation;

typedef struct cpu_rows_call {
    cpu_job job;
    cpu_stage stage;
    gumbel_problem problem; /* of the job */
    const gumbel_output *output;
    cpu_row_truncation *rows;        /* [B]; NULL if processed logits are not truncated */
    gumbel_summary *summaries;       /* [B, S] */
    float *hidden;                   /* [threads] packed hidden states, for raw logits */
    int32_t staged;                  /* threads used by staging */
    const struct cpu_screen *screen; /* whose fallback rows are left out; NULL: none */
    gumbel_row_array processed;      /* without data: a draw */
} cpu_rows_call;

/* gumbel_summary flags of row b's staged values. */
uint32_t cpu_get_row_flags(const cpu_rows_call *call, int64_t b);

/* Fills the truncation of row b. */
void cpu_truncate_row(cpu_rows_call *call, int64_t b);

/* Whether a block of row b may have survivors. */
int cpu_may_block_survive(const cpu_rows_call *call, int64_t b, int64_t block);

/* Bits of the blocks that may have survivors, among the 64 of row b from `block` on. */
uint64_t cpu_find_survivors(const cpu_rows_call *call, int64_t b, int64_t block);

/* out[64] = z of a block of row b, -inf for removed tokens; returns the number of survivors. */
int cpu_load_kept_block(const cpu_rows_call *call, int64_t b, int64_t block, float *out);

#endif

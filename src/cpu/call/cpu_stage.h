/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole rows in memory, for calls that read a whole row before its draw, such as truncation. A
 * stage holds the values, and the maximum of each block, by which later passes skip blocks.
 */
#ifndef GUMBEL_CPU_STAGE_H
#define GUMBEL_CPU_STAGE_H

#include "core/row_program.h"
#include "cpu/call/cpu_job.h"

/* How a row is truncated and scaled. */
typedef struct cpu_row_method {
    float inverse_temperature; /* that staged values include: 1 if truncation precedes 1/T, or the
                                * program is to apply it */
    float scale;               /* from staged values to z: 1/T if truncation precedes it, else 1 */
    gumbel_rules rules;        /* of the row's order, or of a program that equals an order */
    int runs_program;          /* the program runs, from its rule number `first_rule` on */
    int first_rule;
} cpu_row_method;

typedef struct cpu_staged_row {
    const float *values;       /* token first_token + i is element i */
    float inverse_temperature; /* cpu_row_method */
} cpu_staged_row;

typedef struct cpu_stage {
    float *values; /* [B] rows at `stride`: token first_token + i is element i */
    int64_t stride;
    gumbel_row_array rounded; /* with data: receives the values, and `values` is NULL */
    cpu_staged_row *rows; /* [B]: rows whose values are their logits, bit for bit, are not copied
                           * before a program changes them; NULL: all rows are in `values` */
    float *edges;         /* [B, 2, 64] padded copies of a partial first and last block */
    float *block_maxima;  /* [B, maxima_stride] maximum of each block, then -inf; NULL: only flags
                            are found */
    float *group_maxima;  /* [B, maxima_stride / 64] maximum of 64 blocks */
    int64_t blocks;       /* of a row, from its first tile on */
    int64_t maxima_stride;
    gumbel_summary *raw; /* [threads, B] masses of the raw logits; NULL if not requested */
    float *raw_logits;   /* [B] rows at `raw_stride`: a head's logits, for their entropy, or NULL */
    int64_t raw_stride;
} cpu_stage;

/* Carves the arrays of a stage; rows of values only if `own_values`. */
void cpu_carve_stage(cpu_stage *stage, gumbel_cursor *cursor, const gumbel_problem *problem,
                     int32_t threads, int own_values);

/* Stores one row of a tile. `z` is scratch for the row, and may hold its logits at z + low. Flags
 * and raw masses are added to those of the calling thread. */
void cpu_stage_row_tile(const cpu_job *job, const cpu_scratch *scratch, const cpu_row_tile *tile,
                        float *z);

cpu_row_method cpu_choose_row_method(const gumbel_problem *problem, int64_t b);

/* cpu_row_method.inverse_temperature and .scale */
float cpu_find_staged_temperature(const gumbel_problem *problem, int64_t b);
float cpu_find_staged_scale(const gumbel_problem *problem, int64_t b);

/* Determines which rows are not copied, before any is staged. */
void cpu_choose_staged_rows(const cpu_job *job);

/* The block of row b that starts at global id first_tile + 64 * block. */
const float *cpu_get_staged_block(const cpu_job *job, int64_t b, int64_t block);

/* The memory of the stage for that block, which has its values if the row is copied. */
float *cpu_get_own_block(const cpu_job *job, int64_t b, int64_t block);

/* Row b is now copied: its values are those of cpu_get_own_block(). */
void cpu_use_own_blocks(const cpu_job *job, int64_t b);

/* All values of row b. Computes the row's group maxima. */
cpu_values cpu_get_staged_values(const cpu_job *job, int64_t b);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows left whole. A request that needs all of a row before it can draw has its tiles not drawn but
 * staged: values and each block's largest one, from which any later pass finds what it looks for
 * without going through the row.
 */
#ifndef GUMBEL_CPU_STAGE_H
#define GUMBEL_CPU_STAGE_H

#include "cpu/call/cpu_job.h"

typedef struct cpu_stage {
    float *values; /* [B] rows at `stride`: token first_token + i is element i */
    int64_t stride;
    int in_place;   /* rows whose values are their logits, bit for bit, are not copied */
    float *ends;    /* [B, 2, 64] the first and last block, padded, where the shard cuts them */
    float *peaks;   /* [B, peak_room] the largest value of each block, then -inf; or NULL, and then
                       only flags are looked for */
    float *tops;    /* [B, peak_room / 64] the largest of 64 peaks */
    int64_t blocks; /* of a row, from its first tile on */
    int64_t peak_room;
    gumbel_summary *raw; /* [threads, B] mass of the logits as they are; NULL where not asked for */
} cpu_stage;

/* Lay out a stage; rows of values are carved where `own_values` is set. */
void cpu_stage_carve(cpu_stage *stage, gumbel_cursor *cursor, const gumbel_problem *problem,
                     int32_t threads, int own_values);

/* Stage one piece of a tile; `z` is room for it, and may hold its logits at z + low. Flags and raw
 * mass go to the slot's own. */
void cpu_stage_piece(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z);

/* 1/T as the values of row b have seen it: 1 where it is cut before the temperature. */
float cpu_stage_temperature(const gumbel_problem *problem, int64_t b);

/* What values are to be multiplied by to be z: 1 but where row b is cut before the temperature. */
float cpu_stage_scale(const gumbel_problem *problem, int64_t b);

/* The block of row b that starts at global id first_tile + 64 * block. */
const float *cpu_stage_block(const cpu_job *job, int64_t b, int64_t block);

/* All of row b, with the peaks' own largest values made. */
cpu_values cpu_stage_values(const cpu_job *job, int64_t b);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * A call on its way through the CPU backend: tiles that threads claim, and what each of them
 * writes.
 */
#ifndef GUMBEL_CPU_JOB_H
#define GUMBEL_CPU_JOB_H

#include "cpu/call/cpu_edits.h"

#include <stdatomic.h>

struct cpu_stage;
struct cpu_screen;

/* What one thread writes. */
typedef struct cpu_slot {
    int64_t index;             /* of the thread */
    gumbel_summary *summaries; /* [B, S] */
    float *z;                  /* [B] or [1] rows of tile + 16: whole vectors may spill over */
    float *bias;               /* [tile] */
    float *lanes;              /* [PRODUCT_GROUP * panel][PRODUCT_ROOM][16], fused only */
} cpu_slot;

typedef struct cpu_job {
    cpu_device *device;
    const gumbel_problem *problem;
    cpu_edits edits;
    const struct cpu_stage *stage;   /* NULL: tiles are drawn; else left there */
    const struct cpu_screen *screen; /* tiles are of the ends of its logits; NULL: of logits */
    const float *panels;           /* packed hidden states */
    unsigned char *slots;          /* threads pieces of slot_bytes */
    size_t slot_bytes;
    int multiply_only;
    int64_t first_tile; /* global id of tile 0, a multiple of 64, <= first_token */
    int64_t tiles;      /* of the vocabulary */
    int64_t items;      /* claims: tiles, times B from logits */
    int32_t tile;
    _Atomic int64_t next;
} cpu_job;

/* A piece of one row of a tile: tokens low .. high, from global id `token` + low on, are in the
 * shard and count. Their logits start at `from`, their biases at `bias`, which may be NULL. */
typedef struct cpu_piece {
    int64_t b;
    const void *from;
    gumbel_dtype dtype;
    const float *bias;
    int64_t token;
    int low, high;
} cpu_piece;

static inline int64_t cpu_rounded_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static inline int cpu_element_size(gumbel_dtype dtype) { return dtype == GUMBEL_FLOAT32 ? 4 : 2; }

/* Bytes that any call takes without what its request adds; SIZE_MAX where nobody can count them. */
size_t cpu_workspace_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                          int32_t num_samples);

/* Lay out the workspace and pack; the job is ready to run. */
void cpu_job_prepare(cpu_job *job, cpu_device *cpu, const gumbel_problem *problem, void *workspace);

/* Let threads claim all tiles; the slots used. */
int32_t cpu_job_run(cpu_job *job);

/* Row b of the packed hidden states alone, as a batch of one: ceil(D / 32) * 32 floats. */
void cpu_job_unpack(const cpu_job *job, int64_t b, float *hidden);

/* What thread `index` writes. */
cpu_slot cpu_job_slot(const cpu_job *job, int32_t index);

/* summaries [B, S] of the `used` slots, merged and complete. */
void cpu_job_merge(const cpu_job *job, int32_t used, gumbel_summary *summaries);

/* The biases of tokens low .. high of a tile, in the slot's room for them; NULL where there are
 * none. */
const float *cpu_tile_bias(const gumbel_problem *problem, const cpu_slot *slot,
                           const cpu_kernels *kernels, int64_t token, int low, int high);

/* What eq. 2 does to a row's logits, without a request; bias may be NULL. */
cpu_transform cpu_transform_of(const gumbel_problem *problem, float inverse_temperature,
                               const float *bias);

/* The one factor that cpu_transform_piece() would multiply float32 logits with; 0 where it would do
 * more than that. */
float cpu_piece_factor(const cpu_job *job, const cpu_piece *piece, float inverse_temperature);

/* The transformed logits of a piece, with all that the request's transforms do to them, at z[0] ..
 * z[high - low - 1], which may be `from`. inverse_temperature 1 leaves y. */
void cpu_transform_piece(const cpu_job *job, const cpu_piece *piece, float inverse_temperature,
                         float *z);

/* -inf for the blocks' tokens that a piece lacks; the number of blocks. z[0] is token `token`. */
int cpu_pad_piece(const cpu_piece *piece, float *z);

#endif

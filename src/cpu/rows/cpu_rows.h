/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that need all of a row: truncation, ranks, kept counts, lists, raw log-probabilities.
 *
 *     stage all tiles ──► cut each row ──► draw the blocks that have survivors ──► read rows out
 *
 * Each arrow is a return of all threads. Tiles, rows and pieces of rows are claimed one by one.
 */
#ifndef GUMBEL_CPU_REQUEST_H
#define GUMBEL_CPU_REQUEST_H

#include "cpu/call/cpu_stage.h"

/* What is known of a row once it is cut. */
typedef struct cpu_found {
    uint32_t flags;   /* gumbel_summary's; other rows have a largest value, which is finite */
    float scale;      /* z = value * scale */
    float bound;      /* the least value that stays */
    int64_t tied_end; /* tokens of that value stay below this global id */
    int64_t kept;     /* how many tokens stay; filled where asked for */
    int empty;        /* no token counts */
} cpu_found;

typedef struct cpu_request {
    cpu_job job;
    cpu_stage stage;
    gumbel_problem problem; /* the job's */
    const gumbel_output *output;
    cpu_found *rows;           /* [B]; NULL where processed logits are not cut */
    gumbel_summary *summaries; /* [B, S] */
    float *hidden;    /* [threads, D rounded up] one row of hidden states, for logits as they are */
    int32_t staged;   /* slots used by staging */
    float *processed; /* [B, V] at processed_stride; NULL: a draw */
    int64_t processed_stride;
    _Atomic int64_t next;
    int64_t items;
    void (*run_item)(struct cpu_request *request, int32_t thread, int64_t item);
    void (*begin)(struct cpu_request *request, int32_t thread); /* may be NULL */
} cpu_request;

/* What staging saw of row b: gumbel_summary flags. */
uint32_t cpu_request_flags(const cpu_request *request, int64_t b);

/* Cut row b: fill its cpu_found. */
void cpu_request_cut(cpu_request *request, int64_t b);

/* out[64] = z of a block of row b with -inf for what was removed; how many stay. */
int cpu_request_block(const cpu_request *request, int64_t b, int64_t block, float *out);

/* Whether a block of row b may have survivors. */
int cpu_request_survives(const cpu_request *request, int64_t b, int64_t block);

/* Write the best scores of row b, of which nothing can be drawn unless it is `ok`. */
void cpu_request_best(const cpu_request *request, int64_t b, int ok);

/* Read row b out to the outputs, once all is drawn. */
void cpu_request_read(cpu_request *request, int32_t thread, int64_t b);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What serves a call: chosen in one place, from two tables (cuda_rungs.c).
 *
 * A call from a head goes to the first product that supports all its capabilities, which then
 * draws, too. Where none does, the first product that serves the call stores the logits, and the
 * call is one from logits: the first rung for rows serves it. What a rung takes of the workspace,
 * what it asks the product for, and what it launches stand in one row, so that they cannot
 * disagree.
 */
#ifndef GUMBEL_CUDA_PLAN_H
#define GUMBEL_CUDA_PLAN_H

#include "core/rungs/rung.h"
#include "cuda/run/cuda_run.h"

/* A product of hidden states and a head. */
typedef struct cuda_product {
    gumbel_rung rung;
    /* Why it cannot multiply these operands on this GPU; NULL if it can. */
    const char *(*refuses)(const cuda_device *cuda, const gumbel_problem *problem);
    /* What it can hand to rows beside their logits, as cuda_handed bits; NULL: nothing. */
    uint32_t (*hands)(const gumbel_problem *problem);
    cuda_carver *carve; /* NULL: it needs nothing but what any draw has */
    gumbel_status (*run)(const cuda_job *job);
} cuda_product;

/* What serves the rows of a call from logits. */
typedef struct cuda_rows {
    gumbel_rung rung;
    uint32_t takes; /* cuda_handed bits: what it has use for */
    /* Why it cannot serve this call on this GPU, where a product hands so much; NULL if it can. */
    const char *(*refuses)(const cuda_device *cuda, const gumbel_problem *problem, uint32_t handed);
    cuda_carver *carve; /* NULL: it needs nothing */
    gumbel_status (*run)(const cuda_job *job);
} cuda_rows;

extern const cuda_product cuda_products[CUDA_PRODUCTS];
/* The places of products' rungs `screen` and `screen-cut`, as bits of a choice: where one is
 * preferred, how fast they are is not asked. */
#define CUDA_SCREEN_RUNGS 3u

extern const cuda_rows cuda_row_rungs[CUDA_ROW_RUNGS];

typedef struct cuda_plan {
    uint64_t required;           /* capabilities */
    const cuda_product *product; /* NULL: the call gives logits, or no token counts */
    const cuda_rows *rows;       /* NULL: the product draws */
    uint32_t handed;             /* cuda_handed bits: what the product hands to the rows */
    int stays;                   /* its logits, in rows that are none of the workspace's */
} cuda_plan;

/* The call as rungs see it: its lists of allowed tokens have become a mask, which goes by rows and
 * lies in the workspace. */
gumbel_problem cuda_masked(const gumbel_problem *problem);

/* Plans a call that requires the capabilities of the problem and of `purpose`. Returns an error if
 * no rung that may be used supports them. */
gumbel_status cuda_plan_call(cuda_plan *plan, const cuda_device *cuda,
                             const gumbel_problem *problem, uint64_t purpose, gumbel_error *error);

/* The plan that cuda_plan_backend() returned as `plan`. */
cuda_plan cuda_plan_of(const gumbel_plan *plan);

/* The same of a head whose logits stay; they may lack what bounds leave out. */
gumbel_status cuda_plan_stored(cuda_plan *plan, const cuda_device *cuda,
                               const gumbel_problem *problem, gumbel_error *error);

/* Take the pieces of the workspace that the plan's rungs need, or count their bytes. */
cuda_workspace cuda_plan_carve(const cuda_plan *plan, gumbel_cursor *cursor,
                               const cuda_device *cuda, const gumbel_problem *problem);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of calls: chooses the kernels that serve a call, from two tables
 * (cuda_product_rungs.c, cuda_row_rungs.c).
 *
 * A call from a head uses the first product that supports all its capabilities; that product also
 * draws. If there is none, the first product that can store logits does so, and the first row rung
 * that supports the call serves it from these logits. A rung's row in the table holds all that the
 * rung decides: its arrays of the workspace, the product outputs it uses, and its launches.
 */
#ifndef GUMBEL_CUDA_PLAN_H
#define GUMBEL_CUDA_PLAN_H

#include "core/rungs/rung.h"
#include "cuda/run/cuda_run.h"

#define CUDA_PRODUCTS  9
#define CUDA_ROW_RUNGS 19

/* A rung that multiplies hidden states with a head. */
typedef struct cuda_product {
    gumbel_rung rung;
    /* Why it cannot multiply these operands on this GPU; NULL if it can. */
    const char *(*refuses)(const cuda_device *cuda, const gumbel_problem *problem);
    /* The cuda_product_output bits that it can store for a row rung; NULL: none. */
    uint32_t (*offers)(const gumbel_problem *problem);
    cuda_carver *carve; /* NULL: no arrays beyond those of every draw */
    gumbel_status (*run)(const cuda_job *job);
    /* Whether it reads the caller's lists of allowed tokens, so that no launch has to make masks of
     * them first; NULL: never. */
    int (*reads_lists)(const gumbel_problem *caller);
} cuda_product;

/* Why a rung cannot serve the rows of a call on this GPU, given the offered product outputs; NULL
 * if it can. */
typedef const char *cuda_row_refusal(const cuda_device *cuda, const gumbel_problem *problem,
                                     uint32_t offered);

/* A rung that serves the rows of a call from logits. */
typedef struct cuda_rows {
    gumbel_rung rung;
    uint32_t uses;             /* cuda_product_output bits */
    cuda_row_refusal *refuses; /* NULL: never */
    cuda_carver *carve;        /* NULL: no arrays */
    gumbel_status (*run)(const cuda_job *job);
    gumbel_status (*run_few_rows)(const cuda_job *job); /* with expect_few_live_rows; NULL: run */
    int ignores_logits;                                 /* no product must store logits for it */
    int finds_top64; /* candidates of ranks can be found in its blocks (cuda_top64.c) */
} cuda_rows;

/* Bit i of a cuda_rung_choice is cuda_products[i]; bit CUDA_PRODUCTS + i is cuda_row_rungs[i]. */
extern const cuda_product cuda_products[CUDA_PRODUCTS];
extern const cuda_rows cuda_row_rungs[CUDA_ROW_RUNGS];

/* Bits of the products with a screen. They refuse calls for which the full pass is faster, unless
 * the caller prefers one of them. */
#define CUDA_SCREEN_RUNGS 7u

typedef struct cuda_plan {
    uint64_t required;           /* capabilities */
    const cuda_product *product; /* NULL: the call gives logits, or all tokens are padding */
    const cuda_rows *rows;       /* NULL: the product draws */
    uint32_t product_outputs;    /* cuda_product_output bits that the product stores for `rows` */
    int stores_outside;          /* the product's logits are stored outside the workspace */
} cuda_plan;

/* Read options.rungs: names of rungs, separated by commas; a minus excludes one. */
gumbel_status cuda_read_rungs(cuda_rung_choice *choice, const char *names, const char *field,
                              gumbel_error *error);

/* The call that rungs serve: lists of allowed tokens are replaced by a mask in the workspace. */
gumbel_problem cuda_replace_allowed(const gumbel_problem *problem);

/* Plan a call that requires the capabilities of the problem and `purpose`. Fails if no allowed
 * rung serves it. */
gumbel_status cuda_plan_call(cuda_plan *plan, const cuda_device *cuda,
                             const gumbel_problem *problem, uint64_t purpose, gumbel_error *error);

/* The plan that cuda_plan_backend() returned as `plan`. */
cuda_plan cuda_plan_of(const gumbel_plan *plan);

/* Plan a call of a head whose logits are stored outside the workspace. Logits that cannot reach a
 * bound may be missing there. */
gumbel_status cuda_plan_stored(cuda_plan *plan, const cuda_device *cuda,
                               const gumbel_problem *problem, gumbel_error *error);

/* Whether the local top 64 of a head's rows can be found in blocks that the planned product stores.
 */
int cuda_plan_finds_top64(const cuda_plan *plan, const gumbel_problem *problem);

/* Take the arrays of a plan's rungs from the workspace, or count their bytes. */
cuda_workspace cuda_carve_plan(const cuda_plan *plan, gumbel_cursor *cursor,
                               const cuda_device *cuda, const gumbel_problem *problem);

/* -------------------------------------------------------- entries of the backend's tables ---- */

size_t cuda_max_workspace_size(const gumbel_device *device, const gumbel_limits *limits);
gumbel_status cuda_plan_backend(const gumbel_device *device, const gumbel_problem *problem,
                                uint64_t purpose, gumbel_plan *plan, gumbel_error *error);
gumbel_status cuda_explain_call(const gumbel_device *device, const gumbel_problem *problem,
                                gumbel_text *text, gumbel_error *error);
gumbel_status cuda_sample(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_plan *plan, const gumbel_output *output, void *workspace,
                          gumbel_error *error);
gumbel_status cuda_store_processed(gumbel_device *device, const gumbel_problem *problem,
                                   const gumbel_plan *plan, gumbel_row_array processed,
                                   void *workspace, gumbel_error *error);
gumbel_status cuda_store_probabilities(gumbel_device *device, const gumbel_problem *problem,
                                       const gumbel_plan *plan, gumbel_row_array probabilities,
                                       void *workspace, gumbel_error *error);
gumbel_status cuda_store_edited(gumbel_device *device, const gumbel_problem *problem, float *rows,
                                int64_t stride, void *workspace, gumbel_error *error);
/* Samples from logits; sampling.live_rows is expected to mark few rows as live. */
gumbel_status cuda_draw_unresolved(gumbel_device *device, const gumbel_problem *problem,
                                   const gumbel_output *output, void *workspace,
                                   gumbel_error *error);
extern const gumbel_rank_calls cuda_rank_calls;

/* -------------------------------------------------- calls by a plan of cuda_plan_stored() ---- */

/* Sample from a head and store all its logits in rows [B, V] at `stride`. */
gumbel_status cuda_sample_stored(gumbel_device *device, const cuda_plan *plan,
                                 const gumbel_problem *problem, const gumbel_output *output,
                                 float *rows, int64_t stride, void *workspace, gumbel_error *error);

/* Run only the product, which stores logits that may be among the output.num_top largest of the
 * `requested` call. The plan finds top 64 (cuda_rows). */
gumbel_status cuda_store_top64_logits(gumbel_device *device, const cuda_plan *plan,
                                      const gumbel_problem *problem,
                                      const gumbel_problem *requested, const gumbel_output *output,
                                      float *rows, int64_t stride, void *workspace,
                                      gumbel_error *error);

/* Set the logits and blocks in *p to those that cuda_store_top64_logits() stored. */
void cuda_set_top64_blocks(gumbel_device *device, const cuda_plan *plan,
                           const gumbel_problem *problem, float *rows, int64_t stride,
                           void *workspace, cuda_truncated_params *p);

#endif

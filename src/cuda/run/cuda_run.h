/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of a planned call: each function queues kernels on the caller's stream and returns.
 * Nothing here waits, and nothing here chooses kernels (cuda_plan.h does).
 */
#ifndef GUMBEL_CUDA_RUN_H
#define GUMBEL_CUDA_RUN_H

#include "core/workspace.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_program_params.h"
#include "cuda/common/cuda_statistics_params.h"
#include "cuda/common/cuda_truncated_params.h"
#include "cuda/host/cuda_device.h"

/* Outputs of a product in addition to its logits, for the row rung that follows it. */
typedef enum cuda_product_output {
    CUDA_OUTPUT_BLOCK_MAXIMA = 1 << 0, /* the largest logit of each block */
    CUDA_OUTPUT_SUBTILES = 1 << 1,     /* stores only subtiles that reach a bound, and their bits */
    CUDA_OUTPUT_DRAWS = 1 << 2,        /* a plain draw of each row, in the outputs */
} cuda_product_output;

/* Workspace of a draw with a screen (screen_policy.h). */
typedef struct cuda_screen_workspace {
    int8_t *planes;
    gumbel_screen_hidden_error *hidden_errors, *coarse_errors;
    cuda_screen_state *state;
    cuda_screen_entry *entries, *coarse_entries;
    uint16_t *spread;         /* hidden state of each draw; NULL if rows have one */
    int32_t *fallback_rows;   /* [B] */
    cuda_screen_exact *exact; /* [B][CUDA_SCREEN_EXACT_MAX]; truncated rows only */
    float *block_maxima;      /* [B][tiles]; truncated rows only */
} cuda_screen_workspace;

/* Arrays in the caller's workspace; NULL if a call does not use one. */
typedef struct cuda_workspace {
    uint32_t *allowed;               /* [B, cuda_allowed_words()] */
    gumbel_summary *summaries;       /* [splits][B, S], reused by each launch of a batch */
    size_t summaries_max;            /* their number */
    uint64_t *row_thresholds;        /* [B, S][CUDA_THRESHOLD_WORDS] */
    cuda_row_statistics *statistics; /* [splits][B], reused by each launch of a batch */
    float *logits;                   /* [B] rows at cuda_row_stride(), stored by a product */
    float *processed_rows;           /* [B] rows at cuda_row_stride(): z for best scores */
    int32_t *row_status;             /* [B]: output.status of a launch of entropies, if NULL */
    float *edited;              /* [B] rows at cuda_row_stride(): edited copies of given logits */
    float *block_maxima;        /* [B, blocks] */
    int32_t *row_states;        /* [B]: CUDA_ROW_... */
    uint8_t *stored_subtiles;   /* [blocks][B rounded up to 32] */
    float *unseen_block_maxima; /* [B, blocks], if penalties lower tokens of a history */
    uint64_t *exchange;         /* words that CTAs of a row exchange (cuda_truncated_params) */
    uint64_t *counters;         /* [B][CUDA_THRESHOLD_WORDS] */
    cuda_split_result *split_results; /* [B, splits] */
    cuda_candidate *candidates; /* [B, splits, CUDA_TRUNCATED_CANDIDATES]; NULL if rows are not
                                 * split */
    cuda_screen_workspace screen;
} cuda_workspace;

/* A call being queued. */
typedef struct cuda_job {
    cuda_device *cuda;
    cuda_params params; /* of the whole call */
    cuda_workspace workspace;
    uint32_t product_outputs;   /* cuda_product_output bits: stored by the product before */
    gumbel_row_array processed; /* with data: receives z instead of a draw */
    float
        *head_logits; /* [B, V] at head_logits_stride: receives a head's logits; NULL: workspace */
    int64_t head_logits_stride;
    int reads_lists;          /* the product reads lists of allowed tokens: no masks exist */
    int expect_few_live_rows; /* size launches for few rows, not for the batch */
    CUstream stream;
    gumbel_error *error;
} cuda_job;

/* The size of a launch. */
typedef struct cuda_shape {
    int64_t ctas;
    int threads;
    int shared_bytes; /* dynamic shared memory of a CTA */
    int overlaps;     /* may start while the previous launch ends */
} cuda_shape;

/* Queue a kernel on the job's stream, with the device's context current. Driver errors are reported
 * in job->error. `arguments` are those of cuLaunchKernelEx(), copied before it returns. */
gumbel_status cuda_launch(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                          void **arguments);

/* As cuda_launch(), of CTAs that run at the same time; at most as many as the GPU can run. */
gumbel_status cuda_launch_cooperatively(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                        void **arguments);

/* Make the context current and queue a kernel of one argument. */
gumbel_status cuda_launch_in_context(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                     void *argument);

/* Returns an error if a call has 2^31 or more draws. */
gumbel_status cuda_check_draws(int64_t batch, int32_t num_samples, gumbel_error *error);

/* A launch of CTAs of CUDA_THREADS. */
static inline cuda_shape cuda_shape_of(int64_t ctas)
{
    return (cuda_shape){.ctas = ctas, .threads = CUDA_THREADS};
}

/* 1 / soft_cap; 0 without a soft-cap. */
static inline float cuda_inverse_cap(const gumbel_problem *p)
{
    return p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f;
}

/* Row stride, in elements, of the logits that the backend stores. */
static inline int64_t cuda_row_stride(const gumbel_problem *p) { return (p->vocab + 3) / 4 * 4; }

/* The backend's own rows of logits as a tensor. */
static inline gumbel_tensor cuda_rows_at(const float *rows, const gumbel_problem *p, int64_t stride)
{
    return (gumbel_tensor){.data = rows,
                           .dtype = GUMBEL_FLOAT32,
                           .rows = p->batch,
                           .cols = p->vocab,
                           .stride = stride};
}

/* Tokens from the start of the first token's block to end_token. */
static inline int64_t cuda_range_of(const gumbel_problem *p)
{
    int64_t origin = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    return p->end_token > origin ? p->end_token - origin : 1;
}

/* Blocks of CUDA_MAXIMA_BLOCK tokens of a row. */
static inline int64_t cuda_blocks_of(const gumbel_problem *p)
{
    int64_t range = p->end_token - CUDA_MAXIMA_ORIGIN(p->first_token);
    return (range + CUDA_MAXIMA_BLOCK - 1) / CUDA_MAXIMA_BLOCK;
}

/* Words of a row of the mask made from lists of allowed tokens; of the shard's blocks only. */
static inline int64_t cuda_allowed_words(const gumbel_problem *p)
{
    return (p->first_token - CUDA_ALLOWED_ORIGIN(p->first_token) + p->vocab + 31) / 32;
}

/* Whether cuda_run_allow() makes the mask of a problem. */
static inline int cuda_makes_mask(const gumbel_problem *p)
{
    return p->mask_by_row && !p->transforms.mask.data;
}

/* Merge p->splits summaries of each draw and write the outputs; splits may be 0. */
gumbel_status cuda_launch_finish(const cuda_job *job, cuda_params *p);

/* A new tag of 40 bits for the words of a launch (row_thresholds.cuh, cta_counter.cuh). */
uint64_t cuda_new_tag(cuda_device *cuda);

/* Parameters of the rows [first, first + count) of a call. */
cuda_params cuda_select_rows(const cuda_params *whole, int64_t first, int64_t count);

/* ------------------------------------------------------------------------------- products ---- */

/* Count a rung's arrays of the workspace, or set their addresses. */
typedef void cuda_carver(gumbel_cursor *cursor, const cuda_device *cuda,
                         const gumbel_problem *problem, cuda_workspace *workspace);

/* Draw all rows of a head's call, or store their logits in params.logits_out. */
gumbel_status cuda_run_naive(const cuda_job *job);
gumbel_status cuda_run_sm80(const cuda_job *job);
gumbel_status cuda_run_sm90(const cuda_job *job);
gumbel_status cuda_run_allowed_fused(const cuda_job *job);
gumbel_status cuda_run_allowed_product(const cuda_job *job); /* stores logits only */
cuda_carver cuda_carve_screen;
cuda_carver cuda_carve_statistics;
gumbel_status cuda_run_screen(const cuda_job *job);
cuda_carver cuda_carve_screen_sm80;
gumbel_status cuda_run_screen_sm80(const cuda_job *job);
cuda_carver cuda_carve_screen_truncated;
gumbel_status cuda_run_screen_truncated(const cuda_job *job);

/* ----------------------------------------------------------------------- rows from logits ---- */

gumbel_status cuda_run_empty(const cuda_job *job); /* of calls whose tokens are all padding */
gumbel_status cuda_run_draw(const cuda_job *job);
gumbel_status cuda_run_draw_edits(const cuda_job *job);
gumbel_status cuda_run_draw_allowed(const cuda_job *job);
cuda_carver cuda_carve_edit;
gumbel_status cuda_run_edit(const cuda_job *job);
cuda_carver cuda_carve_pivots;
gumbel_status cuda_run_pivots(const cuda_job *job);
cuda_carver cuda_carve_blocks;
gumbel_status cuda_run_blocks(const cuda_job *job);
cuda_carver cuda_carve_bounded;
gumbel_status cuda_run_bounded(const cuda_job *job);
gumbel_status cuda_run_cluster(const cuda_job *job);
gumbel_status cuda_run_program_blocks(const cuda_job *job);
cuda_carver cuda_carve_program_pivots;
gumbel_status cuda_run_program_pivots(const cuda_job *job);
gumbel_status cuda_run_program(const cuda_job *job);
cuda_carver cuda_carve_grid;
gumbel_status cuda_run_grid(const cuda_job *job);
gumbel_status cuda_run_program_grid(const cuda_job *job);
cuda_carver cuda_carve_blocks_grid;
gumbel_status cuda_run_blocks_grid(const cuda_job *job);
gumbel_status cuda_run_program_blocks_grid(const cuda_job *job);
cuda_carver cuda_carve_pivots_grid;
gumbel_status cuda_run_program_pivots_grid(const cuda_job *job);
cuda_carver cuda_carve_two_pass;
gumbel_status cuda_run_two_pass(const cuda_job *job);
gumbel_status cuda_run_alone(const cuda_job *job);

/* Add the bytes of the row rungs that suffice for every call within the limits. */
void cuda_carve_max(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_limits *limits);

/* --------------------------------------------------------------------- steps of the rungs ---- */

/* Make the mask of `caller`'s lists of allowed tokens, if it has any. */
gumbel_status cuda_run_allow(const cuda_job *job, const gumbel_problem *caller);

/* Store y, the value of z before the temperature, of a call from logits with transforms but no
 * truncation; `rows` may be the logits. */
gumbel_status cuda_launch_edit(const cuda_job *job, float *rows, int64_t stride);

/* Whether the entropy has a launch of its own: that of raw logits, or of z that follow from a logit
 * alone. Kernels that process rows in any other way write the entropy of z. Rows without a token
 * have a NaN, by this launch. */
int cuda_needs_entropy_launch(const gumbel_problem *problem);

/* Launch the outputs that follow the draw of a call from logits. `store_processed` is the rung's
 * function, which writes z of its rows; with best scores, logits in the workspace are overwritten.
 * If the entropy has a launch of its own, output.status is set. */
void cuda_carve_outputs(gumbel_cursor *cursor, const gumbel_problem *problem,
                        cuda_workspace *workspace);
gumbel_status cuda_run_outputs(const cuda_job *job,
                               gumbel_status (*store_processed)(const cuda_job *job));

/* Draw the fallback rows of workspace.row_states after the previous launch; usually none. */
gumbel_status cuda_run_fallback_rows(const cuda_job *job);

/* Set the fields of blocks to the arrays of the workspace that the job's product writes. */
void cuda_set_blocks(const cuda_job *job, cuda_truncated_params *p);

/* Launch a kernel that tries to serve rows from their blocks, and sets p->row_states. */
gumbel_status cuda_launch_blocks(const cuda_job *job, cuda_truncated_params *p, CUfunction kernel);

/* Draw plainly, unless the product has drawn; then launch a kernel that starts from the tokens of
 * this draw. Sets p->row_states, which is NULL if the kernel serves all rows. */
gumbel_status cuda_launch_pivots(const cuda_job *job, cuda_truncated_params *p, CUfunction kernel);

/* Parameters of the truncated_* kernels for a call from logits. */
cuda_truncated_params cuda_get_truncated_params(const cuda_job *job);

/* Queue a kernel of p->splits CTAs for each of `rows` rows; with fewer rows than the batch, the
 * kernel loops over the batch. */
gumbel_status cuda_launch_rows(const cuda_job *job, cuda_truncated_params *p, int64_t rows,
                               CUfunction kernel, int threads, int shared_bytes, int overlaps);

/* CTAs for each row that is drawn before it is truncated, and words by which those of all rows
 * exchange results. */
int64_t cuda_count_pivot_splits(const gumbel_problem *problem);
size_t cuda_count_pivot_words(const gumbel_problem *problem);

/* Makes a draw zero the words by which the CTAs of such a row exchange results. */
void cuda_zero_exchange(cuda_params *draw, const cuda_workspace *workspace);

/* Shared memory of a CTA of a cluster, or of a cooperative launch, that holds a row. */
int64_t cuda_cluster_bytes(const gumbel_problem *problem);
int64_t cuda_grid_bytes(const gumbel_problem *problem);

/* The parameters of kernels that draw by programs. */
cuda_program_params cuda_get_program_params(const cuda_job *job);

#endif

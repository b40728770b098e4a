/* SPDX-License-Identifier: Apache-2.0
 *
 * How a call gets onto the caller's stream: each function queues kernels and returns; nothing here
 * waits, and nothing here chooses (cuda_plan.h does).
 */
#ifndef GUMBEL_CUDA_RUN_H
#define GUMBEL_CUDA_RUN_H

#include "core/workspace.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_request.h"
#include "cuda/host/cuda_device.h"

/* What a product hands to what serves the rows behind it, beside their logits. */
typedef enum cuda_handed {
    CUDA_HANDS_PEAKS = 1 << 0,  /* the largest logit of each block */
    CUDA_HANDS_STRIPS = 1 << 1, /* it stores strips that can matter alone, and tells which */
    CUDA_HANDS_DRAWS = 1 << 2,  /* a plain draw of each row, in the outputs */
} cuda_handed;

/* What the launches of a screened draw tell each other by (screen_policy.h). */
typedef struct cuda_screen_pieces {
    int8_t *planes;
    gumbel_screen_reach *reaches;
    cuda_screen_state *state;
    cuda_screen_entry *entries;
    uint16_t *spread;         /* NULL where draws are rows */
    int32_t *left;            /* [B] */
    cuda_screen_exact *exact; /* [B][CUDA_SCREEN_EXACT_MAX]; this and the next where rows are cut */
    float *peaks;             /* [B][tiles] */
} cuda_screen_pieces;

/* The pieces of the caller's workspace; what a call does not need is NULL. */
typedef struct cuda_workspace {
    uint32_t *allowed;          /* [B, cuda_allowed_words()] */
    gumbel_summary *summaries;  /* [parts][B, S] of one slice after the other */
    size_t summaries_most;      /* how many there are */
    uint64_t *floors;           /* [B, S][CUDA_THRESHOLD_WORDS] */
    float *logits;              /* [B] rows at cuda_row_stride(): what a product stores */
    float *best_rows;           /* as edited: rows whose best scores are listed */
    float *edited;              /* likewise: edited logits of a caller's, which stay as they are */
    float *peaks;               /* [B, blocks] */
    int32_t *row_states;        /* [B]: CUDA_ROW_... */
    uint8_t *stored_subtiles;   /* [blocks][B in whole 32s] */
    float *unseen_block_maxima; /* [B, blocks], where penalties lower what a history has seen */
    uint64_t *exchange;         /* [cuda_request_exchange_words()]: what CTAs of a row tell */
    uint64_t *counters;         /* [B][CUDA_THRESHOLD_WORDS] */
    cuda_part_result *heads;    /* [B, parts] */
    cuda_candidate *candidates; /* [B, parts, CUDA_REQUEST_CANDIDATES]; NULL for one part */
    cuda_screen_pieces screen;  /* of a screened draw */
} cuda_workspace;

/* One call on its way. */
typedef struct cuda_job {
    cuda_device *cuda;
    cuda_params params; /* of the whole call */
    cuda_workspace workspace;
    uint32_t handed;  /* cuda_handed bits: what the product before has left */
    float *processed; /* [B, V] at processed_stride: where z goes, and nothing is drawn; or NULL */
    int64_t processed_stride;
    float *kept; /* [B, V] at kept_stride: where a head's logits are stored; NULL: the workspace */
    int64_t kept_stride;
    int mostly_none; /* few rows of the batch are expected to live: no launch is for all of them */
    CUstream stream;
    gumbel_error *error;
} cuda_job;

/* The size of a launch. */
typedef struct cuda_shape {
    int64_t ctas;
    int threads;
    int shared_bytes; /* dynamic ones, a CTA */
    int overlaps;     /* may start while the launch before it ends */
} cuda_shape;

/* Queue a kernel on the job's stream, with the device's context current; a driver's error is
 * reported in job->error. `arguments` are those of cuLaunchKernelEx(), copied before it returns. */
gumbel_status cuda_launch(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                          void **arguments);

/* A launch of CUDA_THREADS a CTA. */
static inline cuda_shape cuda_ctas(int64_t ctas)
{
    return (cuda_shape){.ctas = ctas, .threads = CUDA_THREADS};
}

/* A launch that is a whole call, or a part of one that finds no context current. */
gumbel_status cuda_launch_alone(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                void *argument);

/* What kernels are given for the soft-cap; 0 for none. */
static inline float cuda_inverse_cap(const gumbel_problem *p)
{
    return p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f;
}

/* Elements from one row of the backend's own logits to the next. */
static inline int64_t cuda_row_stride(const gumbel_problem *p) { return (p->vocab + 3) / 4 * 4; }

/* The backend's own rows of logits. */
static inline gumbel_tensor cuda_rows_at(const float *rows, const gumbel_problem *p, int64_t stride)
{
    return (gumbel_tensor){.data = rows,
                           .dtype = GUMBEL_FLOAT32,
                           .rows = p->batch,
                           .cols = p->vocab,
                           .stride = stride};
}

/* Tokens from a block's first one to the end of those that count. */
static inline int64_t cuda_range_of(const gumbel_problem *p)
{
    int64_t origin = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    return p->end_token > origin ? p->end_token - origin : 1;
}

/* Blocks of a row that peaks are of (cuda_policy.h). */
static inline int64_t cuda_blocks_of(const gumbel_problem *p)
{
    int64_t range = p->end_token - CUDA_REQUEST_ORIGIN(p->first_token);
    return (range + CUDA_REQUEST_BLOCK - 1) / CUDA_REQUEST_BLOCK;
}

/* Words a row of the mask that lists of allowed tokens become: of the shard's blocks alone. */
static inline int64_t cuda_allowed_words(const gumbel_problem *p)
{
    return (p->first_token - CUDA_ALLOWED_ORIGIN(p->first_token) + p->vocab + 31) / 32;
}

/* Whether the mask of a problem is one that cuda_run_allow() makes. */
static inline int cuda_makes_mask(const gumbel_problem *p)
{
    return p->mask_by_row && !p->transforms.mask.data;
}

/* Merge what the parts of a slice found, and write what was asked for; p->parts may be 0. */
gumbel_status cuda_finish(const cuda_job *job, cuda_params *p);

/* A tag for a launch's words in the workspace (row_thresholds.cuh, cta_counter.cuh): 40 bits. */
uint64_t cuda_tag(cuda_device *cuda);

/* The rows [first, first + count) of a call. */
cuda_params cuda_slice(const cuda_params *whole, int64_t first, int64_t count);

/* ----------------------------------------------------------------------------- products ---- */

/* Draw all rows of a head's call, or store their logits in params.logits_out. */
gumbel_status cuda_run_naive(const cuda_job *job);
gumbel_status cuda_run_sm80(const cuda_job *job);
gumbel_status cuda_run_sm90(const cuda_job *job);
gumbel_status cuda_run_screen(const cuda_job *job);
gumbel_status cuda_run_screen_cut(const cuda_job *job);

/* ----------------------------------------------------------------- what serves rows ---- */

/* Each takes its pieces of the workspace, or counts them, and serves a call from logits with the
 * pieces of job->workspace. */
typedef void cuda_carver(gumbel_cursor *cursor, const cuda_device *cuda,
                         const gumbel_problem *problem, cuda_workspace *workspace);

gumbel_status cuda_run_nothing(const cuda_job *job); /* no token counts */
gumbel_status cuda_run_logits(const cuda_job *job);
cuda_carver cuda_carve_screen, cuda_carve_screen_cut; /* of products */
cuda_carver cuda_carve_edited;
gumbel_status cuda_run_edited(const cuda_job *job);
cuda_carver cuda_carve_pivots;
gumbel_status cuda_run_pivots(const cuda_job *job);
cuda_carver cuda_carve_blocks;
cuda_carver cuda_carve_bounded;
gumbel_status cuda_run_blocks(const cuda_job *job);
/* What a job's product has left of its rows' blocks, or where it goes. */
void cuda_find_blocks(const cuda_job *job, cuda_request_params *p);
gumbel_status cuda_run_team(const cuda_job *job);
/* Serve the rows that workspace.row_states leaves, behind the launch before; mostly none. */
gumbel_status cuda_run_left(const cuda_job *job);
cuda_carver cuda_carve_screened;
gumbel_status cuda_run_screened(const cuda_job *job);
gumbel_status cuda_run_alone(const cuda_job *job);

/* Count the bytes that any call within the limits has enough with, beside those of a draw. */
void cuda_carve_most(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_limits *limits);

/* Make the mask that lists of allowed tokens become, where `caller` has any. */
gumbel_status cuda_run_allow(const cuda_job *job, const gumbel_problem *caller);

/* Write y, what z is before the temperature, of a call from logits that asks for transforms alone;
 * `rows` may be the logits. */
gumbel_status cuda_run_edit(const cuda_job *job, float *rows, int64_t stride);

/* What kernels of a request are handed, of a call from logits. */
cuda_request_params cuda_request_of(const cuda_job *job);

/* Queue a kernel that takes p->parts CTAs for each of `rows`, or as many at a time. */
gumbel_status cuda_launch_rows(const cuda_job *job, cuda_request_params *p, int64_t rows,
                               CUfunction kernel, int threads, int shared_bytes, int overlaps);

/* CTAs that share a row which is drawn before it is cut. */
int64_t cuda_pivot_parts(const gumbel_problem *problem);

/* Have a draw clear the words by which the CTAs of such rows talk. */
void cuda_clear_exchange(cuda_params *draw, const cuda_workspace *workspace);

/* Shared memory of a CTA that holds a share of a row. */
int64_t cuda_team_bytes(const gumbel_problem *problem);

/* The logits of the tokens that a request lists. */
gumbel_status cuda_run_gather(const cuda_job *job);

/* The best scores of the draws of a call from logits, whose rows `make` writes as z. Logits that
 * are the workspace's own are written over. */
void cuda_carve_best(gumbel_cursor *cursor, const gumbel_problem *problem,
                     cuda_workspace *workspace);
gumbel_status cuda_run_best(const cuda_job *job, gumbel_status (*make)(const cuda_job *job));

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the kernels that transform and truncate rows, and of those that update histories:
 * read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_PARAMS_H
#define GUMBEL_CUDA_TRUNCATED_PARAMS_H

#include "core/problem.h"

/* A token that may be in the kept set. */
typedef struct cuda_candidate {
    float y;
    int32_t id;
} cuda_candidate;

/* Result of a CTA for its split of a row. */
typedef struct cuda_split_result {
    uint32_t count; /* of candidates; above CUDA_TRUNCATED_CANDIDATES if they do not fit */
    uint32_t flags;
    float bound;   /* upper bound of z of the dropped tokens */
    float largest; /* largest value */
} cuda_split_result;

/* State of a row that a CTA tries to serve from few of its blocks. Clusters of the next launch poll
 * the state, and draw a fallback row: at once, or after the end of the previous launch. */
enum { CUDA_ROW_PENDING, CUDA_ROW_SERVED, CUDA_ROW_FALLBACK, CUDA_ROW_FALLBACK_AFTER };

/* Draw from, or process, stored logits. All pointers are device pointers. */
typedef struct cuda_truncated_params {
    gumbel_problem problem; /* from logits: hidden_size is ignored */
    float inverse_cap;
    gumbel_output output;
    gumbel_summary *partials; /* [B, S]: receives summaries instead of output; or NULL */
    void *processed;          /* [B, V]: receives z instead of a draw; or NULL */
    int64_t processed_stride;
    gumbel_dtype processed_dtype;
    /* Rows that are first tried from few blocks of their tokens (truncated_blocks.cuh). */
    float *block_maxima;      /* [B, blocks]: as in cuda_params */
    int32_t has_block_maxima; /* block_maxima are stored already */
    int64_t blocks;           /* of a row, from CUDA_MAXIMA_ORIGIN() on */
    int32_t *row_states;      /* [B]: CUDA_ROW_...; NULL: clusters draw all rows */
    /* If the product stored only some subtiles (bound_sm90.cuh); otherwise NULL. */
    const uint8_t *stored_subtiles;   /* as in cuda_params */
    const float *unseen_block_maxima; /* as in cuda_params; or NULL */
    uint64_t *row_thresholds; /* [B][CUDA_THRESHOLD_WORDS]: rows' bounds, 0 without one; the second
                               * word, which counted the product's CTAs, is zeroed */
    /* Words that CTAs of a row exchange, or NULL. Rows that are drawn before they are truncated
     * (truncated_pivots.cu): [B] abort words, then [B, 2, splits, CUDA_PIVOT_EXCHANGE_WORDS] slots
     * of the row's CTAs; zero at the start. Cooperative launches (grid_exchange.cuh): for each
     * group of CTAs, CUDA_GRID_STEP_WORDS words, zero at the start; then for each group,
     * CUDA_GRID_MEMORY_WORDS words. */
    uint64_t *exchange;
    /* Splits of rows; not used by the naive kernel. */
    int32_t splits;     /* CTAs a row */
    int64_t split_size; /* tokens, in whole tiles; or blocks */
    uint64_t tag;       /* of this launch, as in cuda_params */
    uint64_t *counters; /* [B][CUDA_THRESHOLD_WORDS]: finished splits, below the tag */
    cuda_split_result *split_results; /* [B, splits] */
    cuda_candidate *candidates;       /* [B, splits, CUDA_TRUNCATED_CANDIDATES] */
} cuda_truncated_params;

typedef struct cuda_history_params {
    gumbel_history history;
    int64_t batch;
    gumbel_slots slots;
    gumbel_token_lists prompts, outputs; /* initial contents */
    int64_t tiles;                       /* of the vocabulary: CUDA_HISTORY_TILE tokens each */
    const int32_t *tokens;               /* [B] rows at token_stride: more of the output */
    int64_t token_stride;
    const int32_t *counts; /* [B] how many; NULL: 1 each */
} cuda_history_params;

#endif

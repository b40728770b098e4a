/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host hands to the kernels of a request, and to those of its history: read by C and by
 * CUDA.
 */
#ifndef GUMBEL_CUDA_REQUEST_H
#define GUMBEL_CUDA_REQUEST_H

#include "core/problem.h"

/* A token that may be among those that stay. */
typedef struct cuda_candidate {
    float y;
    int32_t id;
} cuda_candidate;

/* What a CTA found in its part of a row. */
typedef struct cuda_part_result {
    uint32_t count; /* of candidates; above CUDA_REQUEST_CANDIDATES where they do not fit */
    uint32_t flags;
    float bound;   /* z: what it dropped lies below */
    float largest; /* value */
} cuda_part_result;

/* What clusters are told of a row that a CTA tries to serve from few of its blocks: nothing yet,
 * that it is none of theirs, or that it is left to them, at once or behind the launch before them.
 */
enum { CUDA_ROW_PENDING, CUDA_ROW_SERVED, CUDA_ROW_FALLBACK, CUDA_ROW_FALLBACK_AFTER };

/* Draw, or process, logits that are there already. All pointers are device pointers. */
typedef struct cuda_request_params {
    gumbel_problem problem; /* from logits: hidden_size is not looked at */
    float inverse_cap;
    gumbel_output output;
    gumbel_summary *partials; /* [B, S]: where summaries go instead of output; or NULL */
    float *processed;         /* [B, V]: where z goes, and nothing is drawn; or NULL */
    int64_t processed_stride;
    /* Where rows are served from few blocks of their tokens first (request_blocks.cuh). */
    float *block_maxima;      /* [B, blocks]: as of cuda_params */
    int32_t has_block_maxima; /* they are there already */
    int64_t blocks;           /* of a row, from CUDA_REQUEST_ORIGIN() on */
    int32_t *row_states;      /* [B]: CUDA_ROW_...; NULL where all rows are left to clusters */
    /* Where the product has stored some of their strips alone (bound_sm90.cuh); else NULL. */
    const uint8_t *stored_subtiles;   /* as of cuda_params */
    const float *unseen_block_maxima; /* as of cuda_params; or NULL */
    uint64_t
        *row_thresholds; /* [B][CUDA_THRESHOLD_WORDS]: rows' bounds, 0 where a row had none; the
                             * second word, which counted the product's CTAs, is cleared */
    /* Where rows are drawn before they are cut (request_pivots.cu); else NULL. */
    uint64_t *exchange; /* [B]: whether a row's CTAs have given it up; then [B, 2, parts,
                     * CUDA_REQUEST_EXCHANGE_WORDS]: what they tell each other. Starts as 0 */
    /* What CTAs that share rows tell each other; not of the naive kernel. */
    int32_t parts;      /* CTAs a row */
    int64_t chunk;      /* of a part: tokens, in whole pieces; or blocks */
    uint64_t tag;       /* of this launch, as of cuda_params */
    uint64_t *counters; /* [B][CUDA_THRESHOLD_WORDS]: parts that are done, below the tag */
    cuda_part_result *part_results; /* [B, parts] */
    cuda_candidate *candidates;     /* [B, parts, CUDA_REQUEST_CANDIDATES] */
} cuda_request_params;

typedef struct cuda_history_params {
    gumbel_history history;
    int64_t batch;
    gumbel_slots slots;
    gumbel_token_lists prompts, outputs; /* to start from */
    int64_t slices;                      /* of the vocabulary: CUDA_HISTORY_SLICE tokens each */
    const int32_t *tokens;               /* [B] rows at token_stride: more of the output */
    int64_t token_stride;
    const int32_t *counts; /* [B] how many; NULL: 1 each */
} cuda_history_params;

#endif

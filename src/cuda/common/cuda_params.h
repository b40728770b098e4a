/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host hands to a kernel: read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_PARAMS_H
#define GUMBEL_CUDA_PARAMS_H

#include "core/ranks/peers.h"
#include "core/problem.h"

/* Everything but tensor maps. All pointers are device pointers. */
typedef struct cuda_params {
    gumbel_problem problem;
    float inverse_cap;
    int32_t tiles;             /* of the vocabulary */
    int32_t stages;            /* of the Hopper kernel's ring */
    int32_t parts;             /* summaries a row and sample: CTAs that draw from one row */
    int64_t chunk;             /* tokens a part, in whole blocks; not of the tiled kernels */
    gumbel_summary *summaries; /* [parts][B, S] */
    gumbel_output output;
    gumbel_summary *partials; /* [B, S]: where merged summaries go instead of output; or NULL */
    uint64_t
        *row_thresholds; /* [B, S][4]: a score that the row is sure to reach (row_thresholds.cuh) */
    uint64_t tag;        /* of this launch: the upper 40 bits of a floor that it wrote */
    int32_t multiply_only; /* drop every tile of logits: for measuring the draw */
    float *logits_out;     /* [B, V] where the logits l of tokens that count go, undrawn; or NULL */
    int64_t logits_out_stride; /* even */
    uint64_t *
        zero_after_draw; /* what a draw that leaves its tokens to others clears for them; or NULL */
    int64_t zero_after_draw_words;
    int32_t also_draw; /* with `stored`: the product draws, too, as in a plain call; and the request
                        * from these logits has its rows drawn so */
    float *
        block_maxima; /* [B, tiles]: the largest stored logit of each tile of CUDA_REQUEST_BLOCK tokens,
                   * NaN where one is NaN; or NULL */
    int64_t block_maxima_stride;
    /* As peaks, of the tokens that a row's history has not seen, which bounds go by; or NULL. */
    float *unseen_block_maxima;
    /* Where logits alone are stored that can reach a bound (bound_sm90.cuh): [tiles][B in whole
     * 32s], a bit for each strip of a tile whose logits of the row are stored; NULL: all are. */
    uint8_t *stored_subtiles;
} cuda_params;

/* What the kernels that make probabilities get. */
typedef struct cuda_softmax_params {
    gumbel_problem problem; /* from logits, without a request */
    float inverse_cap;
    float *probabilities; /* [B] rows of V at `stride`; may be the logits */
    int64_t stride;
    int32_t parts;          /* CTAs a row */
    int64_t chunk;          /* columns a part, in whole steps of a CTA */
    gumbel_summary *masses; /* [B, parts] */
} cuda_softmax_params;

/* What the kernel that lists the best scores of draws gets. */
typedef struct cuda_best_params {
    gumbel_problem problem; /* the draw's: its rows and noise */
    const float *rows;      /* [B] rows of V at `stride`: z, -inf for what cannot be drawn */
    int64_t stride;
    gumbel_output output; /* whose tokens are there: -1 where a row has none */
} cuda_best_params;

/* What the kernel that makes a mask of allowed tokens gets. */
typedef struct cuda_allow_params {
    gumbel_problem problem; /* the caller's: its mask, where there is one, goes by slots */
    uint32_t *allowed;      /* [B, words]: bit i is token CUDA_ALLOWED_ORIGIN() + i */
    int64_t words;
    int64_t slices; /* of a row: CUDA_HISTORY_SLICE tokens each */
    int32_t masked; /* there is a mask */
} cuda_allow_params;

/* What the kernels of an exchange get: of summaries, or of rows. */
typedef struct cuda_exchange_params {
    gumbel_peer_buffer
        *peer_buffers[GUMBEL_PEERS_RANKS]; /* of all ranks, as this one reaches them */
    int32_t rank, ranks;
    int64_t room;               /* words of a rank in a mailbox's place */
    gumbel_peer_report *report; /* in host memory */
    uint64_t timeout_ns;
    const uint32_t *words; /* of this rank: summaries, or rows of `width` */
    int64_t draws;         /* summaries, which are merged and written out, */
    int32_t num_samples;   /* so many a row */
    gumbel_output output;
    int64_t rows, width;
    uint32_t *received; /* rows of all ranks side by side, at received_width */
    int64_t received_width;
    int64_t begins[GUMBEL_PEERS_RANKS],
        widths[GUMBEL_PEERS_RANKS]; /* which words of it a rank's are */
    const int32_t
        *chosen; /* [rows]: those that are not 0 alone go, one behind the other; or NULL */
    const int32_t *of_row; /* [rows] slots, or NULL */
    int32_t *list, *slots,
        *listed; /* where the chosen rows are told: which, their slots, how many */
} cuda_exchange_params;

/* What the kernel gets that puts rows of outputs in their places. */
#define CUDA_SCATTER_OUTPUTS_MAX 7
typedef struct cuda_scatter_outputs_params {
    struct cuda_scattered_output {
        const uint32_t *from;
        uint32_t *to;
        int64_t width; /* words of a row; 0: there is none */
    } of[CUDA_SCATTER_OUTPUTS_MAX];
    const int32_t *list, *count; /* row i goes to row list[i] */
} cuda_scatter_outputs_params;

/* What the kernel that makes noise ahead of time gets. */
typedef struct cuda_noise_params {
    gumbel_problem problem; /* batch, range and sampling */
    float *noise;           /* [B, S] rows of V at `stride` */
    int64_t stride;
    int64_t slices; /* of a row: CUDA_NOISE_SLICE tokens each */
} cuda_noise_params;

#endif

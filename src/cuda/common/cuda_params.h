/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel parameters: read by C and by CUDA. Pointers are device pointers except where noted.
 */
#ifndef GUMBEL_CUDA_PARAMS_H
#define GUMBEL_CUDA_PARAMS_H

#include "core/ranks/peers.h"
#include "core/problem.h"

/* Parameters of a draw or a product, except tensor maps. */
typedef struct cuda_params {
    gumbel_problem problem;
    float inverse_cap;
    int32_t tiles;      /* of the vocabulary */
    int32_t stages;     /* of the ring of the Hopper and the wide kernels */
    int32_t splits;     /* summaries a row and sample: CTAs that draw from one row */
    int32_t paired;     /* of the Hopper kernel: 1 if the CTAs of a cluster share a tile and have
                     * CUDA_SM90_WIDEST rows each, 0 if they share the rows */
    int64_t split_size; /* tokens, in whole blocks; not of the tiled kernels */
    gumbel_summary *summaries; /* [splits][B, S] */
    gumbel_output output;
    gumbel_summary *partials; /* [B, S]: receives merged summaries instead of outputs; or NULL */
    uint64_t *row_thresholds; /* [B, S][4]: lower bound on the winning score (row_thresholds.cuh) */
    uint64_t tag;             /* of this launch: the upper 40 bits of the thresholds it wrote */
    int32_t multiply_only;    /* discard all logits: measures the product */
    float *logits_out;        /* [B, V]: receives the logits l of tokens that count; or NULL */
    int64_t logits_out_stride; /* even */
    uint64_t *zero_after_draw; /* words that the draw zeroes for the next launch; or NULL */
    int64_t zero_after_draw_words;
    int32_t also_draw;   /* with logits_out: the product also draws, as in a plain call, and the
                          * kernel that truncates these rows starts from that draw */
    float *block_maxima; /* [B, tiles]: largest stored logit of each block of CUDA_MAXIMA_BLOCK
                          * tokens, NaN where one is NaN; or NULL */
    int64_t block_maxima_stride;
    /* As block_maxima, but only of tokens absent from the row's history; or NULL. */
    float *unseen_block_maxima;
    /* Where only logits that can reach a bound are stored (bound_sm90.cuh): [tiles][B rounded up to
     * 32], a bit for each subtile of a tile that is stored; NULL: all are. */
    uint8_t *stored_subtiles;
} cuda_params;

/* Parameters of the softmax kernels. */
typedef struct cuda_softmax_params {
    gumbel_problem problem; /* from logits, without transforms or truncation */
    float inverse_cap;
    float *probabilities; /* [B] rows of V at `stride`; may be the logits */
    int64_t stride;
    int32_t splits;         /* CTAs a row */
    int64_t split_size;     /* columns, in whole steps of a CTA */
    gumbel_summary *masses; /* [B, splits] */
} cuda_softmax_params;

/* Parameters of the kernel that finds the best scores of draws. */
typedef struct cuda_best_params {
    gumbel_problem problem; /* the draw's: its rows and noise */
    const float *rows;      /* [B] rows of V at `stride`: z, -inf for tokens that cannot be drawn */
    int64_t stride;
    gumbel_output output; /* its tokens are written already: -1 where a row has none */
} cuda_best_params;

/* Parameters of the kernels that compute the entropy of rows. */
typedef struct cuda_entropy_params {
    gumbel_problem problem; /* from logits */
    float inverse_cap;
    int32_t transforms;    /* 1: z is computed from the logits; 0: the values are the logits */
    const int32_t *status; /* [B], written already */
    float *entropy;        /* [B] */
} cuda_entropy_params;

/* Parameters of the kernel that makes a mask of lists of allowed tokens. */
typedef struct cuda_allow_params {
    gumbel_problem problem; /* the caller's: its mask, where there is one, is indexed by slot */
    uint32_t *allowed;      /* [B, words]: bit i is token CUDA_ALLOWED_ORIGIN() + i */
    int64_t words;
    int64_t tiles;  /* of a row: CUDA_HISTORY_TILE tokens each */
    int32_t masked; /* the caller gives a mask, too */
} cuda_allow_params;

/* Parameters of an exchange of summaries, or of rows. */
typedef struct cuda_exchange_params {
    gumbel_peer_buffer *peer_buffers[GUMBEL_PEERS_RANKS]; /* of all ranks, mapped into this GPU */
    int32_t rank, ranks;
    int64_t room;               /* words of a rank's place in a peer buffer */
    gumbel_peer_report *report; /* in host memory */
    uint64_t timeout_ns;
    const uint32_t *words; /* sent by this rank: summaries, or rows of `width` */
    int64_t draws;         /* summaries, num_samples a row, which are merged into output */
    int32_t num_samples;
    gumbel_output output;
    int64_t rows, width;
    uint32_t *received; /* rows of all ranks side by side, at received_width */
    int64_t received_width;
    int64_t begins[GUMBEL_PEERS_RANKS],
        widths[GUMBEL_PEERS_RANKS]; /* words of each rank's columns */
    const int32_t *chosen; /* [rows]: only rows whose entry is not 0 are sent, packed; or NULL */
    const int32_t *of_row; /* [rows] slots, or NULL */
    int32_t *list, *slots, *listed; /* receive the chosen rows, their slots, and their number */
} cuda_exchange_params;

/* Parameters of the kernel that scatters rows of outputs. */
#define CUDA_SCATTER_OUTPUTS_MAX 7
typedef struct cuda_scatter_outputs_params {
    struct cuda_scattered_output {
        const uint32_t *from;
        uint32_t *to;
        int64_t width; /* words of a row; 0: unused */
    } of[CUDA_SCATTER_OUTPUTS_MAX];
    const int32_t *list, *count; /* row i goes to row list[i] */
} cuda_scatter_outputs_params;

/* Parameters of the kernels that compute noise ahead of time, of a range or of a table. */
typedef struct cuda_noise_params {
    gumbel_problem problem; /* batch, range and sampling */
    float *noise;           /* [B, S] rows of V at `stride` */
    int64_t stride;
    int64_t tiles;  /* of a row: CUDA_NOISE_TILE tokens each; of a table: CUDA_TABLE_TILE rows */
    uint32_t *mask; /* tables: receives a bit for each valid id; or NULL */
} cuda_noise_params;

/* Parameters of the kernel that maps rows to token ids. */
typedef struct cuda_token_ids_params {
    const int32_t *ids; /* [V] */
    int64_t batch;
    int32_t num_samples;
    gumbel_output output; /* holds rows, which are replaced */
} cuda_token_ids_params;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * This rank's rows of a draw that summaries do not tell, and the last resort: rows gathered whole.
 */
#ifndef GUMBEL_RANKS_ROWS_H
#define GUMBEL_RANKS_ROWS_H

#include "ranks/draw.h"

typedef struct dist_rows {
    dist_draw *draw;
    int raw, noise;    /* what travels beside y: noise is S rows */
    int64_t kinds;     /* rows that travel for a row */
    int64_t vocab;     /* of the whole */
    int64_t piece;     /* rows of one exchange */
    float *y, *logits; /* [B, V] of the shard; `logits` where raw */
    float *sent;       /* [kinds, piece, V'] */
    float *received;   /* [R, kinds, piece, V'] */
    float *whole;      /* [kinds, piece, V]: y, logits, noise */
    int32_t *tokens, *top_ids, *status, *scratch;
    float *scores, *lse;
} dist_rows;

/* What a draw's rows are, and their room. */
dist_rows dist_rows_of(dist_draw *draw, gumbel_cursor *cursor);

/* Make *most no less than what calls of the rank's device take for them. */
gumbel_status dist_rows_count(const dist_rows *rows, size_t *most, gumbel_error *error);

/* Make y and logits: y is what (2) of gumbel.h has before the temperature, -inf for what does not
 * count. A row that something spoils is NaN in all of the shard, or +inf where that did it. */
gumbel_status dist_rows_make(const dist_rows *rows, gumbel_error *error);

/* This rank's part as a problem of y, or of logits, that asks for nothing. */
gumbel_problem dist_rows_problem(const dist_rows *rows, const float *values);

/* Gather `count` rows, which are told in rising order, and draw them. All ranks call it. */
gumbel_status dist_rows_serve(const dist_rows *rows, const int64_t *which, int64_t count,
                              gumbel_error *error);

#endif

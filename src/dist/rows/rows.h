/* SPDX-License-Identifier: Apache-2.0
 *
 * This rank's rows of a draw that summaries do not tell, and the last resort: rows gathered whole.
 */
#ifndef GUMBEL_DIST_ROWS_H
#define GUMBEL_DIST_ROWS_H

#include "dist/draw.h"

typedef struct ranks_whole_rows {
    ranks_draw *draw;
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
} ranks_whole_rows;

/* What a draw's rows are, and their room. */
ranks_whole_rows ranks_carve_whole_rows(ranks_draw *draw, gumbel_cursor *cursor);

/* Make *most no less than what calls of the rank's device take for them. */
gumbel_status ranks_count_whole_rows(const ranks_whole_rows *rows, size_t *most, gumbel_error *error);

/* Make y and logits: y is what (2) of gumbel.h has before the temperature, -inf for what does not
 * count. A row that something spoils is NaN in all of the shard, or +inf where that did it. */
gumbel_status ranks_make_shard_rows(const ranks_whole_rows *rows, gumbel_error *error);

/* This rank's part as a problem of y, or of logits, that asks for nothing. */
gumbel_problem ranks_shard_problem(const ranks_whole_rows *rows, const float *values);

/* Gather `count` rows, which are told in rising order, and draw them. All ranks call it. */
gumbel_status ranks_draw_gathered_rows(const ranks_whole_rows *rows, const int64_t *which, int64_t count,
                              gumbel_error *error);

#endif

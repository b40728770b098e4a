/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from rows that are gathered whole from all shards, on CPUs.
 */
#ifndef GUMBEL_RANKS_WHOLE_ROWS_H
#define GUMBEL_RANKS_WHOLE_ROWS_H

#include "ranks/rank_draw.h"

typedef struct ranks_whole_rows {
    ranks_draw *draw;
    int raw, noise; /* 1: unmodified logits, or S rows of noise, are exchanged in addition to y */
    int64_t kinds;  /* arrays exchanged for each row: 1 + raw + S noise */
    int64_t vocab;  /* size of the whole vocabulary */
    int64_t slice;  /* rows of the batch in one exchange */
    float *y, *logits;                  /* [B, V] of the shard; `logits` if raw */
    float *sent;                        /* [kinds, slice, V'] */
    float *received;                    /* [R, kinds, slice, V'] */
    float *whole;                       /* [kinds, slice, V]: y, logits, noise */
    int32_t *top_ids, *status, *tokens; /* `tokens`: an output of the raw distribution, not read */
    float *lse;                         /* [slice] of the raw distribution */
} ranks_whole_rows;

ranks_whole_rows ranks_carve_whole_rows(ranks_draw *draw, gumbel_cursor *cursor);

/* Raises *max_bytes to the workspace that calls of the rank's device take. */
gumbel_status ranks_count_whole_rows(const ranks_whole_rows *rows, size_t *max_bytes,
                                     gumbel_error *error);

/* Writes `logits`, and y: the value of (2) of gumbel.h before the temperature, -inf for padding. In
 * an invalid row all values are NaN, or +inf if +inf is the row's only fault. */
gumbel_status ranks_make_shard_rows(const ranks_whole_rows *rows, gumbel_error *error);

/* The shard as a problem of logits `values`, without features. */
gumbel_problem ranks_shard_problem(const ranks_whole_rows *rows, const float *values);

/* Gathers rows which[0 .. count - 1], in ascending order, and draws them. All ranks make the call.
 * */
gumbel_status ranks_draw_gathered_rows(const ranks_whole_rows *rows, const int64_t *which,
                                       int64_t count, gumbel_error *error);

#endif

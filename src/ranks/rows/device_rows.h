/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from rows that are gathered whole from all shards, on GPUs: each rank computes its shard of
 * y, the value of z before the temperature, and receives whole rows of y.
 */
#ifndef GUMBEL_RANKS_DEVICE_ROWS_H
#define GUMBEL_RANKS_DEVICE_ROWS_H

#include "ranks/rank_draw.h"

typedef struct ranks_device_rows {
    ranks_draw *draw;
    int64_t stride; /* of a shard's row, equal on all ranks */
    int64_t vocab;  /* size of the whole vocabulary */
    int64_t slice;  /* rows in one exchange */
    float *own;     /* [slice] at `stride` */
    float *all;     /* [R, slice] at `stride`; NULL with peer memory */
    float *whole;   /* [slice, vocab] */
} ranks_device_rows;

ranks_device_rows ranks_carve_device_rows(ranks_draw *draw, gumbel_cursor *cursor, int64_t slice);

/* Raises *max_bytes to the workspace of y and of the draw from whole rows, if that is larger. */
gumbel_status ranks_count_device_rows(const ranks_device_rows *rows, size_t *max_bytes,
                                      gumbel_error *error);

/* Queues y of this rank, for rows [first, first + count). */
gumbel_status ranks_make_device_rows(const ranks_device_rows *rows, int64_t first, int64_t count,
                                     gumbel_error *error);

/* The problem that draws rows [first, first + count) from the whole. */
gumbel_problem ranks_problem_of_whole(const ranks_device_rows *rows, int64_t first, int64_t count);

/* An exchange that scatters `count` rows into whole rows: the shards of rank `first` and of as many
 * ranks after it as fit into one exchange. */
gumbel_peer_rows ranks_peer_rows_of(const ranks_device_rows *rows, int64_t count, int32_t first);

/* As ranks_peer_rows_of(), for rows that are gathered in rows->all already. */
gumbel_gathered_rows ranks_gathered_rows_of(const ranks_device_rows *rows, int64_t count,
                                            int32_t first);

#endif

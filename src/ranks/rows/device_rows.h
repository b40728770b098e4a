/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from gathered whole rows, on GPUs: each rank computes y, the value of z before the
 * temperature, for its shard, and receives the rows of y of the whole vocabulary.
 */
#ifndef GUMBEL_RANKS_DEVICE_ROWS_H
#define GUMBEL_RANKS_DEVICE_ROWS_H

#include "ranks/rank_draw.h"

typedef struct ranks_device_rows {
    ranks_draw *draw;
    int64_t stride; /* elements from a shard's row to the next; equal on all ranks */
    int64_t vocab;  /* size of the whole vocabulary */
    int64_t slice;  /* rows in one exchange */
    float *own;     /* [slice, stride]: y of this rank's shard */
    float *all;     /* [R, slice, stride]: y of all shards; NULL with peer memory */
    float *whole;   /* [slice, vocab]: y of the whole vocabulary */
} ranks_device_rows;

ranks_device_rows ranks_carve_device_rows(ranks_draw *draw, gumbel_cursor *cursor, int64_t slice);

/* Raises *max_bytes, if it is smaller, to the workspace size of the calls that compute y and that
 * draw from whole rows. */
gumbel_status ranks_count_device_rows(const ranks_device_rows *rows, size_t *max_bytes,
                                      gumbel_error *error);

/* Queues the computation of y for rows [first, first + count) of this rank's shard. */
gumbel_status ranks_make_device_rows(const ranks_device_rows *rows, int64_t first, int64_t count,
                                     gumbel_error *error);

/* The problem that draws rows [first, first + count) of the batch from rows->whole. */
gumbel_problem ranks_problem_of_whole(const ranks_device_rows *rows, int64_t first, int64_t count);

/* An exchange that scatters `count` rows into whole rows: the shards of rank `first` and of as many
 * ranks after it as fit into one exchange. */
gumbel_peer_rows ranks_peer_rows_of(const ranks_device_rows *rows, int64_t count, int32_t first);

/* As ranks_peer_rows_of(), for rows that are gathered in rows->all already. */
gumbel_gathered_rows ranks_gathered_rows_of(const ranks_device_rows *rows, int64_t count,
                                            int32_t first);

#endif

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
    int64_t stride;       /* elements from a shard's row to the next; equal on all ranks */
    int64_t vocab;        /* size of the whole vocabulary */
    int64_t slice;        /* rows in one exchange */
    float *shard_rows;    /* [slice, stride]: y of this rank's shard */
    float *gathered_rows; /* [R, slice, stride]: y of all shards; NULL with peer memory */
    float *whole_rows;    /* [slice, vocab]: y of the whole vocabulary */
} ranks_device_rows;

/* Carves the arrays for slices of `slice` rows from a workspace. */
ranks_device_rows ranks_carve_device_rows(ranks_draw *draw, gumbel_cursor *cursor, int64_t slice);

/* Raises *max_bytes, if it is smaller, to the workspace size of the calls that compute y and that
 * draw from whole rows. */
gumbel_status ranks_count_device_rows(const ranks_device_rows *rows, size_t *max_bytes,
                                      gumbel_error *error);

/* Queues the computation of y for rows [first, first + count) of this rank's shard. */
gumbel_status ranks_queue_shard_rows(const ranks_device_rows *rows, int64_t first, int64_t count,
                                     gumbel_error *error);

/* Returns the problem that draws rows [first, first + count) of the batch from rows->whole_rows. */
gumbel_problem ranks_build_whole_problem(const ranks_device_rows *rows, int64_t first,
                                         int64_t count);

/* Returns an exchange by peer memory that scatters `count` rows of each shard into whole rows, for
 * ranks from `first` on, as many as one exchange can have (GUMBEL_PEERS_RANKS). */
gumbel_peer_rows ranks_build_peer_rows(const ranks_device_rows *rows, int64_t count, int32_t first);

/* As ranks_build_peer_rows(), but scatters from rows->gathered_rows. */
gumbel_gathered_rows ranks_build_gathered_rows(const ranks_device_rows *rows, int64_t count,
                                               int32_t first);

#endif

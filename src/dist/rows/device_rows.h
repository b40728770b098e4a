/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of draws on GPUs: this rank's part of y, what z is before the temperature, and the whole.
 */
#ifndef GUMBEL_DIST_DEVICE_ROWS_H
#define GUMBEL_DIST_DEVICE_ROWS_H

#include "dist/draw.h"

typedef struct ranks_device_rows {
    ranks_draw *draw;
    int64_t stride; /* of a shard's row, as all ranks have it */
    int64_t vocab;  /* of the whole */
    int64_t piece;  /* rows at a time */
    float *own;     /* [piece] at `stride` */
    float *all;     /* [R, piece] at `stride`; none with peer memory */
    float *whole;   /* [piece, vocab] */
} ranks_device_rows;

/* Room for `piece` rows at a time. */
ranks_device_rows ranks_carve_device_rows(ranks_draw *draw, gumbel_cursor *cursor, int64_t piece);

/* Make *most no less than what making y takes of the workspace, and drawing from the whole. */
gumbel_status ranks_count_device_rows(const ranks_device_rows *rows, size_t *most,
                                     gumbel_error *error);

/* Queue y of rows [first, first + count), of this rank. */
gumbel_status ranks_make_device_rows(const ranks_device_rows *rows, int64_t first, int64_t count,
                                    gumbel_error *error);

/* What draws from the whole of these rows. */
gumbel_problem ranks_problem_of_whole(const ranks_device_rows *rows, int64_t first, int64_t count);

/* The exchange by which `count` rows of all ranks come to be the whole: of ranks from `first` on,
 * as many as one exchange lays side by side. */
gumbel_peer_rows ranks_peer_rows_of(const ranks_device_rows *rows, int64_t count,
                                           int32_t first);

/* The same of rows that are gathered in rows->all. */
gumbel_gathered_rows ranks_gathered_rows_of(const ranks_device_rows *rows, int64_t count,
                                               int32_t first);

#endif

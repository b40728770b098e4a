/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws with a table of token ids (gumbel_sampling.token_ids): the noise of the table's tokens is
 * stored in the workspace, rows are drawn with it, and outputs are mapped from rows to ids.
 */
#ifndef GUMBEL_API_TOKEN_IDS_H
#define GUMBEL_API_TOKEN_IDS_H

#include "core/backend.h"

/* Marks a problem with a table as one with given noise and, if the host cannot read the table, with
 * a mask, so that it is planned as such. Their addresses are set by gumbel_prepare_token_ids(). */
void gumbel_require_table(const gumbel_device *device, gumbel_problem *problem);

/* Adds the bytes of noise and mask, which precede the arrays of the draw. */
void gumbel_add_table_bytes(const gumbel_problem *problem, size_t *bytes);

/* Adds the most bytes of noise and mask of calls within limits. */
void gumbel_add_table_bytes_max(const gumbel_limits *limits, size_t *bytes);

/* Stores noise and mask of the first `rows` rows of the batch at *workspace, which has the bytes of
 * gumbel_add_table_bytes(), and advances *workspace past them. */
gumbel_status gumbel_prepare_token_ids(gumbel_device *device, gumbel_problem *problem, int64_t rows,
                                       void **workspace, gumbel_error *error);

/* Replaces rows by ids in the outputs of the first `rows` rows of the batch. */
gumbel_status gumbel_map_token_ids(gumbel_device *device, const gumbel_problem *problem,
                                   int64_t rows, const gumbel_output *output, gumbel_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of the calls that watermark draws.
 */
#ifndef GUMBEL_VALIDATE_WATERMARK_H
#define GUMBEL_VALIDATE_WATERMARK_H

#include "core/watermark_row.h"

/* Reads the parameters of `batch` rows or requests, and makes their strides explicit. */
gumbel_status gumbel_read_watermark(gumbel_watermark *into, const gumbel_watermark *watermark,
                                    int64_t batch, gumbel_error *error);

/* Reads the arrays of `rows` draws. They may not overlap each other, the parameters `by`, or the
 * rings `recent`. `with_nodes`: positions are indexed by row. */
gumbel_status gumbel_read_watermark_draws(gumbel_watermark_draws *into,
                                          const gumbel_watermark_draws *draws,
                                          const gumbel_watermark *by, const gumbel_recent *recent,
                                          int64_t batch, int64_t rows, int with_nodes,
                                          gumbel_error *error);

/* Checks values in host memory. */
gumbel_status gumbel_check_host_watermark(const gumbel_watermark *watermark, int64_t batch,
                                          gumbel_error *error);

/* Copies and checks a detector for a text of `count` tokens; a `context` of 0 becomes the default.
 */
gumbel_status gumbel_read_detector(gumbel_detector *into, const gumbel_detector *detector,
                                   const int32_t *tokens, int64_t count, gumbel_error *error);

#endif

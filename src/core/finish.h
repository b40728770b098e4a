/* SPDX-License-Identifier: Apache-2.0
 *
 * The outputs of a draw, read out of its summaries.
 */
#ifndef GUMBEL_CORE_FINISH_H
#define GUMBEL_CORE_FINISH_H

#include "gumbel/gumbel.h"

/* Write the outputs of rows [0, batch), of which `output` in full length asks for some, from
 * summaries [batch, num_samples] of the whole vocabulary. All are in host memory. */
void gumbel_read_out(const gumbel_summary *summaries, int64_t batch, int32_t num_samples,
                     const gumbel_output *output);

#endif

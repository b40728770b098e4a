/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes outputs from summaries, draws in slices of rows, and fills the outputs of unused rows.
 */
#ifndef GUMBEL_CORE_OUTPUT_H
#define GUMBEL_CORE_OUTPUT_H

#include "core/backend.h"

/* Whether best scores, or their tokens, are requested. */
/* Whether an output other than top_logprobs is, or requires, the log-normaliser. */
static inline int gumbel_output_has_lse(const gumbel_output *output)
{
    return output->lse || output->logprobs || output->kept_logprobs;
}

static inline int gumbel_output_has_best(const gumbel_output *output)
{
    return output->num_best > 0 && (output->best_ids || output->best_scores);
}

/* Writes the outputs of a batch from the summaries of all parts of its vocabulary, in host memory.
 */
void gumbel_write_outputs(const gumbel_finish_call *call);

/* Draws rows [0, batch), in slices of at most gumbel_slice_rows_max() rows that reuse the
 * workspace. `plan` is that of a slice of that size; NULL: the backend plans each slice. */
gumbel_status gumbel_draw_rows(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_plan *plan, int64_t batch, const gumbel_output *output,
                               void *workspace, gumbel_error *error);

/* The outputs of rows from `first` on. */
gumbel_output gumbel_output_slice(const gumbel_output *output, int64_t first, int32_t num_samples);

/* Writes GUMBEL_ROW_UNUSED and empty outputs for rows [first, end), in host memory. */
void gumbel_output_fill_unused(const gumbel_output *output, int64_t first, int64_t end,
                               int32_t num_samples);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The outputs of a draw: read out of its summaries, those of some rows, those of unused ones.
 */
#ifndef GUMBEL_CORE_OUTPUT_H
#define GUMBEL_CORE_OUTPUT_H

#include "core/backend.h"

/* Whether best scores, or their tokens, are requested. */
static inline int gumbel_output_has_best(const gumbel_output *output)
{
    return output->num_best > 0 && (output->best_ids || output->best_scores);
}

/* Write the outputs of a batch from summaries of all parts of its vocabulary. All are in host
 * memory. */
void gumbel_write_outputs(const gumbel_finish_call *call);

/* Draw rows [0, batch), or score them: those by slices, each of which uses the workspace anew. */
gumbel_status gumbel_draw_rows(gumbel_device *device, const gumbel_problem *problem, int64_t batch,
                               const gumbel_output *output, void *workspace, gumbel_error *error);

/* The outputs of rows from `first` on. */
gumbel_output gumbel_output_slice(const gumbel_output *output, int64_t first, int32_t num_samples);

/* Write the outputs of rows first .. end, which are not drawn, into host memory. */
void gumbel_output_fill_unused(const gumbel_output *output, int64_t first, int64_t end,
                               int32_t num_samples);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The outputs of one row, after its draw.
 */
#ifndef GUMBEL_CPU_OUTPUTS_H
#define GUMBEL_CPU_OUTPUTS_H

#include "cpu/rows/cpu_row_truncate.h"

/* Writes the best scores of row b, or ids -1 and scores NaN if `ok` is 0. */
void cpu_write_best_scores(const cpu_rows_call *call, int64_t b, int ok);

/* The entropy of row b, whose status is OK, in the distribution of its log-probabilities; NaN if
 * raw logits have a NaN or +inf. */
float cpu_compute_entropy(const cpu_rows_call *call, int64_t b);

/* The summary of the raw logits of row b, which the stage must hold. */
gumbel_summary cpu_merge_raw_summary(const cpu_rows_call *call, int64_t b);

/* Writes all outputs of row b. Uses the scratch of `thread`. */
void cpu_write_row_outputs(cpu_rows_call *call, int32_t thread, int64_t b);

#endif

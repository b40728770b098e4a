/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that must store whole rows: truncation, ranks, kept counts, top tokens, raw
 * log-probabilities, processed logits.
 *
 *     stage all tiles ──► truncate each row ──► draw the blocks with survivors ──► write outputs
 *
 * All threads finish a phase before the next one starts. Threads claim tiles, rows, and groups of
 * blocks one by one.
 */
#ifndef GUMBEL_CPU_ROWS_H
#define GUMBEL_CPU_ROWS_H

#include "cpu/rows/cpu_row_truncate.h"

/* Workspace bytes of a draw from whole rows, behind the plain workspace and the edits. */
size_t cpu_count_rows_workspace(const cpu_device *cpu, const gumbel_problem *problem);

/* Draws from whole rows and writes the outputs. */
void cpu_sample_rows(cpu_device *cpu, const gumbel_problem *problem, const gumbel_output *output,
                     void *workspace);

/* Truncates staged rows, draws from them and writes their outputs. */
void cpu_draw_staged_rows(cpu_rows_call *call);

/* Fills processed rows. `truncates`: the request does more than transform. */
void cpu_process_rows(cpu_device *cpu, const gumbel_problem *problem, int truncates,
                      gumbel_row_array processed, void *workspace);

/* Fills rows [B, V] at `stride` with logits, of a problem without requests. */
void cpu_store_rows(cpu_device *cpu, const gumbel_problem *problem, float *rows, int64_t stride,
                    void *workspace);

/* Fills rows [B, V] at `stride` with probabilities (eq. 13): of the problem's logits, or with a
 * request in place of its processed logits. */
void cpu_compute_softmax(cpu_device *cpu, const gumbel_problem *problem, float *rows,
                         int64_t stride, void *workspace);

#endif

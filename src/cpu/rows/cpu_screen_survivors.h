/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated rows by a screen, with all outputs that their survivors determine.
 */
#ifndef GUMBEL_CPU_SCREEN_SURVIVORS_H
#define GUMBEL_CPU_SCREEN_SURVIVORS_H

#include "cpu/call/screen/cpu_screen.h"

/* Whether rules keep few tokens, whose mass alone determines the outputs of their row. */
int cpu_has_survivors(const gumbel_rules *rules);

/* Workspace bytes beyond those of cpu_count_screen_workspace(). */
size_t cpu_count_survivors_workspace(int64_t batch);

/* Draws and writes the outputs of all rows but the fallback rows. Returns a range that holds all
 * fallback rows, and maybe others. `summaries` [B, S] is scratch; `workspace` holds the plain part,
 * edits, screen, and cpu_count_survivors_workspace(). */
cpu_row_range cpu_sample_survivors(cpu_device *cpu, const gumbel_problem *problem,
                                   const gumbel_output *output, gumbel_summary *summaries,
                                   void *workspace);

#endif

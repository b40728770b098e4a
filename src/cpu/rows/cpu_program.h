/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the program of a row on its staged values (docs/maths.md, section 15).
 */
#ifndef GUMBEL_CPU_PROGRAM_H
#define GUMBEL_CPU_PROGRAM_H

#include "cpu/rows/cpu_row_truncate.h"

/* Runs the program of row b, which is not greedy and has a token, from its rule number `first_rule`
 * on. The staged values become z: -inf for a removed token, or in a block whose maximum is -inf,
 * any value. */
void cpu_run_program(cpu_rows_call *call, int64_t b, int first_rule);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of programs (gumbel/programs.h).
 */
#ifndef GUMBEL_VALIDATE_PROGRAMS_H
#define GUMBEL_VALIDATE_PROGRAMS_H

#include "core/problem.h"

/* Copies the programs of problem->truncation into the problem, checks their rules, and sets
 * GUMBEL_FEATURE_PROGRAM. */
gumbel_status gumbel_read_programs(gumbel_problem *problem, gumbel_error *error);

/* Checks the row parameters and lists of programs, in host memory. */
gumbel_status gumbel_check_host_programs(const gumbel_problem *problem, gumbel_error *error);

/* Draws a program by an order of the truncation rules, if the output shows no removed token and the
 * program has no other rules (programs.h). */
void gumbel_lower_program(gumbel_problem *problem);

#endif

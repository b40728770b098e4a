/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the values of row parameters in host memory.
 */
#ifndef GUMBEL_VALIDATE_ROWS_H
#define GUMBEL_VALIDATE_ROWS_H

#include "core/problem.h"

/* The range of a row parameter: low <= value <= high. */
typedef struct gumbel_range {
    const char *field;
    float low, high;
    const char *text; /* the range in words, after "must be" */
} gumbel_range;

/* Returns an error that names the first live row whose value is out of range, or NaN. */
gumbel_status gumbel_check_row_range(const gumbel_problem *problem, const gumbel_row_f32 *rows,
                                     const gumbel_range *range, gumbel_error *error);

/* As gumbel_check_row_range(), for integers; messages do not name a `high` of INT32_MAX. */
gumbel_status gumbel_check_row_integers(const gumbel_problem *problem, const gumbel_row_i32 *rows,
                                        const char *field, int32_t low, int32_t high,
                                        gumbel_error *error);

#endif

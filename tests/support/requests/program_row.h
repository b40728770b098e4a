/* SPDX-License-Identifier: Apache-2.0
 *
 * One row of logits with one program, for tests by hand. No test framework.
 */
#ifndef TESTS_PROGRAM_ROW_H
#define TESTS_PROGRAM_ROW_H

#include "requests.h"

#include <string.h>

/* The row, whose structs point to each other; do not copy it. Tests set further parameters. */
typedef struct program_row {
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_truncation truncation;
    gumbel_programs programs;
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
} program_row;

/* A program of `length` rules over logits [count]. */
static inline void set_program_row(program_row *row, const float *logits, int64_t count,
                                   const uint8_t *rules, size_t length)
{
    memset(row, 0, sizeof *row);
    memcpy(row->rules, rules, length);
    row->programs.struct_size = sizeof row->programs;
    row->programs.rules = row->rules;
    row->programs.count = 1;
    row->truncation.struct_size = sizeof row->truncation;
    row->truncation.programs = &row->programs;
    row->sampling.struct_size = sizeof row->sampling;
    row->sampling.truncation = &row->truncation;
    row->logits.struct_size = sizeof row->logits;
    row->logits.logits = tensor_of(logits, GUMBEL_FLOAT32, 1, count, 0);
}

/* A parameter of the row; the value must outlive it. */
static inline gumbel_row_f32 same_f32(const float *value)
{
    return (gumbel_row_f32){value, GUMBEL_SAME};
}

static inline gumbel_row_i32 same_i32(const int32_t *value)
{
    return (gumbel_row_i32){value, GUMBEL_SAME};
}

#endif

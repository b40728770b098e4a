/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of rules, two thirds of which begin with TOP_K or MIN_P, which the largest tokens
 * of a row determine: the programs that GPUs run on lists of those. Each row has its own value of
 * each parameter, which a test may change. request_programs.c makes the programs of a plan, with
 * rules in any order and parameters of any kind.
 */
#ifndef TESTS_PREFIXED_PROGRAMS_H
#define TESTS_PREFIXED_PROGRAMS_H

#include "gumbel/programs.h"
#include "requests.h"

enum { PREFIXED_PROGRAMS = 3, PREFIXED_PROGRAM_ROWS = 80, PREFIXED_PROGRAM_PARAMETERS = 15 };

/* Programs of a request, with the parameters of its rows. */
typedef struct prefixed_programs {
    gumbel_programs all;
    uint8_t rules[PREFIXED_PROGRAMS][GUMBEL_PROGRAM_LENGTH];
    int32_t of_row[PREFIXED_PROGRAM_ROWS], min_keep[PREFIXED_PROGRAM_ROWS],
        top_k[PREFIXED_PROGRAM_ROWS];
    float values[PREFIXED_PROGRAM_PARAMETERS][PREFIXED_PROGRAM_ROWS];
    int64_t offsets[PREFIXED_PROGRAM_ROWS + 1];
    int32_t keep[2 * PREFIXED_PROGRAM_ROWS];
    char text[256]; /* the rules of the rows' programs */
} prefixed_programs;

/* Sets random programs for the request, in place of its truncation; they must live as long. The
 * request has at most PREFIXED_PROGRAM_ROWS rows. */
void prefixed_programs_set(prefixed_programs *programs, request *req, uint64_t *random);

#endif

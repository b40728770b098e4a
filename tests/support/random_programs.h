/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of rules for the rows of a request, with parameters that keep from one to nearly
 * all tokens.
 */
#ifndef TESTS_RANDOM_PROGRAMS_H
#define TESTS_RANDOM_PROGRAMS_H

#include "gumbel/programs.h"
#include "requests.h"

enum { RANDOM_PROGRAMS = 3, RANDOM_PROGRAM_ROWS = 80, RANDOM_PROGRAM_PARAMETERS = 14 };

/* Programs of a request, with the parameters of its rows. */
typedef struct random_programs {
    gumbel_programs all;
    uint8_t rules[RANDOM_PROGRAMS][GUMBEL_PROGRAM_LENGTH];
    int32_t of_row[RANDOM_PROGRAM_ROWS], min_keep[RANDOM_PROGRAM_ROWS], top_k[RANDOM_PROGRAM_ROWS];
    float values[RANDOM_PROGRAM_PARAMETERS][RANDOM_PROGRAM_ROWS];
    int64_t offsets[RANDOM_PROGRAM_ROWS + 1];
    int32_t keep[2 * RANDOM_PROGRAM_ROWS];
    char text[256]; /* the rules of the rows' programs */
} random_programs;

/* Sets random programs for the request, in place of its truncation; they must live as long. The
 * request has at most RANDOM_PROGRAM_ROWS rows. */
void random_programs_set(random_programs *programs, request *req, uint64_t *random);

#endif

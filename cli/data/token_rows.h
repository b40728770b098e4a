/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of token ids, a row each, from the command line and from .npy files. Whatever is wrong with
 * one ends the program (options.h).
 */
#ifndef GUMBEL_CLI_TOKEN_ROWS_H
#define GUMBEL_CLI_TOKEN_ROWS_H

#include <stdint.h>

#include "gumbel/gumbel.h"

/* fail() unless `id` is below `vocab`, the number of tokens. */
void require_token(const char *field, int64_t id, int64_t vocab);

/* The lists of `rows` rows, of ids below `vocab`. `text` is "ID,ID,..", the same for every row, or
 * a .npy file of int32 [N] likewise or [rows, N], where a row ends before its first -1. NULL gives
 * no lists. Release them with token_rows_free(). */
gumbel_token_lists read_token_rows(const char *field, const char *text, int64_t rows,
                                   int64_t vocab);

/* "ID=VALUE,..", the same for every row, as lists with values: finite, or -inf. */
gumbel_token_lists read_value_rows(const char *field, const char *text, int64_t rows,
                                   int64_t vocab);

void token_rows_free(gumbel_token_lists *lists);

#endif

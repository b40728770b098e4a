/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of token ids, one a row, from the command line and from .npy files. Every error ends the
 * program (options.h).
 */
#ifndef GUMBEL_CLI_TOKEN_ROWS_H
#define GUMBEL_CLI_TOKEN_ROWS_H

#include <stdint.h>

#include "gumbel/gumbel.h"

/* fail() unless `id` is below `vocab`, the number of tokens. */
void require_token(const char *field, int64_t id, int64_t vocab);

/* Reads the lists of `rows` rows, of ids below `vocab`. `text` is "ID,ID,.." for every row, or a
 * .npy file of int32: [N] for every row, or [rows, N]; a row ends before its first -1. NULL: no
 * lists. Release them with token_rows_free(). */
gumbel_token_lists read_token_rows(const char *field, const char *text, int64_t rows,
                                   int64_t vocab);

/* Parses "ID=VALUE,.." for every row, as lists with values, finite or -inf. */
gumbel_token_lists read_value_rows(const char *field, const char *text, int64_t rows,
                                   int64_t vocab);

void token_rows_free(gumbel_token_lists *lists);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of token lists and histories.
 */
#ifndef GUMBEL_VALIDATE_LISTS_H
#define GUMBEL_VALIDATE_LISTS_H

#include "validate/validate_fields.h"

/* Copies all fields of a history for `batch` rows. */
gumbel_status gumbel_read_history(gumbel_history *into, const gumbel_history *history,
                                  int64_t batch, const char *name, gumbel_error *error);

/* Checks the pointers of lists; `takes_values`: lists must have values, else they may not. */
gumbel_status gumbel_check_lists(const gumbel_token_lists *lists, int takes_values,
                                 const char *name, gumbel_error *error);

/* Checks lists in host memory: offsets, ids, and values, which are finite or -inf. */
gumbel_status gumbel_check_host_lists(const gumbel_token_lists *lists, int64_t batch,
                                      const char *name, gumbel_error *error);

/* Checks the tokens of a call that appends to histories or rings, [B] rows at *stride, and makes
 * the stride explicit. `host`: the values of `counts` are in host memory. */
gumbel_status gumbel_read_tokens(const int32_t *tokens, int64_t *stride, const int32_t *counts,
                                 int64_t batch, int host, gumbel_error *error);

#endif

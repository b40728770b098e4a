/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of tables of token ids: heads over a subset of the vocabulary.
 */
#ifndef GUMBEL_VALIDATE_TOKEN_IDS_H
#define GUMBEL_VALIDATE_TOKEN_IDS_H

#include "core/problem.h"

/* Checks that a problem with sampling.token_ids has no field that the table does not support: a
 * field that names tokens of the vocabulary, given noise, a shard, a screen. Its features are set.
 */
gumbel_status gumbel_read_token_ids(const gumbel_problem *problem, gumbel_error *error);

/* Returns an error that names sampling.token_ids if the table is set, for calls without support. */
gumbel_status gumbel_refuse_token_ids(const gumbel_sampling *sampling, const char *reason,
                                      gumbel_error *error);

/* Checks the ids of a table in host memory. */
gumbel_status gumbel_check_host_token_ids(const gumbel_problem *problem, gumbel_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of rings of recent tokens and of the calls that use them.
 */
#ifndef GUMBEL_VALIDATE_RECENT_H
#define GUMBEL_VALIDATE_RECENT_H

#include "core/recent_row.h"

/* Copies and checks the rings of `rows` rows or slots, except their history. */
gumbel_status gumbel_read_ring(gumbel_recent *into, const gumbel_recent *recent, int64_t rows,
                               gumbel_error *error);

/* Reads a ring, its history and its window into a call whose batch and slots are set. */
gumbel_status gumbel_read_recent(gumbel_recent_call *call, const gumbel_recent *recent,
                                 gumbel_error *error);

/* Checks window lengths in host memory. */
gumbel_status gumbel_check_host_recent(const gumbel_recent_call *call, gumbel_error *error);

/* Reads the arguments of gumbel_make_lists() into a call whose batch and slots are set. */
gumbel_status gumbel_read_lists_call(gumbel_lists_call *call, const gumbel_list_rules *rules,
                                     const gumbel_recent *recent, const gumbel_row_lists *lists,
                                     gumbel_error *error);

/* Checks rules in host memory. */
gumbel_status gumbel_check_host_rules(const gumbel_lists_call *call, gumbel_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a row: its tokens of largest value, in the order of the truncation rules, larger
 * value first, then lower id. What a rule keeps is a head; where it lies within what is known of
 * one, a cut is certain.
 */
#ifndef GUMBEL_DIST_HEAD_H
#define GUMBEL_DIST_HEAD_H

#include "core/row.h"
#include "maths/row_head.h"

/* A token that a rank lists. */
typedef struct ranks_token {
    float y; /* before the temperature */
    int32_t id;
} ranks_token;

/* A token of a head. */
typedef gumbel_entry ranks_entry;

typedef struct ranks_leading {
    ranks_entry *at; /* [count] in order */
    int32_t count;
    int complete;   /* all tokens of the row that have a value are in it */
    ranks_entry end; /* else: behind this one the row is not known */
} ranks_leading;

/* How a row's y become values and z. */
typedef struct ranks_scale {
    float value, z; /* factors */
} ranks_scale;

ranks_scale ranks_row_scale(const gumbel_problem *whole, int64_t b);

/* List the `most` first tokens of y [count], whose first is token `first`, that have a value, in
 * any order. heap: [most] of scratch. *finite is how many have a z above -inf, *more whether there
 * are others than those listed; +inf is told in *flags. Returns how many are listed. */
int32_t ranks_select_leading(const float *y, int64_t count, int64_t first, ranks_scale scale,
                         int32_t most, ranks_entry *heap, ranks_token *list, int32_t *finite,
                         int32_t *more, uint32_t *flags);

/* A head by what ranks list: begun, each rank's tokens added, of which the first is token `from` of
 * all that are listed, and ended. *count begins as 0. Room for all of them is at head->at. */
void ranks_leading_begin(ranks_leading *head);
void ranks_leading_add(ranks_leading *head, int32_t *count, const ranks_token *tokens, int32_t listed,
                   int more, int32_t from, ranks_scale scale);
void ranks_leading_end(ranks_leading *head, int32_t count);

/* The mass of values y [count] that are not below `bound`, over the largest value of all ranks. */
gumbel_wide ranks_sum_masses(const float *y, int64_t count, float factor, float bound, float largest);

/* How many of a head's tokens `rules` keep; -1 where the head does not tell. `mass` is that of
 * gumbel_rules_need_mass(); those of the tokens are filled in. */
int32_t ranks_truncate_leading(const gumbel_rules *rules, ranks_leading *head, gumbel_wide mass);

/* Add the draws of row b from its first `kept` tokens to summaries [S], with the mass. */
void ranks_draw_leading(const gumbel_problem *whole, int64_t b, const ranks_leading *head, int32_t kept,
                    ranks_entry *room, gumbel_summary *summaries);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a row: its tokens of largest value, in the order of the truncation rules, larger
 * value first, then lower id. What a rule keeps is a head; where it lies within what is known of
 * one, a cut is certain.
 */
#ifndef GUMBEL_DIST_HEAD_H
#define GUMBEL_DIST_HEAD_H

#include "core/row.h"
#include "maths/leading_tokens.h"

/* A token that a rank lists. */
typedef struct dist_token {
    float y; /* before the temperature */
    int32_t id;
} dist_token;

/* A token of a head. */
typedef gumbel_entry dist_entry;

typedef struct dist_head {
    dist_entry *at; /* [count] in order */
    int32_t count;
    int complete;   /* all tokens of the row that have a value are in it */
    dist_entry end; /* else: behind this one the row is not known */
} dist_head;

/* How a row's y become values and z. */
typedef struct dist_scale {
    float value, z; /* factors */
} dist_scale;

dist_scale dist_scale_of(const gumbel_problem *whole, int64_t b);

/* List the `most` first tokens of y [count], whose first is token `first`, that have a value, in
 * any order. heap: [most] of scratch. *finite is how many have a z above -inf, *more whether there
 * are others than those listed; +inf is told in *flags. Returns how many are listed. */
int32_t dist_list_tokens(const float *y, int64_t count, int64_t first, dist_scale scale,
                         int32_t most, dist_entry *heap, dist_token *list, int32_t *finite,
                         int32_t *more, uint32_t *flags);

/* A head by what ranks list: begun, each rank's tokens added, of which the first is token `from` of
 * all that are listed, and ended. *count begins as 0. Room for all of them is at head->at. */
void dist_head_begin(dist_head *head);
void dist_head_add(dist_head *head, int32_t *count, const dist_token *tokens, int32_t listed,
                   int more, int32_t from, dist_scale scale);
void dist_head_end(dist_head *head, int32_t count);

/* The mass of values y [count] that are not below `bound`, over the largest value of all ranks. */
gumbel_wide dist_weigh(const float *y, int64_t count, float factor, float bound, float largest);

/* How many of a head's tokens `rules` keep; -1 where the head does not tell. `mass` is that of
 * gumbel_rules_need_mass(); those of the tokens are filled in. */
int32_t dist_cut_head(const gumbel_rules *rules, dist_head *head, gumbel_wide mass);

/* Add the draws of row b from its first `kept` tokens to summaries [S], with the mass. */
void dist_draw_head(const gumbel_problem *whole, int64_t b, const dist_head *head, int32_t kept,
                    dist_entry *room, gumbel_summary *summaries);

#endif

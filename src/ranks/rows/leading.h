/* SPDX-License-Identifier: Apache-2.0
 *
 * Leading tokens of a row, in the order of the truncation rules: larger value first, then lower id.
 * A kept set consists of leading tokens. Truncation is exact if the kept set ends within the
 * leading tokens that all ranks sent.
 */
#ifndef GUMBEL_RANKS_LEADING_H
#define GUMBEL_RANKS_LEADING_H

#include "core/row.h"
#include "maths/leading_tokens.h"

/* A token as a rank sends it. */
typedef struct ranks_token {
    float y; /* before the temperature */
    int32_t id;
} ranks_token;

typedef gumbel_entry ranks_entry;

typedef struct ranks_leading {
    ranks_entry *at; /* [count], sorted */
    int32_t count;
    int complete;    /* `at` holds all tokens of the row that have a value */
    ranks_entry end; /* if not complete: tokens after this one are unknown */
} ranks_leading;

/* Factors of a row: the truncation rules compare y * value; y * z is z. */
typedef struct ranks_scale {
    float value, z;
} ranks_scale;

ranks_scale ranks_row_scale(const gumbel_problem *whole, int64_t b);

/* Writes up to max_count leading tokens of y [count] to `list`, in any order, and returns their
 * number. `first` is the id of y[0]; heap: [max_count] scratch entries. *finite: the number of
 * tokens with z above -inf; *more: 1 if some of them are not in the list; *flags: gumbel_summary
 * flags, for +inf. */
int32_t ranks_select_leading(const float *y, int64_t count, int64_t first, ranks_scale scale,
                             int32_t max_count, ranks_entry *heap, ranks_token *list,
                             int32_t *finite, int32_t *more, uint32_t *flags);

/* Merge the tokens of all ranks: call begin, then add once for each rank, then end. leading->at has
 * room for all tokens; *count starts at 0. `from` is the index of the rank's first token in the
 * concatenation of all ranks' tokens. */
void ranks_leading_begin(ranks_leading *leading);
void ranks_leading_add(ranks_leading *leading, int32_t *count, const ranks_token *tokens,
                       int32_t listed, int more, int32_t from, ranks_scale scale);
void ranks_leading_end(ranks_leading *leading, int32_t count);

/* The mass of values y [count] that are at least `bound`, relative to the largest value of all
 * ranks. */
gumbel_wide ranks_sum_masses(const float *y, int64_t count, float factor, float bound,
                             float largest);

/* Returns how many of the leading tokens `rules` keep; -1 if the tokens do not determine it. `mass`
 * is the sum that gumbel_rules_need_mass() requires. Fills in the masses of the tokens. */
int32_t ranks_truncate_leading(const gumbel_rules *rules, ranks_leading *leading, gumbel_wide mass);

/* Adds the draws of row b from the first `kept` leading tokens to summaries [S], and their mass to
 * the first. */
void ranks_draw_leading(const gumbel_problem *whole, int64_t b, const ranks_leading *leading,
                        int32_t kept, ranks_entry *room, gumbel_summary *summaries);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a row: its tokens of largest value, in the order of the truncation rules, larger
 * value first, then lower id. What rules keep is a head; where it lies within what is known of one,
 * a cut is certain. Read by CPUs and GPUs.
 */
#ifndef GUMBEL_MATHS_LEADING_TOKENS_H
#define GUMBEL_MATHS_LEADING_TOKENS_H

#include "maths/truncation.h"

/* A token of a head: its value is what rules look at. */
typedef struct gumbel_entry {
    float value, z;
    int32_t id;
    int32_t from;  /* which of all tokens listed for the row */
    uint64_t mass; /* gumbel_token_mass() over the largest value, where a top_p cuts */
} gumbel_entry;

/* Whether a comes before b. */
GUMBEL_INLINE int gumbel_entry_before(const gumbel_entry *a, const gumbel_entry *b)
{
    return a->value != b->value ? a->value > b->value : a->id < b->id;
}

/* How many of `count` entries in order have a value above `bound`, or not below it: by halves. */
GUMBEL_INLINE int32_t gumbel_count_entries_above(const gumbel_entry *at, int32_t count, float bound)
{
    int32_t above = 0;
    while (count > 0) {
        int32_t half = count / 2, more = at[above + half].value > bound;
        above += more ? half + 1 : 0;
        count = more ? count - half - 1 : half;
    }
    return above;
}

GUMBEL_INLINE int32_t gumbel_count_entries_from(const gumbel_entry *at, int32_t count, float bound)
{
    int32_t from = 0;
    while (count > 0) {
        int32_t half = count / 2, more = at[from + half].value >= bound;
        from += more ? half + 1 : 0;
        count = more ? count - half - 1 : half;
    }
    return from;
}

/* How many tokens a cut keeps; -1 where it may keep others than the head's, which is `complete`
 * where no token is behind it. */
GUMBEL_INLINE int32_t gumbel_count_entries_kept(const gumbel_entry *at, int32_t count, int complete,
                                                gumbel_cutoff cut)
{
    int32_t above = gumbel_count_entries_above(at, count, cut.bound);
    int32_t from = gumbel_count_entries_from(at, count, cut.bound);
    if (cut.tied != GUMBEL_TIES_ALL_KEPT && above + cut.tied <= from)
        return (int32_t)(above + cut.tied);
    return complete || from < count ? from : -1;
}

/* Whether rules need the mass of more than a head, and of which values. */
GUMBEL_INLINE int gumbel_rules_need_mass(const gumbel_rules *r, float largest, float *bound)
{
    if (!(r->top_p < 1.0f) || (!r->joint && r->top_k > 0))
        return 0;
    *bound = gumbel_cutoff_before_top_p(r, gumbel_cutoff_before_top_k(r, largest)).bound;
    return 1;
}

/* The stricter of `cut` and top_p, where that ends within the head; else it cuts less. */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_of_entries_by_top_p(const gumbel_rules *r,
                                                              const gumbel_entry *at, int32_t count,
                                                              gumbel_wide mass, gumbel_cutoff cut)
{
    gumbel_wide needed = gumbel_nucleus_mass(r->top_p, mass), above = 0;
    for (int32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && at[end].value == at[i].value;)
            end++;
        gumbel_wide tied = (gumbel_wide)at[i].mass * (uint64_t)(end - i);
        if (at[i].mass > 0 && above + tied >= needed)
            return gumbel_stricter_cutoff(
                cut, gumbel_cutoff_by_top_p(r->exact, at[i].value, needed, above, at[i].mass));
        above += tied;
    }
    return cut;
}

/* How many of a head's tokens, one or more in order, the rules keep; -1 where it does not tell.
 * `mass` is that of gumbel_rules_need_mass(). */
GUMBEL_INLINE int32_t gumbel_truncate_entries(const gumbel_rules *r, const gumbel_entry *at,
                                              int32_t count, int complete, gumbel_wide mass)
{
    float largest = at[0].value, bound;
    gumbel_cutoff behind = gumbel_cutoff_before_top_k(r, largest);
    /* Where a head is shorter than top_k, what it tells is cut by others, or not known. */
    if (r->top_k > 0 && gumbel_count_entries_from(at, count, behind.bound) >= r->top_k) {
        float value = at[r->top_k - 1].value;
        behind = gumbel_cutoff_by_top_k(r, value, gumbel_count_entries_above(at, count, value));
    }
    gumbel_cutoff cut = gumbel_cutoff_without_top_p(r, behind, largest);
    if (r->top_p < 1.0f && !gumbel_rules_need_mass(r, largest, &bound)) {
        int32_t weighed = gumbel_count_entries_kept(at, count, complete, behind);
        if (weighed < 0)
            return -1;
        mass = 0;
        for (int32_t i = 0; i < weighed; i++)
            mass += at[i].mass;
    }
    if (r->top_p < 1.0f)
        cut = gumbel_cutoff_of_entries_by_top_p(r, at, count, mass, cut);
    return gumbel_count_entries_kept(at, count, complete, cut);
}

#endif

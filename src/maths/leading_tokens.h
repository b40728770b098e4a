/* SPDX-License-Identifier: Apache-2.0
 *
 * The leading tokens of a row: its largest values, sorted by larger value, then lower id. The kept
 * set of a truncation is a prefix of this order. The leading tokens determine the kept set if it
 * ends among them. CPUs and GPUs run this code.
 */
#ifndef GUMBEL_MATHS_LEADING_TOKENS_H
#define GUMBEL_MATHS_LEADING_TOKENS_H

#include "maths/truncation.h"

/* A leading token. Truncation rules compare `value`. */
typedef struct gumbel_entry {
    float value, z;
    int32_t id;
    int32_t from;  /* index in the row's unsorted list of candidates */
    uint64_t mass; /* gumbel_token_mass() relative to the largest value; set for top_p only */
} gumbel_entry;

/* Whether a comes before b. */
GUMBEL_INLINE int gumbel_entry_before(const gumbel_entry *a, const gumbel_entry *b)
{
    return a->value != b->value ? a->value > b->value : a->id < b->id;
}

/* Binary searches: how many of `count` sorted entries have a value > bound, or >= bound. */
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

/* The number of tokens that a cutoff keeps; -1 if it may keep tokens beyond these entries.
 * `complete`: the entries are all tokens of the row. */
GUMBEL_INLINE int32_t gumbel_count_entries_kept(const gumbel_entry *at, int32_t count, int complete,
                                                gumbel_cutoff cutoff)
{
    int32_t above = gumbel_count_entries_above(at, count, cutoff.bound);
    int32_t from = gumbel_count_entries_from(at, count, cutoff.bound);
    if (cutoff.tied != GUMBEL_TIES_ALL_KEPT && above + cutoff.tied <= from)
        return (int32_t)(above + cutoff.tied);
    return complete || from < count ? from : -1;
}

/* Whether top_p needs the mass of all values from *bound on, not of the entries alone. */
GUMBEL_INLINE int gumbel_rules_need_mass(const gumbel_rules *r, float largest, float *bound)
{
    if (!(r->top_p < 1.0f) || (!r->joint && r->top_k > 0))
        return 0;
    *bound = gumbel_cutoff_before_top_p(r, gumbel_cutoff_before_top_k(r, largest)).bound;
    return 1;
}

/* The stricter of `cutoff` and that of top_p, if the latter is within the entries; else `cutoff`.
 */
GUMBEL_INLINE gumbel_cutoff gumbel_cutoff_of_entries_by_top_p(const gumbel_rules *r,
                                                              const gumbel_entry *at, int32_t count,
                                                              gumbel_wide mass,
                                                              gumbel_cutoff cutoff)
{
    gumbel_wide needed = gumbel_nucleus_mass(r->top_p, mass), above = 0;
    for (int32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && at[end].value == at[i].value;)
            end++;
        gumbel_wide tied = (gumbel_wide)at[i].mass * (uint64_t)(end - i);
        if (at[i].mass > 0 && above + tied >= needed)
            return gumbel_stricter_cutoff(
                cutoff, gumbel_cutoff_by_top_p(r->exact, at[i].value, needed, above, at[i].mass));
        above += tied;
    }
    return cutoff;
}

/* How many of one or more sorted entries the rules keep; -1 if the entries do not determine it.
 * `mass` is the mass of gumbel_rules_need_mass(). */
GUMBEL_INLINE int32_t gumbel_truncate_entries(const gumbel_rules *r, const gumbel_entry *at,
                                              int32_t count, int complete, gumbel_wide mass)
{
    float largest = at[0].value, bound;
    gumbel_cutoff before_top_p = gumbel_cutoff_before_top_k(r, largest);
    /* If there are fewer entries than top_k, the kept set ends by another rule or is not known. */
    if (r->top_k > 0 && gumbel_count_entries_from(at, count, before_top_p.bound) >= r->top_k) {
        float value = at[r->top_k - 1].value;
        before_top_p =
            gumbel_cutoff_by_top_k(r, value, gumbel_count_entries_above(at, count, value));
    }
    gumbel_cutoff cutoff = gumbel_cutoff_without_top_p(r, before_top_p, largest);
    if (r->top_p < 1.0f && !gumbel_rules_need_mass(r, largest, &bound)) {
        int32_t summed = gumbel_count_entries_kept(at, count, complete, before_top_p);
        if (summed < 0)
            return -1;
        mass = 0;
        for (int32_t i = 0; i < summed; i++)
            mass += at[i].mass;
    }
    if (r->top_p < 1.0f)
        cutoff = gumbel_cutoff_of_entries_by_top_p(r, at, count, mass, cutoff);
    return gumbel_count_entries_kept(at, count, complete, cutoff);
}

#endif

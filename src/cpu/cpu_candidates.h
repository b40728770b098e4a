/* SPDX-License-Identifier: Apache-2.0
 *
 * The candidates of one draw by a screen (docs/maths.md, section 14): tokens whose upper bound of
 * the score reaches the best exact score so far.
 *
 * No token that may win is dropped. A full list is scored, highest bound first, until no remaining
 * bound reaches the best score; the remaining candidates cannot win, and the list is emptied.
 */
#ifndef GUMBEL_CPU_CANDIDATES_H
#define GUMBEL_CPU_CANDIDATES_H

#include "maths/summary.h"

typedef struct cpu_candidate {
    float upper; /* upper bound of the score z + g */
    float noise; /* g; 0 of a greedy row */
    int32_t token;
} cpu_candidate;

typedef struct cpu_candidates cpu_candidates;
struct cpu_candidates {
    gumbel_summary *best; /* of the tokens scored exactly */
    cpu_candidate *list;
    int32_t count, capacity; /* capacity >= 1 */
    int32_t scored;          /* tokens scored exactly so far */
    int32_t scored_limit;    /* beyond this the row becomes a fallback row */
    int greedy;
    float excess; /* last upper bound minus its exact score, to predict the next score */
    const void *context;
    int64_t row, thread;
    float (*score)(const cpu_candidates *candidates, int32_t token); /* the exact z */
};

/* Whether the row is a fallback row. */
static inline int cpu_has_given_up(const cpu_candidates *c) { return c->scored > c->scored_limit; }

static inline void cpu_give_up_row(cpu_candidates *c) { c->scored = c->scored_limit + 1; }

/* Scores a candidate exactly. A score above its upper bound, or NaN, shows that the weights changed
 * after the screen was made: the row becomes a fallback row, and the score is not used. */
static inline void cpu_score_candidate(cpu_candidates *c, cpu_candidate candidate)
{
    float z = c->score(c, candidate.token);
    float score = c->greedy ? z : z + candidate.noise;
    if (!(score <= candidate.upper)) {
        cpu_give_up_row(c);
        return;
    }
    c->scored++;
    c->excess = candidate.upper - score;
    gumbel_summary_offer(c->best, score, z, candidate.token);
}

/* Index of the candidate with the highest upper bound; -1 if none reaches `min_upper`. */
static inline int32_t cpu_find_highest_candidate(const cpu_candidates *c, float min_upper)
{
    int32_t at = -1;
    for (int32_t i = 0; i < c->count; i++)
        if (c->list[i].upper >= min_upper) {
            at = i;
            min_upper = c->list[i].upper;
        }
    return at;
}

static inline cpu_candidate cpu_take_candidate(cpu_candidates *c, int32_t at)
{
    cpu_candidate taken = c->list[at];
    c->list[at] = c->list[--c->count];
    return taken;
}

/* Scores all candidates that may still win, and empties the list. */
static inline void cpu_score_listed_candidates(cpu_candidates *c)
{
    for (int32_t at;
         !cpu_has_given_up(c) && (at = cpu_find_highest_candidate(c, c->best->best_score)) >= 0;)
        cpu_score_candidate(c, cpu_take_candidate(c, at));
    c->count = 0;
}

/* Lists a token whose bound reaches the best score, or scores it at once if its predicted score is
 * larger than the best, which raises the threshold for others. A bound that equals the best score
 * is listed, because ties go to the lower id. */
static inline void cpu_offer_candidate(cpu_candidates *c, float upper, float noise, int32_t token)
{
    cpu_candidate candidate = {upper, noise, token};
    if (!(upper >= c->best->best_score) || !(upper > -INFINITY) || cpu_has_given_up(c))
        return;
    if (upper - c->excess > c->best->best_score) {
        cpu_score_candidate(c, candidate);
        return;
    }
    if (c->count == c->capacity)
        cpu_score_listed_candidates(c);
    if (upper >= c->best->best_score)
        c->list[c->count++] = candidate;
}

#endif

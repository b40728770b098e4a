/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens that may win a draw from a screen (docs/maths.md, section 14): a list of upper scores, and
 * the best of the exact ones so far, below which nothing is listed.
 *
 * A list never drops what may win: one that is full is settled, which scores in order of the upper
 * score until nothing that is left reaches the best, and so leaves it empty.
 */
#ifndef GUMBEL_CPU_CANDIDATES_H
#define GUMBEL_CPU_CANDIDATES_H

#include "maths/summary.h"

typedef struct cpu_candidate {
    float upper; /* z + g of the end of its interval */
    float noise; /* g; 0 of a greedy row */
    int32_t token;
} cpu_candidate;

typedef struct cpu_candidates cpu_candidates;
struct cpu_candidates {
    gumbel_summary *best; /* of what is scored exactly */
    cpu_candidate *list;
    int32_t count, most; /* most >= 1 */
    int32_t scored;      /* exactly, so far */
    int32_t scored_most; /* the row is better served by the full pass if there are more */
    int greedy;
    float spread; /* how far the last upper score was above the exact one: a guess, no bound */
    const void *context;
    int64_t row, thread;
    float (*score)(const cpu_candidates *list, int32_t token); /* the exact z */
};

/* Whether the row is to be left to the full pass. */
static inline int cpu_candidates_given_up(const cpu_candidates *c)
{
    return c->scored > c->scored_most;
}

/* Leave the row to the full pass. */
static inline void cpu_candidates_give_up(cpu_candidates *c) { c->scored = c->scored_most + 1; }

/* Score a candidate exactly. A score above its upper bound, or NaN, shows weights that changed
 * after the screen was made: the row is left to the full pass, and the score is not offered. */
static inline void cpu_candidates_score(cpu_candidates *c, cpu_candidate candidate)
{
    float z = c->score(c, candidate.token);
    float score = c->greedy ? z : z + candidate.noise;
    if (!(score <= candidate.upper)) {
        cpu_candidates_give_up(c);
        return;
    }
    c->scored++;
    c->spread = candidate.upper - score;
    gumbel_summary_offer(c->best, score, z, candidate.token);
}

/* The place of the candidate with the highest upper score; -1 where none reaches `least`. */
static inline int32_t cpu_candidates_highest(const cpu_candidates *c, float least)
{
    int32_t at = -1;
    for (int32_t i = 0; i < c->count; i++)
        if (c->list[i].upper >= least) {
            at = i;
            least = c->list[i].upper;
        }
    return at;
}

static inline cpu_candidate cpu_candidates_take(cpu_candidates *c, int32_t at)
{
    cpu_candidate taken = c->list[at];
    c->list[at] = c->list[--c->count];
    return taken;
}

/* Score what may still win; the list is then empty. */
static inline void cpu_candidates_settle(cpu_candidates *c)
{
    for (int32_t at;
         !cpu_candidates_given_up(c) && (at = cpu_candidates_highest(c, c->best->best_score)) >= 0;)
        cpu_candidates_score(c, cpu_candidates_take(c, at));
    c->count = 0;
}

/* One that is as likely as not above the best is scored at once, which raises the bar for others.
 * An upper score that equals the best stays: a tie goes to the lower id. */
static inline void cpu_candidates_offer(cpu_candidates *c, float upper, float noise, int32_t token)
{
    cpu_candidate candidate = {upper, noise, token};
    if (!(upper >= c->best->best_score) || !(upper > -INFINITY) || cpu_candidates_given_up(c))
        return;
    if (upper - c->spread > c->best->best_score) {
        cpu_candidates_score(c, candidate);
        return;
    }
    if (c->count == c->most)
        cpu_candidates_settle(c);
    if (upper >= c->best->best_score)
        c->list[c->count++] = candidate;
}

#endif

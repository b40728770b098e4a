/* SPDX-License-Identifier: Apache-2.0
 *
 * The candidates of one draw by a screen (docs/maths.md, section 14): tokens whose upper bound of
 * the score reaches the best exact score so far.
 *
 * No token that may win is dropped. A full list is scored, highest bound first, until no remaining
 * bound reaches the best score; the remaining candidates cannot win, and the list is emptied.
 *
 * Bounds of a token may be coarse at first. They are refined if they still reach the best score
 * when the list is full, or at the end: most tokens are dropped before.
 */
#ifndef GUMBEL_CPU_CANDIDATES_H
#define GUMBEL_CPU_CANDIDATES_H

#include "maths/summary.h"

#include <stdatomic.h>

typedef struct cpu_candidate {
    float upper; /* upper bound of the score z + g */
    float noise; /* g; 0 of a greedy row */
    uint32_t token : 31;
    uint32_t is_coarse : 1;
    int32_t sum; /* of a coarse bound: the product of the high nibbles */
} cpu_candidate;

typedef struct cpu_candidates cpu_candidates;
struct cpu_candidates {
    gumbel_summary *best;      /* of the tokens scored exactly */
    _Atomic float *best_score; /* of all threads so far */
    const int32_t *sums; /* coarse bounds: the products of token tile_token and those after it */
    int64_t tile_token;
    cpu_candidate *list;
    int32_t count, capacity; /* capacity >= 1 */
    int32_t scored;          /* tokens scored exactly so far */
    int32_t scored_limit;    /* beyond this the row becomes a fallback row */
    int32_t refined;         /* coarse bounds that were replaced so far */
    int greedy;
    int is_coarse; /* bounds that are offered are coarse */
    float excess;  /* last bound as offered minus its exact score, to predict the next score */
    const void *context;
    int64_t row, thread;
    float (*score)(const cpu_candidates *candidates, int32_t token); /* the exact z */
    /* A finer bound of z, in place of a coarse one. */
    float (*refine)(const cpu_candidates *candidates, int32_t token, int32_t sum);
    void (*prefetch)(const cpu_candidates *candidates, int32_t token); /* the memory it reads */
};

/* A token with an upper bound below this one cannot win. */
static inline float cpu_get_min_upper(const cpu_candidates *c)
{
    float all = atomic_load_explicit(c->best_score, memory_order_relaxed);
    return all > c->best->best_score ? all : c->best->best_score;
}

static inline void cpu_raise_best_score(cpu_candidates *c, float score)
{
    float seen = atomic_load_explicit(c->best_score, memory_order_relaxed);
    while (score > seen &&
           !atomic_compare_exchange_weak_explicit(c->best_score, &seen, score, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

/* Whether the row is a fallback row. */
static inline int cpu_has_given_up(const cpu_candidates *c) { return c->scored > c->scored_limit; }

static inline void cpu_give_up_row(cpu_candidates *c) { c->scored = c->scored_limit + 1; }

/* Scores a candidate exactly. A score above its upper bound, or NaN, shows that the weights changed
 * after the screen was made: the row becomes a fallback row, and the score is not used. */
static inline void cpu_score_candidate(cpu_candidates *c, cpu_candidate candidate)
{
    float z = c->score(c, (int32_t)candidate.token);
    float score = c->greedy ? z : z + candidate.noise;
    if (!(score <= candidate.upper)) {
        cpu_give_up_row(c);
        return;
    }
    c->scored++;
    if (candidate.is_coarse == (uint32_t)c->is_coarse)
        c->excess = candidate.upper - score;
    gumbel_summary_offer(c->best, score, z, (int32_t)candidate.token);
    cpu_raise_best_score(c, score);
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

/* Replaces a coarse bound by a fine one. */
static inline void cpu_refine_candidate(cpu_candidates *c, cpu_candidate *candidate)
{
    float z = c->refine(c, (int32_t)candidate->token, candidate->sum);
    candidate->upper = fminf(candidate->upper, c->greedy ? z : z + candidate->noise);
    candidate->is_coarse = 0;
    c->refined++;
}

/* Drops candidates that cannot win any more; first replaces coarse bounds if `refine`. */
static inline void cpu_filter_candidates(cpu_candidates *c, int refine)
{
    float min_upper = cpu_get_min_upper(c);
    int32_t kept = 0;
    for (int32_t i = 0; i < c->count; i++) {
        cpu_candidate candidate = c->list[i];
        if (refine && i + 2 < c->count && c->list[i + 2].upper >= min_upper)
            c->prefetch(c, (int32_t)c->list[i + 2].token);
        if (refine && candidate.is_coarse && candidate.upper >= min_upper)
            cpu_refine_candidate(c, &candidate);
        if (candidate.upper >= min_upper)
            c->list[kept++] = candidate;
    }
    c->count = kept;
}

/* Scores all candidates that may still win, and empties the list. */
static inline void cpu_score_listed_candidates(cpu_candidates *c)
{
    for (int32_t at;
         !cpu_has_given_up(c) && (at = cpu_find_highest_candidate(c, cpu_get_min_upper(c))) >= 0;)
        cpu_score_candidate(c, cpu_take_candidate(c, at));
    c->count = 0;
}

/* Makes room in a full list. Half of a list of coarse bounds is left to them, so that a token's
 * bound is replaced late, when the best score is high. */
static inline void cpu_make_room(cpu_candidates *c)
{
    for (int refine = 0; refine < 2 && c->refine; refine++) {
        cpu_filter_candidates(c, refine);
        if (c->count <= c->capacity / 2)
            return;
    }
    cpu_score_listed_candidates(c);
}

/* Lists a token whose bound reaches the best score, or scores it at once if its predicted score is
 * larger than the best, which raises the threshold for others. A bound that equals the best score
 * is listed, because ties go to the lower id. */
static inline void cpu_offer_candidate(cpu_candidates *c, float upper, float noise, int32_t token)
{
    cpu_candidate candidate = {upper, noise, (uint32_t)token, (uint32_t)c->is_coarse, 0};
    float min_upper = cpu_get_min_upper(c);
    if (!(upper >= min_upper) || !(upper > -INFINITY) || cpu_has_given_up(c))
        return;
    if (upper - c->excess > min_upper) {
        cpu_score_candidate(c, candidate);
        return;
    }
    if (c->is_coarse)
        candidate.sum = c->sums[token - c->tile_token];
    if (c->count == c->capacity)
        cpu_make_room(c);
    if (upper >= cpu_get_min_upper(c))
        c->list[c->count++] = candidate;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Which drafts of a chain are accepted by the rules that weigh both models' probabilities, and what
 * is drawn behind the last of them (docs/maths.md, section 12). A chain of one request is decided
 * from its root on, and each node's draw made what is emitted behind it; the walk (draft_walk.h)
 * then follows them.
 *
 * One text for a thread of a CPU and for all threads of a CTA, which go through it side by side and
 * see the same numbers; lane 0 alone writes. Whoever includes this defines the two functions that
 * read whole rows.
 */
#ifndef GUMBEL_DRAFTS_RULES_H
#define GUMBEL_DRAFTS_RULES_H

#include "core/fail.h"
#include "core/row.h"
#include "drafts/proposal.h"

#ifdef __CUDACC__
#define GUMBEL_RULE_CODE static __device__
#else
#define GUMBEL_RULE_CODE static inline
#endif

/* A chain on its way. */
typedef struct gumbel_chain {
    const gumbel_proposal *by;
    gumbel_device *device; /* where memory is the host's */
    const gumbel_verification *v;
    int64_t r, first;
    gumbel_node *nodes;
    int32_t count, lane;
} gumbel_chain;

/* A token that may be drawn behind the last accepted draft. */
typedef struct gumbel_contender {
    int32_t id; /* -1: none yet */
    float score, logprob;
} gumbel_contender;

/* The sum of max(r p - q, 0) behind node j. */
GUMBEL_RULE_CODE gumbel_status gumbel_sum_residual(const gumbel_chain *c, int32_t j, double r,
                                                   double *sum, gumbel_error *error);

/* The best token behind node j of a race by max(r p - q, 0), whose noise is that of `stream`. */
GUMBEL_RULE_CODE gumbel_status gumbel_race_residual(const gumbel_chain *c, int32_t j, float r,
                                                    gumbel_stream stream, gumbel_contender *best,
                                                    gumbel_error *error);

/* --------------------------------------------------------------------------------- nodes ---- */

/* Noise of row j must not be met again by a block that was cut short: its domain names the row. */
GUMBEL_RULE_CODE gumbel_stream gumbel_chain_stream(const gumbel_chain *c, gumbel_domain domain,
                                                   int32_t j)
{
    gumbel_stream stream = gumbel_problem_row(&c->by->target, c->first + j).stream;
    stream.domain = (uint32_t)domain;
    if (c->v->draft.rule == GUMBEL_RULE_BLOCK)
        stream.domain |= (uint32_t)j << 8;
    return stream;
}

/* A standard exponential that decides about the draft x behind node j. */
GUMBEL_RULE_CODE float gumbel_chain_coin(const gumbel_chain *c, int32_t j, int32_t x)
{
    return gumbel_exp(
        -gumbel_of_token(gumbel_chain_stream(c, GUMBEL_DOMAIN_ACCEPT, j), (uint32_t)x));
}

/* The draft behind node j; -1: none. */
GUMBEL_RULE_CODE int32_t gumbel_chain_draft(const gumbel_chain *c, int32_t j)
{
    return j + 1 < c->count ? c->nodes[j + 1].drafted : -1;
}

/* The k-th scored log-probability of row j by either model; the first is the draft's. */
GUMBEL_RULE_CODE float gumbel_chain_target(const gumbel_chain *c, int32_t j, int32_t k)
{
    return c->by->target_logprobs[(c->first + j) * (1 + c->by->listed) + k];
}

GUMBEL_RULE_CODE float gumbel_chain_draft_model(const gumbel_chain *c, int32_t j, int32_t k)
{
    return c->by->draft_logprobs[(c->first + j) * (1 + c->by->listed) + k];
}

/* Whether q of node j is known, and both models draw at random: else the rules are the coupled one,
 * since one of the two has a single token. */
GUMBEL_RULE_CODE int gumbel_chain_weighs(const gumbel_chain *c, int32_t j)
{
    int64_t b = c->first + j;
    return gumbel_chain_draft(c, j) >= 0 && !isnan(gumbel_chain_draft_model(c, j, 0)) &&
           !gumbel_problem_row(&c->by->target, b).greedy &&
           !gumbel_problem_row(&c->by->draft, b).greedy;
}

/* Have a token be what is emitted behind node j. */
GUMBEL_RULE_CODE void gumbel_chain_emit(const gumbel_chain *c, int32_t j, int32_t id, float score,
                                        float logprob)
{
    const gumbel_verification *v = c->v;
    if (c->lane != 0)
        return;
    c->nodes[j].drawn = id;
    c->nodes[j].stops = gumbel_list_has(&v->draft.stop, c->r, id);
    if (v->logprobs)
        v->logprobs[c->first + j] = logprob;
    if (v->scores)
        v->scores[c->first + j] = score;
}

GUMBEL_RULE_CODE void gumbel_chain_accept(const gumbel_chain *c, int32_t j)
{
    gumbel_chain_emit(c, j, gumbel_chain_draft(c, j), NAN, gumbel_chain_target(c, j, 0));
}

/* ------------------------------------------------------------------------------ residual ---- */

/* Log-probability of a token whose z is known. */
GUMBEL_RULE_CODE float gumbel_logprob_of(float z, float lse)
{
    return z > -INFINITY ? gumbel_logprob(z, lse) : -INFINITY;
}

/* Offer a token whose score is s in a race by p: by max(r p - q, 0) it is ln(r - q / p) more. */
GUMBEL_RULE_CODE void gumbel_offer(gumbel_contender *best, int32_t id, float s, float p, float q,
                                   float r)
{
    float share = r - gumbel_exp(q - p), score;
    if (!(p > -INFINITY) || !(share > 0.0f))
        return;
    score = s + gumbel_log(share);
    if (score > best->score || (score == best->score && id < best->id)) {
        best->id = id;
        best->score = score;
        best->logprob = p;
    }
}

/* Offer the i-th token of two rows whose z are known, by the noise of a stream. */
GUMBEL_RULE_CODE void gumbel_offer_at(gumbel_contender *best, int64_t i, int64_t first_token,
                                      const float *target, float target_lse, const float *draft,
                                      float draft_lse, float r, gumbel_stream stream)
{
    uint32_t token = (uint32_t)(first_token + i);
    float p = gumbel_logprob_of(target[i], target_lse);
    float q = gumbel_logprob_of(draft[i], draft_lse);
    if (p > -INFINITY && r * gumbel_exp(p) > gumbel_exp(q))
        gumbel_offer(best, (int32_t)token, target[i] + gumbel_of_token(stream, token), p, q, r);
}

/* max(r p - q, 0) of a token whose z are known. */
GUMBEL_RULE_CODE double gumbel_residual_of(float target, float target_lse, float draft,
                                           float draft_lse, double r)
{
    double p = (double)gumbel_exp(gumbel_logprob_of(target, target_lse));
    double q = (double)gumbel_exp(gumbel_logprob_of(draft, draft_lse));
    return r * p > q ? r * p - q : 0;
}

/* The best of those that the target's draw has listed. Whether no other token can be better. */
GUMBEL_RULE_CODE int gumbel_settle_by_list(const gumbel_chain *c, int32_t j, gumbel_contender *best)
{
    const gumbel_output *drawn = &c->v->drawn;
    int32_t listed = c->by->listed;
    int64_t at = (c->first + j) * listed;
    for (int32_t k = 0; k < listed; k++) {
        if (drawn->best_ids[at + k] < 0)
            return best->id >= 0;
        gumbel_offer(best, drawn->best_ids[at + k], drawn->best_scores[at + k],
                     gumbel_chain_target(c, j, 1 + k), gumbel_chain_draft_model(c, j, 1 + k), 1.0f);
    }
    return listed > 0 && best->id >= 0 && best->score > drawn->best_scores[at + listed - 1];
}

/* Draw behind node j by max(r p - q, 0). Where rounding has left nothing of that, p and q are the
 * same, and the target's draw stands. */
GUMBEL_RULE_CODE gumbel_status gumbel_draw_residual(const gumbel_chain *c, int32_t j, float r,
                                                    gumbel_error *error)
{
    gumbel_contender best = {-1, -INFINITY, NAN};
    if (!gumbel_settle_by_list(c, j, &best)) {
        gumbel_stream stream = gumbel_problem_row(&c->by->target, c->first + j).stream;
        if (c->v->draft.rule == GUMBEL_RULE_BLOCK)
            stream = gumbel_chain_stream(c, GUMBEL_DOMAIN_RESIDUAL, j);
        GUMBEL_FORWARD(gumbel_race_residual(c, j, r, stream, &best, error));
    }
    if (best.id >= 0)
        gumbel_chain_emit(c, j, best.id, best.score, best.logprob);
    if (j + 1 < c->count && c->lane == 0)
        c->nodes[j + 1].drafted = -1; /* what is drawn accepts no draft */
    return GUMBEL_OK;
}

/* ----------------------------------------------------------------------------- the rules ---- */

/* Each draft with chance min(1, p / q): where -ln u >= ln q - ln p. */
GUMBEL_RULE_CODE gumbel_status gumbel_reject(const gumbel_chain *c, gumbel_error *error)
{
    for (int32_t j = 0; j < c->count && c->nodes[j].status == GUMBEL_ROW_OK; j++) {
        int32_t x = gumbel_chain_draft(c, j);
        if (gumbel_chain_weighs(c, j)) {
            float p = gumbel_chain_target(c, j, 0), q = gumbel_chain_draft_model(c, j, 0);
            if (!(p > -INFINITY) || gumbel_chain_coin(c, j, x) < q - p)
                return gumbel_draw_residual(c, j, 1.0f, error);
            gumbel_chain_accept(c, j);
        } else if (x < 0 || c->nodes[j].drawn != x) {
            return GUMBEL_OK;
        }
    }
    return GUMBEL_OK;
}

/* p / q of the draft behind node j, or a number so large that no other matters. */
GUMBEL_RULE_CODE double gumbel_chain_ratio(const gumbel_chain *c, int32_t j)
{
    float p = gumbel_chain_target(c, j, 0);
    return p > -INFINITY ? (double)gumbel_exp(fminf(p - gumbel_chain_draft_model(c, j, 0), 80.0f))
                         : 0;
}

/* How many drafts are weighed: up to a row that says nothing of the next one. */
GUMBEL_RULE_CODE int32_t gumbel_chain_weighed(const gumbel_chain *c)
{
    int32_t j = 0;
    while (j < c->count && c->nodes[j].status == GUMBEL_ROW_OK && gumbel_chain_weighs(c, j))
        j++;
    return j;
}

/* Algorithm 2 of arXiv 2403.10444: the longest prefix that its own coin accepts. */
GUMBEL_RULE_CODE gumbel_status gumbel_accept_block(const gumbel_chain *c, gumbel_error *error)
{
    int32_t drafts = gumbel_chain_weighed(c), taken = 0;
    double r = 1, rest = 1;
    for (int32_t j = 0; j < drafts; j++) {
        double chance, sum;
        r = fmin(1.0, r * gumbel_chain_ratio(c, j));
        chance = r;
        if (j + 1 < drafts) {
            GUMBEL_FORWARD(gumbel_sum_residual(c, j + 1, r, &sum, error));
            chance = sum + 1 - r > 0 ? sum / (sum + 1 - r) : 1;
        }
        float coin = gumbel_chain_coin(c, j, gumbel_chain_draft(c, j));
        if (chance > 0 && (double)gumbel_exp(-coin) <= chance) {
            taken = j + 1;
            rest = r;
        }
    }
    for (int32_t j = 0; j < taken; j++)
        gumbel_chain_accept(c, j);
    return taken < drafts ? gumbel_draw_residual(c, taken, (float)rest, error) : GUMBEL_OK;
}

/* Decide a chain by its rule, which is not COUPLED. */
GUMBEL_RULE_CODE gumbel_status gumbel_decide_chain(const gumbel_chain *c, gumbel_error *error)
{
    return c->v->draft.rule == GUMBEL_RULE_BLOCK ? gumbel_accept_block(c, error)
                                                 : gumbel_reject(c, error);
}

#endif

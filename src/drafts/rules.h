/* SPDX-License-Identifier: Apache-2.0
 *
 * Which drafts of a chain are accepted by the rules that weigh probabilities, and what is drawn
 * behind the last of them (docs/maths.md, section 12), one text for a CPU and a GPU.
 *
 * Each node is weighed by itself: nothing of it depends on what was drawn. Then the chain is judged
 * from its root on, and each node has a verdict. What the verdicts ask for is drawn after that, by
 * whoever includes this, and made what is emitted behind the nodes; the walk (draft_walk.h) then
 * follows them.
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

/* A chain of one request. */
typedef struct gumbel_chain {
    const gumbel_proposal *by;
    const gumbel_verification *v;
    int64_t r, first; /* the request, and its root's row */
    int32_t count;    /* nodes */
} gumbel_chain;

/* ------------------------------------------------------------------------------- weighing ---- */

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

/* That of a draw behind node j by max(r p - q, 0). */
GUMBEL_RULE_CODE gumbel_stream gumbel_residual_stream(const gumbel_chain *c, int32_t j)
{
    if (c->v->draft.rule == GUMBEL_RULE_BLOCK)
        return gumbel_chain_stream(c, GUMBEL_DOMAIN_RESIDUAL, j);
    return gumbel_problem_row(&c->by->target, c->first + j).stream;
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

/* Node j, without a verdict. It is weighed where there is a draft behind it, q of that is known,
 * and both models draw at random: else the rules are the coupled one, since one of the two has a
 * single token. The coin is a standard exponential that decides about the draft. */
GUMBEL_RULE_CODE gumbel_rule_node gumbel_evaluate_node(const gumbel_chain *c, int32_t j)
{
    const int64_t b = c->first + j;
    gumbel_rule_node w = {NAN, NAN, 0.0f, 0.0f, -1, GUMBEL_ROW_UNUSED, 0, GUMBEL_VERDICT_NONE};
    w.drafted = gumbel_draft_token_after(c->v, b);
    w.status = c->v->drawn.status[b];
    if (w.drafted < 0)
        return w;
    w.target = gumbel_chain_target(c, j, 0);
    w.draft = gumbel_chain_draft_model(c, j, 0);
    w.weighs = !isnan(w.draft) && !gumbel_problem_row(&c->by->target, b).greedy &&
               !gumbel_problem_row(&c->by->draft, b).greedy;
    if (w.weighs)
        w.coin = gumbel_exp(-gumbel_noise_of_token(gumbel_chain_stream(c, GUMBEL_DOMAIN_ACCEPT, j),
                                                   (uint32_t)w.drafted));
    return w;
}

/* ------------------------------------------------------------------------------- judging ---- */

/* From node j on each emits its draw, as long as there may be a draft that holds it. */
GUMBEL_RULE_CODE void gumbel_judge_coupled(gumbel_rule_node *nodes, int32_t j, int32_t count)
{
    for (; j < count; j++) {
        nodes[j].verdict = GUMBEL_VERDICT_DRAW;
        if (nodes[j].status != GUMBEL_ROW_OK || nodes[j].drafted < 0)
            return;
    }
}

/* Each draft with chance min(1, p / q): where -ln u >= ln q - ln p. */
GUMBEL_RULE_CODE void gumbel_judge_rejection(gumbel_rule_node *nodes, int32_t count)
{
    for (int32_t j = 0; j < count; j++) {
        gumbel_rule_node *w = &nodes[j];
        if (w->status != GUMBEL_ROW_OK || !w->weighs) {
            w->verdict = GUMBEL_VERDICT_DRAW;
            if (w->status != GUMBEL_ROW_OK || w->drafted < 0)
                return;
        } else if (w->target > -INFINITY && !(w->coin < w->draft - w->target)) {
            w->verdict = GUMBEL_VERDICT_DRAFT;
        } else {
            w->verdict = GUMBEL_VERDICT_RESIDUAL;
            w->rest = 1.0f;
            return;
        }
    }
}

/* p / q of the draft behind a node, or a number so large that no other matters. */
GUMBEL_RULE_CODE float gumbel_probability_ratio(const gumbel_rule_node *w)
{
    float log_ratio = fminf(w->target - w->draft, 80.0f);
    if (!(w->target > -INFINITY))
        return 0.0f;
    return log_ratio > 0.0f ? 1.0f / gumbel_exp(-log_ratio) : gumbel_exp(log_ratio);
}

/* The r of each draft that a block weighs, which are those up to a row that says nothing of the
 * next one: how many. The row behind each but the last then has a sum by it. */
GUMBEL_RULE_CODE int32_t gumbel_evaluate_block(gumbel_rule_node *nodes, int32_t count)
{
    float r = 1.0f;
    int32_t j = 0;
    for (; j < count && nodes[j].status == GUMBEL_ROW_OK && nodes[j].weighs; j++) {
        r = fminf(1.0f, r * gumbel_probability_ratio(&nodes[j]));
        nodes[j].rest = r;
    }
    return j;
}

/* Algorithm 2 of arXiv 2403.10444: the longest prefix that its own coin accepts. sums[j]: that of
 * row j by the r of the draft before it. */
GUMBEL_RULE_CODE void gumbel_judge_block(gumbel_rule_node *nodes, int32_t count, int32_t drafts,
                                         const uint64_t *sums)
{
    int32_t taken = 0;
    for (int32_t j = 0; j < drafts; j++) {
        double r = (double)nodes[j].rest, chance = r;
        if (j + 1 < drafts) {
            double sum = (double)sums[j + 1] / GUMBEL_RESIDUAL_UNITS;
            chance = sum + 1 - r > 0 ? sum / (sum + 1 - r) : 1;
        }
        if (chance > 0 && (double)gumbel_exp(-nodes[j].coin) <= chance)
            taken = j + 1;
    }
    for (int32_t j = 0; j < taken; j++)
        nodes[j].verdict = GUMBEL_VERDICT_DRAFT;
    if (taken < drafts) {
        nodes[taken].rest = taken > 0 ? nodes[taken - 1].rest : 1.0f;
        nodes[taken].verdict = GUMBEL_VERDICT_RESIDUAL;
    } else {
        gumbel_judge_coupled(nodes, drafts, count);
    }
}

/* ------------------------------------------------------------------------------ residual ---- */

/* Log-probability of a token whose z is known. */
GUMBEL_RULE_CODE float gumbel_logprob_of(float z, float lse)
{
    return z > -INFINITY ? gumbel_logprob(z, lse) : -INFINITY;
}

/* max(r p - q, 0) of a token whose z are known, in units that add up alike in any order. */
GUMBEL_RULE_CODE uint64_t gumbel_residual_of(float target, float target_lse, float draft,
                                             float draft_lse, float r)
{
    float p = r * gumbel_exp(gumbel_logprob_of(target, target_lse));
    float q = gumbel_exp(gumbel_logprob_of(draft, draft_lse));
    return p > q ? (uint64_t)((p - q) * GUMBEL_RESIDUAL_UNITS) : 0;
}

/* A token that may be drawn. */
typedef struct gumbel_contender {
    int32_t id; /* -1: none yet */
    float score, logprob;
} gumbel_contender;

GUMBEL_RULE_CODE gumbel_contender gumbel_contender_none(void)
{
    gumbel_contender none = {-1, -INFINITY, NAN};
    return none;
}

/* The larger score wins; a tie goes to the lower id. */
GUMBEL_RULE_CODE void gumbel_contender_offer(gumbel_contender *best, int32_t id, float score,
                                             float logprob)
{
    if (score > best->score || (score == best->score && id < best->id)) {
        best->id = id;
        best->score = score;
        best->logprob = logprob;
    }
}

/* The better of two. */
GUMBEL_RULE_CODE void gumbel_contender_merge(gumbel_contender *best, const gumbel_contender *other)
{
    if (other->id >= 0)
        gumbel_contender_offer(best, other->id, other->score, other->logprob);
}

/* Offer a token whose score is s in a race by p: by max(r p - q, 0) it is ln(r - q / p) more. */
GUMBEL_RULE_CODE void gumbel_contender_offer_residual(gumbel_contender *best, int32_t id, float s,
                                                      float p, float q, float r)
{
    if (!(p > -INFINITY) || !(q < p))
        return;
    float share = r - gumbel_exp(q - p);
    if (share > 0.0f)
        gumbel_contender_offer(best, id, s + gumbel_log(share), p);
}

/* ----------------------------------------------------------------------- what is emitted ---- */

/* Have a token be what is emitted behind node j. */
GUMBEL_RULE_CODE void gumbel_chain_emit(const gumbel_chain *c, gumbel_node *nodes, int32_t j,
                                        const gumbel_contender *token)
{
    const gumbel_verification *v = c->v;
    nodes[j].drawn = token->id;
    nodes[j].stops = gumbel_list_contains(&v->draft.stop, c->r, token->id);
    if (v->logprobs)
        v->logprobs[c->first + j] = token->logprob;
    if (v->scores)
        v->scores[c->first + j] = token->score;
}

/* The draft behind node j: it is no draw, and has no score. */
GUMBEL_RULE_CODE void gumbel_chain_accept(const gumbel_chain *c, gumbel_node *nodes, int32_t j)
{
    const gumbel_rule_node *w = &c->by->weighed[c->first + j];
    gumbel_contender token = {w->drafted, NAN, w->target};
    gumbel_chain_emit(c, nodes, j, &token);
}

/* What was drawn behind node j by max(r p - q, 0), which accepts no draft. */
GUMBEL_RULE_CODE void gumbel_chain_replace(const gumbel_chain *c, gumbel_node *nodes, int32_t j,
                                           const gumbel_contender *token)
{
    gumbel_chain_emit(c, nodes, j, token);
    if (j + 1 < c->count)
        nodes[j + 1].drafted = -1;
}

#endif

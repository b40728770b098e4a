/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules REJECTION and BLOCK: which drafts of a chain they accept, and the draw after the last
 * accepted one (docs/maths.md, section 12). One code for CPU and GPU.
 *
 * First each node is evaluated independently of all draws. Then the verdicts on the nodes are
 * determined, from the root of the chain on. The file that includes this header draws from the
 * residual where the verdict is RESIDUAL, and sets the token that each node emits; the walk
 * (draft_walk.h) follows these tokens.
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
    const gumbel_proposal *proposal;
    const gumbel_verification *v;
    int64_t r, first; /* the request, and the row of its root */
    int32_t count;    /* nodes */
} gumbel_chain;

/* ----------------------------------------------------------------------------- evaluation ---- */

/* The stream of row j in a domain of the rules. After BLOCK rejects a draft, the next block
 * evaluates the same positions at other rows; its domain includes the row, so that no noise is used
 * twice. */
GUMBEL_RULE_CODE gumbel_stream gumbel_chain_stream(const gumbel_chain *c, gumbel_domain domain,
                                                   int32_t j)
{
    gumbel_stream stream = gumbel_problem_row(&c->proposal->target, c->first + j).stream;
    stream.domain = (uint32_t)domain;
    if (c->v->draft.rule == GUMBEL_RULE_BLOCK)
        stream.domain |= (uint32_t)j << 8;
    return stream;
}

/* The stream of a draw from max(r p - q, 0) after node j. */
GUMBEL_RULE_CODE gumbel_stream gumbel_residual_stream(const gumbel_chain *c, int32_t j)
{
    if (c->v->draft.rule == GUMBEL_RULE_BLOCK)
        return gumbel_chain_stream(c, GUMBEL_DOMAIN_RESIDUAL, j);
    return gumbel_problem_row(&c->proposal->target, c->first + j).stream;
}

/* The k-th scored log-probability of row j under either model; k = 0 is the draft. */
GUMBEL_RULE_CODE float gumbel_chain_target(const gumbel_chain *c, int32_t j, int32_t k)
{
    return c->proposal->target_logprobs[(c->first + j) * (1 + c->proposal->num_best) + k];
}

GUMBEL_RULE_CODE float gumbel_chain_draft_model(const gumbel_chain *c, int32_t j, int32_t k)
{
    return c->proposal->draft_logprobs[(c->first + j) * (1 + c->proposal->num_best) + k];
}

/* Evaluates node j, without a verdict. The ratio p / q decides if there is a draft after the node,
 * its q is known, and neither model is greedy; with a greedy model the rules equal the coupled one.
 * The coin is a standard exponential, compared with the ratio. */
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
    w.by_ratio = !isnan(w.draft) && !gumbel_problem_row(&c->proposal->target, b).greedy &&
                 !gumbel_problem_row(&c->proposal->draft, b).greedy;
    if (w.by_ratio)
        w.coin = gumbel_exp(-gumbel_noise_of_token(gumbel_chain_stream(c, GUMBEL_DOMAIN_ACCEPT, j),
                                                   (uint32_t)w.drafted));
    return w;
}

/* ------------------------------------------------------------------------------ verdicts ---- */

/* The coupled rule: from node j on, nodes emit their draws, until no draft can equal the draw. */
GUMBEL_RULE_CODE void gumbel_determine_coupled_verdicts(gumbel_rule_node *nodes, int32_t j,
                                                        int32_t count)
{
    for (; j < count; j++) {
        nodes[j].verdict = GUMBEL_VERDICT_DRAW;
        if (nodes[j].status != GUMBEL_ROW_OK || nodes[j].drafted < 0)
            return;
    }
}

/* The rule REJECTION: accepts each draft with probability min(1, p / q), that is if
 * -ln u >= ln q - ln p. */
GUMBEL_RULE_CODE void gumbel_determine_rejection_verdicts(gumbel_rule_node *nodes, int32_t count)
{
    for (int32_t j = 0; j < count; j++) {
        gumbel_rule_node *w = &nodes[j];
        if (w->status != GUMBEL_ROW_OK || !w->by_ratio) {
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

/* p / q of the draft after a node, at most e^80. */
GUMBEL_RULE_CODE float gumbel_probability_ratio(const gumbel_rule_node *w)
{
    float log_ratio = fminf(w->target - w->draft, 80.0f);
    if (!(w->target > -INFINITY))
        return 0.0f;
    return log_ratio > 0.0f ? 1.0f / gumbel_exp(-log_ratio) : gumbel_exp(log_ratio);
}

/* Computes r of each draft that BLOCK compares, up to the first node that the ratio does not
 * decide; returns their number. The row after each of them, except the last, needs a residual sum
 * with r. */
GUMBEL_RULE_CODE int32_t gumbel_evaluate_block(gumbel_rule_node *nodes, int32_t count)
{
    float r = 1.0f;
    int32_t j = 0;
    for (; j < count && nodes[j].status == GUMBEL_ROW_OK && nodes[j].by_ratio; j++) {
        r = fminf(1.0f, r * gumbel_probability_ratio(&nodes[j]));
        nodes[j].rest = r;
    }
    return j;
}

/* The rule BLOCK (algorithm 2 of arXiv 2403.10444): accepts the longest prefix that its coin
 * accepts. sums[j] is the residual sum of row j with the r of the draft before it. */
GUMBEL_RULE_CODE void gumbel_determine_block_verdicts(gumbel_rule_node *nodes, int32_t count,
                                                      int32_t drafts, const uint64_t *sums)
{
    int32_t accepted = 0;
    for (int32_t j = 0; j < drafts; j++) {
        double r = (double)nodes[j].rest, chance = r;
        if (j + 1 < drafts) {
            double sum = (double)sums[j + 1] / GUMBEL_RESIDUAL_UNITS;
            chance = sum + 1 - r > 0 ? sum / (sum + 1 - r) : 1;
        }
        if (chance > 0 && (double)gumbel_exp(-nodes[j].coin) <= chance)
            accepted = j + 1;
    }
    for (int32_t j = 0; j < accepted; j++)
        nodes[j].verdict = GUMBEL_VERDICT_DRAFT;
    if (accepted < drafts) {
        nodes[accepted].rest = accepted > 0 ? nodes[accepted - 1].rest : 1.0f;
        nodes[accepted].verdict = GUMBEL_VERDICT_RESIDUAL;
    } else {
        gumbel_determine_coupled_verdicts(nodes, drafts, count);
    }
}

/* ------------------------------------------------------------------------------ residual ---- */

/* The log-probability of a token with transformed logit z. */
GUMBEL_RULE_CODE float gumbel_logprob_of(float z, float lse)
{
    return z > -INFINITY ? gumbel_logprob(z, lse) : -INFINITY;
}

/* max(r p - q, 0) of a token from both models' z, in integer units. */
GUMBEL_RULE_CODE uint64_t gumbel_residual_of(float target, float target_lse, float draft,
                                             float draft_lse, float r)
{
    float p = r * gumbel_exp(gumbel_logprob_of(target, target_lse));
    float q = gumbel_exp(gumbel_logprob_of(draft, draft_lse));
    return p > q ? (uint64_t)((p - q) * GUMBEL_RESIDUAL_UNITS) : 0;
}

/* The best token so far. */
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

/* Updates `best` with another best token. */
GUMBEL_RULE_CODE void gumbel_contender_merge(gumbel_contender *best, const gumbel_contender *other)
{
    if (other->id >= 0)
        gumbel_contender_offer(best, other->id, other->score, other->logprob);
}

/* Updates `best` with a token whose score under p is s; under max(r p - q, 0) it is ln(r - q / p)
 * larger. */
GUMBEL_RULE_CODE void gumbel_contender_offer_residual(gumbel_contender *best, int32_t id, float s,
                                                      float p, float q, float r)
{
    if (!(p > -INFINITY) || !(q < p))
        return;
    float factor = r - gumbel_exp(q - p);
    if (factor > 0.0f)
        gumbel_contender_offer(best, id, s + gumbel_log(factor), p);
}

/* ------------------------------------------------------------------------ emitted tokens ---- */

/* Sets the token that node j emits. */
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

/* Emits the draft after node j, which has no score as it was not drawn. */
GUMBEL_RULE_CODE void gumbel_chain_accept(const gumbel_chain *c, gumbel_node *nodes, int32_t j)
{
    const gumbel_rule_node *w = &c->proposal->rule_nodes[c->first + j];
    gumbel_contender token = {w->drafted, NAN, w->target};
    gumbel_chain_emit(c, nodes, j, &token);
}

/* Emits a token drawn from max(r p - q, 0) after node j, which accepts no draft. */
GUMBEL_RULE_CODE void gumbel_chain_replace(const gumbel_chain *c, gumbel_node *nodes, int32_t j,
                                           const gumbel_contender *token)
{
    gumbel_chain_emit(c, nodes, j, token);
    if (j + 1 < c->count)
        nodes[j + 1].drafted = -1;
}

#endif

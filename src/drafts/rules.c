/* SPDX-License-Identifier: Apache-2.0
 *
 * Which drafts of a chain are accepted by the rules that weigh both models' probabilities, and what
 * is drawn behind the last of them. A chain of one request is decided from its root on, and each
 * node's draw made what is emitted behind it; the walk (draft_walk.h) then follows them.
 */
#include "core/fail.h"
#include "core/row.h"
#include "drafts/proposal.h"

/* A chain on its way. */
typedef struct chain {
    const gumbel_proposal *by;
    gumbel_device *device;
    const gumbel_verification *v;
    int64_t r, first;
    gumbel_node *nodes;
    int32_t count;
} chain;

/* A token that may be drawn behind the last accepted draft. */
typedef struct contender {
    int32_t id; /* -1: none yet */
    float score, logprob;
} contender;

/* --------------------------------------------------------------------------------- nodes ---- */

/* Noise of row j must not be met again by a block that was cut short: its domain names the row. */
static uint32_t domain_of(const chain *c, gumbel_domain domain, int32_t j)
{
    return (uint32_t)domain |
           (c->v->draft.rule == GUMBEL_RULE_BLOCK ? (uint32_t)j << 8 : UINT32_C(0));
}

static gumbel_stream stream_of(const chain *c, gumbel_domain domain, int32_t j)
{
    gumbel_stream stream = gumbel_problem_row(&c->by->target, c->first + j).stream;
    stream.domain = domain_of(c, domain, j);
    return stream;
}

/* A standard exponential that decides about the draft x behind node j. */
static float coin_of(const chain *c, int32_t j, int32_t x)
{
    return gumbel_exp(-gumbel_of_token(stream_of(c, GUMBEL_DOMAIN_ACCEPT, j), (uint32_t)x));
}

/* The draft behind node j; -1: none. */
static int32_t draft_behind(const chain *c, int32_t j)
{
    return j + 1 < c->count ? c->nodes[j + 1].drafted : -1;
}

static float of_target(const chain *c, int32_t j, int32_t k)
{
    return c->by->target_logprobs[(c->first + j) * (1 + c->by->listed) + k];
}

static float of_draft(const chain *c, int32_t j, int32_t k)
{
    return c->by->draft_logprobs[(c->first + j) * (1 + c->by->listed) + k];
}

/* Whether q of node j is known, and both models draw at random: else the rules are the coupled one,
 * since one of the two has a single token. */
static int is_weighed(const chain *c, int32_t j)
{
    int64_t b = c->first + j;
    return draft_behind(c, j) >= 0 && !isnan(of_draft(c, j, 0)) &&
           !gumbel_problem_row(&c->by->target, b).greedy &&
           !gumbel_problem_row(&c->by->draft, b).greedy;
}

/* Have a token be what is emitted behind node j. */
static void emit_behind(const chain *c, int32_t j, int32_t id, float score, float logprob)
{
    const gumbel_verification *v = c->v;
    c->nodes[j].drawn = id;
    c->nodes[j].stops = gumbel_list_has(&v->draft.stop, c->r, id);
    if (v->logprobs)
        v->logprobs[c->first + j] = logprob;
    if (v->scores)
        v->scores[c->first + j] = score;
}

static void accept_behind(const chain *c, int32_t j)
{
    emit_behind(c, j, draft_behind(c, j), NAN, of_target(c, j, 0));
}

/* ------------------------------------------------------------------------------ residual ---- */

/* Offer a token whose score is s in a race by p: by max(r p - q, 0) it is ln(r - q / p) more. */
static void offer(contender *best, int32_t id, float s, float p, float q, float r)
{
    float share = r - gumbel_exp(q - p), score;
    if (!(p > -INFINITY) || !(share > 0.0f))
        return;
    score = s + gumbel_log(share);
    if (score > best->score || (score == best->score && id < best->id))
        *best = (contender){id, score, p};
}

/* The best of those that the target's draw has listed. Whether no other token can be better. */
static int settle_by_list(const chain *c, int32_t j, contender *best)
{
    const gumbel_output *drawn = &c->v->drawn;
    int32_t listed = c->by->listed;
    int64_t at = (c->first + j) * listed;
    for (int32_t k = 0; k < listed; k++) {
        if (drawn->best_ids[at + k] < 0)
            return best->id >= 0;
        offer(best, drawn->best_ids[at + k], drawn->best_scores[at + k], of_target(c, j, 1 + k),
              of_draft(c, j, 1 + k), 1.0f);
    }
    return listed > 0 && best->id >= 0 && best->score > drawn->best_scores[at + listed - 1];
}

/* Read both rows of node j. */
static gumbel_status read_rows(const chain *c, int32_t j, gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    GUMBEL_FORWARD(
        gumbel_proposal_read(by, c->device, &by->target, c->first + j, by->target_row, error));
    return gumbel_proposal_read(by, c->device, &by->draft, c->first + j, by->draft_row, error);
}

/* Log-probability of the i-th token of a row that was read. */
static float logprob_at(const float *row, float lse, int64_t i)
{
    return row[i] > -INFINITY ? gumbel_logprob(row[i], lse) : -INFINITY;
}

/* The best of all tokens, whose rows are read, by the noise of a stream. */
static contender race_all(const chain *c, int32_t j, float r, gumbel_stream stream)
{
    const gumbel_proposal *by = c->by;
    contender best = {-1, -INFINITY, NAN};
    for (int64_t i = 0; i < by->target.vocab; i++) {
        uint32_t token = (uint32_t)(by->target.first_token + i);
        float p = logprob_at(by->target_row, by->target_lse[c->first + j], i);
        float q = logprob_at(by->draft_row, by->draft_lse[c->first + j], i);
        if (p > -INFINITY && r * gumbel_exp(p) > gumbel_exp(q))
            offer(&best, (int32_t)token, by->target_row[i] + gumbel_of_token(stream, token), p, q,
                  r);
    }
    return best;
}

/* Draw behind node j by max(r p - q, 0). Where rounding has left nothing of that, p and q are the
 * same, and the target's draw stands. */
static gumbel_status draw_residual(const chain *c, int32_t j, float r, gumbel_error *error)
{
    contender best = {-1, -INFINITY, NAN};
    if (!settle_by_list(c, j, &best)) {
        int block = c->v->draft.rule == GUMBEL_RULE_BLOCK;
        gumbel_stream stream = gumbel_problem_row(&c->by->target, c->first + j).stream;
        if (block)
            stream = stream_of(c, GUMBEL_DOMAIN_RESIDUAL, j);
        GUMBEL_FORWARD(read_rows(c, j, error));
        best = race_all(c, j, r, stream);
    }
    if (best.id >= 0)
        emit_behind(c, j, best.id, best.score, best.logprob);
    if (j + 1 < c->count)
        c->nodes[j + 1].drafted = -1; /* what is drawn accepts no draft */
    return GUMBEL_OK;
}

/* ----------------------------------------------------------------------------- the rules ---- */

/* Each draft with chance min(1, p / q): where -ln u >= ln q - ln p. */
static gumbel_status reject(const chain *c, gumbel_error *error)
{
    for (int32_t j = 0; j < c->count && c->nodes[j].status == GUMBEL_ROW_OK; j++) {
        int32_t x = draft_behind(c, j);
        if (is_weighed(c, j)) {
            float p = of_target(c, j, 0), q = of_draft(c, j, 0);
            if (!(p > -INFINITY) || coin_of(c, j, x) < q - p)
                return draw_residual(c, j, 1.0f, error);
            accept_behind(c, j);
        } else if (x < 0 || c->nodes[j].drawn != x) {
            return GUMBEL_OK;
        }
    }
    return GUMBEL_OK;
}

/* The sum of max(r p - q, 0) behind node j. */
static gumbel_status sum_residual(const chain *c, int32_t j, double r, double *sum,
                                  gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    int64_t b = c->first + j;
    GUMBEL_FORWARD(read_rows(c, j, error));
    *sum = 0;
    for (int64_t i = 0; i < by->target.vocab; i++) {
        double p = (double)gumbel_exp(logprob_at(by->target_row, by->target_lse[b], i));
        double q = (double)gumbel_exp(logprob_at(by->draft_row, by->draft_lse[b], i));
        *sum += r * p > q ? r * p - q : 0;
    }
    return GUMBEL_OK;
}

/* p / q of the draft behind node j, or a number so large that no other matters. */
static double ratio_at(const chain *c, int32_t j)
{
    float p = of_target(c, j, 0);
    return p > -INFINITY ? (double)gumbel_exp(fminf(p - of_draft(c, j, 0), 80.0f)) : 0;
}

/* How many drafts are weighed: up to a row that says nothing of the next one. */
static int32_t weighed_drafts(const chain *c)
{
    int32_t j = 0;
    while (j < c->count && c->nodes[j].status == GUMBEL_ROW_OK && is_weighed(c, j))
        j++;
    return j;
}

/* Algorithm 2 of arXiv 2403.10444: the longest prefix that its own coin accepts. */
static gumbel_status accept_block(const chain *c, gumbel_error *error)
{
    int32_t drafts = weighed_drafts(c), taken = 0;
    double r = 1, rest = 1;
    for (int32_t j = 0; j < drafts; j++) {
        double chance, sum;
        r = fmin(1, r * ratio_at(c, j));
        chance = r;
        if (j + 1 < drafts) {
            GUMBEL_FORWARD(sum_residual(c, j + 1, r, &sum, error));
            chance = sum + 1 - r > 0 ? sum / (sum + 1 - r) : 1;
        }
        if (chance > 0 && (double)gumbel_exp(-coin_of(c, j, draft_behind(c, j))) <= chance) {
            taken = j + 1;
            rest = r;
        }
    }
    for (int32_t j = 0; j < taken; j++)
        accept_behind(c, j);
    return taken < drafts ? draw_residual(c, taken, (float)rest, error) : GUMBEL_OK;
}

gumbel_status gumbel_proposal_decide(const gumbel_proposal *by, gumbel_device *device,
                                     const gumbel_verification *v, int64_t r, int64_t first,
                                     gumbel_node *nodes, int32_t count, gumbel_error *error)
{
    const chain c = {by, device, v, r, first, nodes, count};
    GUMBEL_ASSERT(v->draft.rule != GUMBEL_RULE_COUPLED && !v->draft.parents);
    return v->draft.rule == GUMBEL_RULE_BLOCK ? accept_block(&c, error) : reject(&c, error);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of rules.h on the host, which reads whole rows on demand.
 */
#include "drafts/rules.h"

/* Reads the rows of both models for node j. */
static gumbel_status read_rows(const gumbel_chain *c, gumbel_device *device, int32_t j,
                               gumbel_error *error)
{
    const gumbel_proposal *proposal = c->proposal;
    GUMBEL_FORWARD(gumbel_proposal_read(proposal, device, &proposal->target, c->first + j,
                                        proposal->target_rows, error));
    return gumbel_proposal_read(proposal, device, &proposal->draft, c->first + j,
                                proposal->draft_rows, error);
}

/* Sums max(r p - q, 0) over row j. */
static gumbel_status sum_residual(const gumbel_chain *c, gumbel_device *device, int32_t j, float r,
                                  uint64_t *sum, gumbel_error *error)
{
    const gumbel_proposal *proposal = c->proposal;
    int64_t b = c->first + j;
    GUMBEL_FORWARD(read_rows(c, device, j, error));
    *sum = 0;
    for (int64_t i = 0; i < proposal->target.vocab; i++)
        *sum += gumbel_residual_of(proposal->target_rows[i], proposal->target_lse[b],
                                   proposal->draft_rows[i], proposal->draft_lse[b], r);
    return GUMBEL_OK;
}

static gumbel_status decide_block(const gumbel_chain *c, gumbel_device *device,
                                  gumbel_rule_node *nodes, gumbel_error *error)
{
    uint64_t *sums = c->proposal->sums + c->first;
    int32_t drafts = gumbel_evaluate_block(nodes, c->count);
    for (int32_t j = 1; j < drafts; j++)
        GUMBEL_FORWARD(sum_residual(c, device, j, nodes[j - 1].rest, &sums[j], error));
    gumbel_determine_block_verdicts(nodes, c->count, drafts, sums);
    return GUMBEL_OK;
}

/* Finds the residual argmax among the target's best scores; returns 1 if no other token can be
 * better. */
static int find_argmax_in_best(const gumbel_chain *c, int32_t j, gumbel_contender *best)
{
    const gumbel_output *drawn = &c->v->drawn;
    int32_t num_best = c->proposal->num_best;
    int64_t at = (c->first + j) * num_best;
    for (int32_t k = 0; k < num_best; k++) {
        if (drawn->best_ids[at + k] < 0)
            return best->id >= 0;
        gumbel_contender_offer_residual(best, drawn->best_ids[at + k], drawn->best_scores[at + k],
                                        gumbel_chain_target(c, j, 1 + k),
                                        gumbel_chain_draft_model(c, j, 1 + k), 1.0f);
    }
    return num_best > 0 && best->id >= 0 && best->score > drawn->best_scores[at + num_best - 1];
}

/* Finds the residual argmax among all tokens. */
static gumbel_status find_argmax_in_row(const gumbel_chain *c, gumbel_device *device, int32_t j,
                                        float r, gumbel_contender *best, gumbel_error *error)
{
    const gumbel_proposal *proposal = c->proposal;
    const int64_t b = c->first + j;
    const gumbel_stream stream = gumbel_residual_stream(c, j);
    GUMBEL_FORWARD(read_rows(c, device, j, error));
    for (int64_t i = 0; i < proposal->target.vocab; i++) {
        uint32_t token = (uint32_t)(proposal->target.first_token + i);
        float p = gumbel_logprob_of(proposal->target_rows[i], proposal->target_lse[b]);
        float q = gumbel_logprob_of(proposal->draft_rows[i], proposal->draft_lse[b]);
        if (q < p)
            gumbel_contender_offer_residual(
                best, (int32_t)token,
                proposal->target_rows[i] + gumbel_noise_of_token(stream, token), p, q, r);
    }
    return GUMBEL_OK;
}

/* Draws the token after node j from max(r p - q, 0). If that rounds to 0 for all tokens, p equals
 * q, and the target's draw is emitted. */
static gumbel_status draw_residual(const gumbel_chain *c, gumbel_device *device, gumbel_node *nodes,
                                   int32_t j, float r, gumbel_error *error)
{
    gumbel_contender best = gumbel_contender_none();
    if (!find_argmax_in_best(c, j, &best)) {
        best = gumbel_contender_none();
        GUMBEL_FORWARD(find_argmax_in_row(c, device, j, r, &best, error));
    }
    if (best.id < 0) {
        int64_t b = c->first + j;
        best = (gumbel_contender){nodes[j].drawn, c->v->scores ? c->v->scores[b] : NAN,
                                  c->v->logprobs ? c->v->logprobs[b] : NAN};
    }
    gumbel_chain_replace(c, nodes, j, &best);
    return GUMBEL_OK;
}

gumbel_status gumbel_proposal_apply_rule(const gumbel_proposal *proposal, gumbel_device *device,
                                         const gumbel_verification *v, int64_t r, int64_t first,
                                         gumbel_node *nodes, int32_t count, gumbel_error *error)
{
    const gumbel_chain c = {proposal, v, r, first, count};
    gumbel_rule_node *rule_nodes = proposal->rule_nodes + first;
    GUMBEL_ASSERT(v->draft.rule != GUMBEL_RULE_COUPLED && !v->draft.parents);
    for (int32_t j = 0; j < count; j++)
        rule_nodes[j] = gumbel_evaluate_node(&c, j);
    if (v->draft.rule == GUMBEL_RULE_BLOCK)
        GUMBEL_FORWARD(decide_block(&c, device, rule_nodes, error));
    else
        gumbel_determine_rejection_verdicts(rule_nodes, count);
    for (int32_t j = 0; j < count && rule_nodes[j].verdict != GUMBEL_VERDICT_NONE; j++) {
        if (rule_nodes[j].verdict == GUMBEL_VERDICT_RESIDUAL)
            return draw_residual(&c, device, nodes, j, rule_nodes[j].rest, error);
        if (rule_nodes[j].verdict == GUMBEL_VERDICT_DRAFT)
            gumbel_chain_accept(&c, nodes, j);
        else if (nodes[j].drawn != rule_nodes[j].drafted)
            return GUMBEL_OK; /* the walk ends here */
    }
    return GUMBEL_OK;
}

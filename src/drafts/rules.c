/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of rules.h where memory is the host's: a row that is read whole is made when it is
 * asked for.
 */
#include "drafts/rules.h"

/* Read both rows of node j. */
static gumbel_status read_rows(const gumbel_chain *c, gumbel_device *device, int32_t j,
                               gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    GUMBEL_FORWARD(
        gumbel_proposal_read(by, device, &by->target, c->first + j, by->target_rows, error));
    return gumbel_proposal_read(by, device, &by->draft, c->first + j, by->draft_rows, error);
}

/* The sum of max(r p - q, 0) of row j. */
static gumbel_status sum_residual(const gumbel_chain *c, gumbel_device *device, int32_t j, float r,
                                  uint64_t *sum, gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    int64_t b = c->first + j;
    GUMBEL_FORWARD(read_rows(c, device, j, error));
    *sum = 0;
    for (int64_t i = 0; i < by->target.vocab; i++)
        *sum += gumbel_residual_of(by->target_rows[i], by->target_lse[b], by->draft_rows[i],
                                   by->draft_lse[b], r);
    return GUMBEL_OK;
}

static gumbel_status judge_block(const gumbel_chain *c, gumbel_device *device,
                                 gumbel_rule_node *nodes, gumbel_error *error)
{
    uint64_t *sums = c->by->sums + c->first;
    int32_t drafts = gumbel_evaluate_block(nodes, c->count);
    for (int32_t j = 1; j < drafts; j++)
        GUMBEL_FORWARD(sum_residual(c, device, j, nodes[j - 1].rest, &sums[j], error));
    gumbel_judge_block(nodes, c->count, drafts, sums);
    return GUMBEL_OK;
}

/* The best of those that the target's draw has listed. Whether no other token can be better. */
static int settle_by_list(const gumbel_chain *c, int32_t j, gumbel_contender *best)
{
    const gumbel_output *drawn = &c->v->drawn;
    int32_t listed = c->by->listed;
    int64_t at = (c->first + j) * listed;
    for (int32_t k = 0; k < listed; k++) {
        if (drawn->best_ids[at + k] < 0)
            return best->id >= 0;
        gumbel_contender_offer_residual(best, drawn->best_ids[at + k], drawn->best_scores[at + k],
                                        gumbel_chain_target(c, j, 1 + k),
                                        gumbel_chain_draft_model(c, j, 1 + k), 1.0f);
    }
    return listed > 0 && best->id >= 0 && best->score > drawn->best_scores[at + listed - 1];
}

/* The best of all. */
static gumbel_status race_residual(const gumbel_chain *c, gumbel_device *device, int32_t j, float r,
                                   gumbel_contender *best, gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    const int64_t b = c->first + j;
    const gumbel_stream stream = gumbel_residual_stream(c, j);
    GUMBEL_FORWARD(read_rows(c, device, j, error));
    for (int64_t i = 0; i < by->target.vocab; i++) {
        uint32_t token = (uint32_t)(by->target.first_token + i);
        float p = gumbel_logprob_of(by->target_rows[i], by->target_lse[b]);
        float q = gumbel_logprob_of(by->draft_rows[i], by->draft_lse[b]);
        if (q < p)
            gumbel_contender_offer_residual(
                best, (int32_t)token, by->target_rows[i] + gumbel_noise_of_token(stream, token), p,
                q, r);
    }
    return GUMBEL_OK;
}

/* Draw behind node j by max(r p - q, 0). Where rounding has left nothing of that, p and q are the
 * same, and the target's draw stands. */
static gumbel_status draw_residual(const gumbel_chain *c, gumbel_device *device, gumbel_node *nodes,
                                   int32_t j, float r, gumbel_error *error)
{
    gumbel_contender best = gumbel_contender_none();
    if (!settle_by_list(c, j, &best)) {
        best = gumbel_contender_none();
        GUMBEL_FORWARD(race_residual(c, device, j, r, &best, error));
    }
    if (best.id < 0) {
        int64_t b = c->first + j;
        best = (gumbel_contender){nodes[j].drawn, c->v->scores ? c->v->scores[b] : NAN,
                                  c->v->logprobs ? c->v->logprobs[b] : NAN};
    }
    gumbel_chain_replace(c, nodes, j, &best);
    return GUMBEL_OK;
}

gumbel_status gumbel_proposal_apply_rule(const gumbel_proposal *by, gumbel_device *device,
                                         const gumbel_verification *v, int64_t r, int64_t first,
                                         gumbel_node *nodes, int32_t count, gumbel_error *error)
{
    const gumbel_chain c = {by, v, r, first, count};
    gumbel_rule_node *weighed = by->weighed + first;
    GUMBEL_ASSERT(v->draft.rule != GUMBEL_RULE_COUPLED && !v->draft.parents);
    for (int32_t j = 0; j < count; j++)
        weighed[j] = gumbel_evaluate_node(&c, j);
    if (v->draft.rule == GUMBEL_RULE_BLOCK)
        GUMBEL_FORWARD(judge_block(&c, device, weighed, error));
    else
        gumbel_judge_rejection(weighed, count);
    for (int32_t j = 0; j < count && weighed[j].verdict != GUMBEL_VERDICT_NONE; j++) {
        if (weighed[j].verdict == GUMBEL_VERDICT_RESIDUAL)
            return draw_residual(&c, device, nodes, j, weighed[j].rest, error);
        if (weighed[j].verdict == GUMBEL_VERDICT_DRAFT)
            gumbel_chain_accept(&c, nodes, j);
        else if (nodes[j].drawn != weighed[j].drafted)
            return GUMBEL_OK; /* the walk ends here */
    }
    return GUMBEL_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of rules.h where memory is the host's: a row that is read whole is made when it is
 * asked for.
 */
#include "drafts/rules.h"

/* Read both rows of node j. */
static gumbel_status read_rows(const gumbel_chain *c, int32_t j, gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    GUMBEL_FORWARD(
        gumbel_proposal_read(by, c->device, &by->target, c->first + j, by->target_rows, error));
    return gumbel_proposal_read(by, c->device, &by->draft, c->first + j, by->draft_rows, error);
}

static inline gumbel_status gumbel_sum_residual(const gumbel_chain *c, int32_t j, double r,
                                                double *sum, gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    int64_t b = c->first + j;
    GUMBEL_FORWARD(read_rows(c, j, error));
    *sum = 0;
    for (int64_t i = 0; i < by->target.vocab; i++)
        *sum += gumbel_residual_of(by->target_rows[i], by->target_lse[b], by->draft_rows[i],
                                   by->draft_lse[b], r);
    return GUMBEL_OK;
}

static inline gumbel_status gumbel_race_residual(const gumbel_chain *c, int32_t j, float r,
                                                 gumbel_stream stream, gumbel_contender *best,
                                                 gumbel_error *error)
{
    const gumbel_proposal *by = c->by;
    int64_t b = c->first + j;
    GUMBEL_FORWARD(read_rows(c, j, error));
    *best = (gumbel_contender){-1, -INFINITY, NAN};
    for (int64_t i = 0; i < by->target.vocab; i++)
        gumbel_offer_at(best, i, by->target.first_token, by->target_rows, by->target_lse[b],
                        by->draft_rows, by->draft_lse[b], r, stream);
    return GUMBEL_OK;
}

gumbel_status gumbel_proposal_decide(const gumbel_proposal *by, gumbel_device *device,
                                     const gumbel_verification *v, int64_t r, int64_t first,
                                     gumbel_node *nodes, int32_t count, gumbel_error *error)
{
    const gumbel_chain c = {by, device, v, r, first, nodes, count, 0};
    GUMBEL_ASSERT(v->draft.rule != GUMBEL_RULE_COUPLED && !v->draft.parents);
    return gumbel_decide_chain(&c, error);
}

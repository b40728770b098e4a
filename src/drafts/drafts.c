/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/draft_walk.h"

#include "core/fail.h"
#include "core/output.h"
#include "drafts/proposal.h"

void gumbel_drafts_expand(const gumbel_verification *v)
{
    GUMBEL_ASSERT(v->draft.requests > 0 && v->draft.max_nodes >= 1);
    GUMBEL_ASSERT(v->draft.max_nodes <= GUMBEL_NODES_MAX);
    GUMBEL_ASSERT(v->of_row.slot && v->of_row.position && v->of_row.request);
    GUMBEL_ASSERT(!v->of_row.path_ids == !v->of_row.path_offsets);
    if (v->of_row.path_offsets)
        v->of_row.path_offsets[0] = 0;
    for (int64_t b = 0; b < v->rows; b++)
        gumbel_draft_expand_row(v, b);
}

/* Reads the drawn nodes of request r, and applies the acceptance rule to them. */
static gumbel_status read_nodes(const gumbel_verification *v, const gumbel_proposal *proposal,
                                gumbel_device *device, int64_t r, gumbel_span span,
                                gumbel_node *nodes, gumbel_error *error)
{
    GUMBEL_ASSERT(span.sound && span.first + span.count <= v->rows);
    GUMBEL_ASSERT(span.count <= v->draft.max_nodes);
    for (int32_t j = 0; j < span.count; j++)
        nodes[j] = gumbel_read_drawn_node(v, r, span.first, j);
    return proposal ? gumbel_proposal_apply_rule(proposal, device, v, r, span.first, nodes,
                                                 span.count, error)
                    : GUMBEL_OK;
}

/* Writes the results of request r. */
static void write_request(const gumbel_verification *v, int64_t r, const gumbel_walk_result *w)
{
    GUMBEL_ASSERT(w->emitted >= 0 && w->emitted <= v->draft.max_nodes);
    GUMBEL_ASSERT(w->last_row >= -1 && w->last_row < v->rows);
    GUMBEL_ASSERT((w->emitted > 0) == (w->last_row >= 0));
    gumbel_draft_write_end(v, r, w, 0, 1);
    gumbel_draft_advance(v, r, w->emitted);
    if (v->verified.histogram && gumbel_walk_is_counted(w))
        v->verified.histogram[gumbel_walk_accepted(w)]++;
}

gumbel_status gumbel_drafts_accept(const gumbel_verification *v, const gumbel_proposal *proposal,
                                   gumbel_device *device, gumbel_node *nodes, gumbel_error *error)
{
    for (int64_t b = 0; b < v->rows; b++)
        if (v->of_row.slot[b] == GUMBEL_SLOT_UNUSED)
            gumbel_output_fill_unused(&v->drawn, b, b + 1, 1);
    if (proposal) {
        for (int64_t b = 0; b < v->rows; b++)
            gumbel_draft_emit_draw(v, b);
        GUMBEL_FORWARD(gumbel_proposal_score(proposal, device, v, error));
    }
    for (int64_t r = 0; r < v->draft.requests; r++) {
        gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_UNUSED);
        gumbel_span span = gumbel_draft_span(v, r);
        if (r < gumbel_draft_live(v) && span.count > 0) {
            GUMBEL_FORWARD(read_nodes(v, proposal, device, r, span, nodes, error));
            w = gumbel_draft_walk(v, r, span.first, nodes, span.count);
        }
        write_request(v, r, &w);
    }
    return GUMBEL_OK;
}

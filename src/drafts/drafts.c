/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/draft_walk.h"

#include "core/fail.h"
#include "core/output.h"

void gumbel_drafts_expand(const gumbel_verification *v)
{
    GUMBEL_ASSERT(v->draft.requests > 0 && v->draft.max_nodes >= 1);
    GUMBEL_ASSERT(v->draft.max_nodes <= GUMBEL_NODES_MOST);
    GUMBEL_ASSERT(v->of_row.slot && v->of_row.position && v->of_row.request);
    GUMBEL_ASSERT(!v->of_row.path_ids == !v->of_row.path_offsets);
    if (v->of_row.path_offsets)
        v->of_row.path_offsets[0] = 0;
    for (int64_t b = 0; b < v->rows; b++)
        gumbel_draft_row(v, b);
}

static gumbel_walked walk(const gumbel_verification *v, int64_t r, gumbel_node *nodes)
{
    gumbel_span span = gumbel_draft_span(v, r);
    if (r >= gumbel_draft_live(v) || span.count == 0)
        return gumbel_walked_not(GUMBEL_ROW_UNUSED);
    GUMBEL_ASSERT(span.sound && span.first + span.count <= v->rows);
    GUMBEL_ASSERT(span.count <= v->draft.max_nodes);
    for (int32_t j = 0; j < span.count; j++)
        nodes[j] = gumbel_draft_node(v, r, span.first, j);
    return gumbel_draft_walk(v, r, span.first, nodes, span.count);
}

void gumbel_drafts_accept(const gumbel_verification *v, gumbel_node *nodes)
{
    for (int64_t b = 0; b < v->rows; b++)
        if (v->of_row.slot[b] == GUMBEL_SLOT_UNUSED)
            gumbel_output_unused(&v->drawn, b, b + 1, 1);
    for (int64_t r = 0; r < v->draft.requests; r++) {
        gumbel_walked w = walk(v, r, nodes);
        GUMBEL_ASSERT(w.emitted >= 0 && w.emitted <= v->draft.max_nodes);
        GUMBEL_ASSERT(w.last_row >= -1 && w.last_row < v->rows);
        GUMBEL_ASSERT((w.emitted > 0) == (w.last_row >= 0));
        gumbel_draft_end(v, r, &w, 0, 1);
        gumbel_draft_advance(v, r, w.emitted);
        if (v->verified.histogram && gumbel_walked_counts(&w))
            v->verified.histogram[gumbel_walked_accepted(&w)]++;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/draft_walk.h"

#include "core/output.h"

void gumbel_drafts_expand(const gumbel_verification *v)
{
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
        gumbel_draft_end(v, r, &w, 0, 1);
        gumbel_draft_advance(v, r, w.emitted);
        if (v->verified.histogram && gumbel_walked_counts(&w))
            v->verified.histogram[gumbel_walked_accepted(&w)]++;
    }
}

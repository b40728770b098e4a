/* SPDX-License-Identifier: Apache-2.0
 *
 * The draws that a call watermarks: one for each row, or one for each node of a draft. The host
 * cannot check drafts in GPU memory; nodes of an invalid request are not watermarked.
 */
#ifndef GUMBEL_DRAFTS_WATERMARK_ROWS_H
#define GUMBEL_DRAFTS_WATERMARK_ROWS_H

#include "core/watermark_row.h"
#include "drafts/draft_rows.h"

/* Arguments of gumbel_watermark_rows() and gumbel_watermark_nodes(). */
struct gumbel_watermark_call {
    gumbel_watermark watermark; /* strides are explicit */
    gumbel_recent recent;       /* history is NULL */
    int64_t rows;               /* draws: B, or n */
    int with_nodes;             /* the draws are those of nodes */
    gumbel_verification drafts; /* draft, rows, slots and live_rows, with nodes */
    gumbel_watermark_draws to;
};

/* A draw. */
typedef struct gumbel_watermark_draw {
    int64_t slot;      /* -1: it is not live, or invalid */
    int64_t first_row; /* of the node's request */
    int32_t node;
} gumbel_watermark_draw;

GUMBEL_INLINE gumbel_watermark_draw gumbel_watermark_draw_of_row(const gumbel_watermark_call *c,
                                                                 int64_t b)
{
    const gumbel_watermark *w = &c->watermark;
    gumbel_watermark_draw draw = {-1, 0, 0};
    if (!c->with_nodes) {
        if (!w->live_rows || b < *w->live_rows)
            draw.slot = gumbel_slot_of_row(&w->slots, b);
        return draw;
    }
    const int64_t r = gumbel_draft_request(&c->drafts, b);
    if (r >= gumbel_draft_live(&c->drafts))
        return draw;
    const gumbel_span span = gumbel_draft_span(&c->drafts, r);
    if (b < span.first || b >= span.first + span.count)
        return draw;
    draw.slot = gumbel_slot_of_row(&w->slots, r);
    draw.first_row = span.first;
    draw.node = (int32_t)(b - span.first);
    return draw;
}

/* Writes the tokens from the node of a draw up to its root, which is excluded, to path[M - 1].
 * Returns their number; -1 if a parent is invalid. */
GUMBEL_INLINE int32_t gumbel_gather_path(const gumbel_draft *d, const gumbel_watermark_draw *draw,
                                         int32_t *path)
{
    int32_t depth = 0;
    for (int32_t node = draw->node; node > 0; depth++) {
        path[depth] = d->tokens[draw->first_row + node];
        node = gumbel_draft_parent(d, draw->first_row, node);
        if (node < 0)
            return -1;
    }
    return depth;
}

/* Writes the position of row b's draw, after `drafts` drafts. `context` has the newest token first;
 * is_new: the text ends in it, and does not have it before. */
GUMBEL_INLINE void gumbel_store_draw_position(const gumbel_watermark_call *c, int64_t b,
                                              const gumbel_watermark_draw *draw,
                                              const gumbel_row_key *key, int32_t drafts,
                                              const int32_t *context, int is_new)
{
    uint64_t position = key->position + (uint64_t)drafts;
    if (is_new)
        position = gumbel_keyed_position(key->key, key->length, context);
    else if (key->length > 0)
        position = gumbel_fallback_position(key->key, key->length, key->seed, position);
    c->to.position[c->with_nodes ? b : draw->slot] = position;
    if (c->to.watermarked)
        c->to.watermarked[b] = is_new;
}

/* Writes the seed of all draws of a row or request. */
GUMBEL_INLINE void gumbel_store_draw_seed(const gumbel_watermark_call *c,
                                          const gumbel_watermark_draw *draw,
                                          const gumbel_row_key *key)
{
    c->to.seed[draw->slot] = key->length > 0 ? gumbel_keyed_seed(key->key, key->length) : key->seed;
}

/* Writes the result of a row that is not drawn. */
GUMBEL_INLINE void gumbel_store_no_watermark(const gumbel_watermark_call *c, int64_t b)
{
    if (c->with_nodes)
        c->to.position[b] = 0;
    if (c->to.watermarked)
        c->to.watermarked[b] = 0;
}

/* Computes all draws, in host memory. */
void gumbel_watermark_draw_all(const gumbel_watermark_call *call);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/watermark_rows.h"

#include "core/fail.h"

/* Tokens that are compared without a branch between them. */
#define BLOCK 16

/* Whether one of BLOCK tokens equals `token`. */
static int has_token(const int32_t *tokens, int32_t token)
{
    int32_t equal = 0;
    for (int k = 0; k < BLOCK; k++)
        equal |= tokens[k] == token;
    return equal;
}

/* Whether the context ends at a place in [i, end), whose tokens are adjacent in the ring. Most
 * blocks lack its newest token. */
static int ring_has_context(const gumbel_row_text *t, const int32_t *context, int32_t length,
                            int64_t i, int64_t end)
{
    int64_t at = t->ring.last - (i - t->drafts);
    at += at < 0 ? t->ring.capacity : 0;
    while (i < end) {
        const int64_t count = end - i < BLOCK ? end - i : BLOCK;
        if (count < BLOCK || has_token(t->ring.ring + at - (BLOCK - 1), context[0]))
            for (int64_t k = 0; k < count; k++)
                if (gumbel_text_has_context(t, context, length, i + k))
                    return 1;
        i += count;
        at -= count;
    }
    return 0;
}

/* Whether the text ends in `length` >= 1 tokens that it does not have before; copies them to
 * `context`, the newest first. */
static int find_new_context(const gumbel_row_text *t, int32_t length, int32_t *context)
{
    if (length == 0 || t->count < length)
        return 0;
    for (int32_t k = 0; k < length; k++)
        context[k] = gumbel_text_token(t, k);
    const int64_t end = t->count - length + 1, first = t->drafts > 1 ? t->drafts : 1;
    for (int64_t i = 1; i < t->drafts && i < end; i++)
        if (gumbel_text_has_context(t, context, length, i))
            return 0;
    const int64_t wrap = t->drafts + t->ring.last + 1 < end ? t->drafts + t->ring.last + 1 : end;
    return !ring_has_context(t, context, length, first, wrap) &&
           !ring_has_context(t, context, length, first > wrap ? first : wrap, end);
}

static void watermark_row(const gumbel_watermark_call *c, int64_t b)
{
    const gumbel_watermark *w = &c->watermark;
    const gumbel_watermark_draw draw = gumbel_watermark_draw_of_row(c, b);
    int32_t path[GUMBEL_NODES_MAX], context[GUMBEL_CONTEXT_MAX];
    const int32_t *last_draft = path;
    int32_t drafts = w->num_drafts, step = 1;
    if (draw.slot < 0) {
        gumbel_store_no_watermark(c, b);
        return;
    }
    if (c->with_nodes) {
        drafts = gumbel_gather_path(&c->drafts.draft, &draw, path);
    } else if (drafts > 0) {
        last_draft = w->drafts + b * w->draft_stride + drafts - 1;
        step = -1;
    }
    GUMBEL_ASSERT(drafts >= 0 && drafts < GUMBEL_NODES_MAX);
    const gumbel_row_key key = gumbel_key_of_slot(w, draw.slot);
    const gumbel_row_text text =
        gumbel_text_of_slot(&c->recent, draw.slot, key.text_start, last_draft, step, drafts);
    const int is_new = find_new_context(&text, key.length, context);
    gumbel_store_draw_position(c, b, &draw, &key, drafts, context, is_new);
    if (draw.node == 0)
        gumbel_store_draw_seed(c, &draw, &key);
}

void gumbel_watermark_draw_all(const gumbel_watermark_call *call)
{
    GUMBEL_ASSERT(call->to.seed && call->to.position && call->recent.capacity > 0);
    for (int64_t b = 0; b < call->rows; b++)
        watermark_row(call, b);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/watermark_rows.h"

#include "core/fail.h"

/* Whether the text ends in `length` >= 1 tokens that it does not have before; copies them to
 * `context`, the newest first. */
static int find_new_context(const gumbel_row_text *t, int32_t length, int32_t *context)
{
    if (length == 0 || t->count < length)
        return 0;
    for (int32_t k = 0; k < length; k++)
        context[k] = gumbel_text_token(t, k);
    for (int64_t i = 1; i + length <= t->count; i++)
        if (gumbel_text_has_context(t, context, length, i))
            return 0;
    return 1;
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

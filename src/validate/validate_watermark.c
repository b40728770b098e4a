/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_watermark.h"

#include "core/fail.h"
#include "validate/validate_fields.h"
#include "validate/validate_rows.h"

#include <inttypes.h>
#include <stdio.h>

/* ----------------------------------------------------------------------------- generation ---- */

static gumbel_status read_drafted_tokens(gumbel_watermark *w, int64_t batch, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(w->num_drafts < 0 || w->num_drafts >= GUMBEL_NODES_MAX, error,
                     "watermark.num_drafts", "is %d; it must be in 0..%d", (int)w->num_drafts,
                     GUMBEL_NODES_MAX - 1);
    GUMBEL_REFUSE_IF(w->reserved, error, "watermark.reserved", "is not 0");
    if (w->num_drafts == 0) {
        w->draft_stride = 0;
        return gumbel_check_aligned(w->drafts, sizeof *w->drafts, "watermark.drafts", error);
    }
    GUMBEL_REFUSE_IF(!w->drafts && batch > 0, error, "watermark.drafts",
                     "is NULL, but num_drafts is %d", (int)w->num_drafts);
    GUMBEL_REFUSE_IF(w->draft_stride == GUMBEL_SAME, error, "watermark.draft_stride",
                     "is GUMBEL_SAME; each row has its own drafts");
    return w->drafts ? gumbel_read_rows(w->drafts, sizeof *w->drafts, w->num_drafts, batch,
                                        &w->draft_stride, "watermark.drafts", error)
                     : GUMBEL_OK;
}

gumbel_status gumbel_read_watermark(gumbel_watermark *w, const gumbel_watermark *watermark,
                                    int64_t batch, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!watermark, error, "watermark", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(w, sizeof *w, watermark, "watermark", error));
    GUMBEL_FORWARD(gumbel_check_slots(&w->slots, "watermark.slots", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(w->live_rows, sizeof *w->live_rows, "watermark.live_rows", error));
    const int64_t places = gumbel_slot_count(&w->slots, batch);
    GUMBEL_REFUSE_IF(!w->key && batch > 0, error, "watermark.key", "is NULL");
    if (w->key)
        GUMBEL_FORWARD(gumbel_read_rows(w->key, sizeof *w->key, 2, places, &w->key_stride,
                                        "watermark.key", error));
#define READ(of)                                                                                   \
    GUMBEL_FORWARD(gumbel_read_rows(w->of.data, sizeof *w->of.data, 1, places, &w->of.stride,      \
                                    "watermark." #of, error))
    READ(context);
    READ(text_start);
    READ(seed);
    READ(position);
#undef READ
    return read_drafted_tokens(w, batch, error);
}

/* An array of a call. */
typedef struct call_array {
    const void *data;
    int64_t bytes;
    const char *field;
} call_array;

/* The array of a row parameter of `width` elements of `size` bytes, whose stride is explicit. */
static call_array array_of_rows(const void *data, int64_t stride, int64_t rows, int64_t width,
                                size_t size, const char *field)
{
    const int64_t elements = stride && rows > 0 ? (rows - 1) * stride + width : width;
    return (call_array){data, elements * (int64_t)size, field};
}

static gumbel_status check_apart(const call_array *a, const call_array *b, gumbel_error *error)
{
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    GUMBEL_REFUSE_IF(first && second && first < second + (uintptr_t)b->bytes &&
                         second < first + (uintptr_t)a->bytes,
                     error, a->field, "overlaps %s; the arrays must be separate", b->field);
    return GUMBEL_OK;
}

gumbel_status gumbel_read_watermark_draws(gumbel_watermark_draws *d,
                                          const gumbel_watermark_draws *draws,
                                          const gumbel_watermark *w, const gumbel_recent *recent,
                                          int64_t batch, int64_t rows, int with_nodes,
                                          gumbel_error *error)
{
    const int64_t places = gumbel_slot_count(&w->slots, batch);
    GUMBEL_REFUSE_IF(!draws, error, "draws", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(d, sizeof *d, draws, "draws", error));
    GUMBEL_FORWARD(gumbel_check_aligned(d->seed, sizeof *d->seed, "draws.seed", error));
    GUMBEL_FORWARD(gumbel_check_aligned(d->position, sizeof *d->position, "draws.position", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(d->watermarked, sizeof *d->watermarked, "draws.watermarked", error));
    if (rows == 0)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(!d->seed, error, "draws.seed", "is NULL");
    GUMBEL_REFUSE_IF(!d->position, error, "draws.position", "is NULL");
    const call_array arrays[] = {
        {d->seed, places * 8, "draws.seed"},
        {d->position, (with_nodes ? rows : places) * 8, "draws.position"},
        {d->watermarked, rows * 4, "draws.watermarked"},
        array_of_rows(w->key, w->key_stride, places, 2, 8, "watermark.key"),
        array_of_rows(w->context.data, w->context.stride, places, 1, 4, "watermark.context"),
        array_of_rows(w->text_start.data, w->text_start.stride, places, 1, 8,
                      "watermark.text_start"),
        array_of_rows(w->seed.data, w->seed.stride, places, 1, 8, "watermark.seed"),
        array_of_rows(w->position.data, w->position.stride, places, 1, 8, "watermark.position"),
        array_of_rows(w->drafts, w->draft_stride, batch, w->num_drafts, 4, "watermark.drafts"),
        {recent->tokens, places * recent->capacity * 4, "recent.tokens"},
        {recent->count, places * 8, "recent.count"},
    };
    for (int i = 0; i < 3; i++)
        for (int j = i + 1; j < (int)(sizeof arrays / sizeof *arrays); j++)
            GUMBEL_FORWARD(check_apart(&arrays[i], &arrays[j], error));
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_watermark(const gumbel_watermark *w, int64_t batch,
                                          gumbel_error *error)
{
    const gumbel_problem p = {.batch = batch,
                              .sampling = {.slots = w->slots, .live_rows = w->live_rows}};
    GUMBEL_REFUSE_IF(w->live_rows && (*w->live_rows < 0 || *w->live_rows > batch), error,
                     "watermark.live_rows", "is %d; it must be in 0..%" PRId64, (int)*w->live_rows,
                     batch);
    GUMBEL_FORWARD(gumbel_check_host_slots(&w->slots, w->live_rows ? *w->live_rows : batch,
                                           "watermark.slots", error));
    return gumbel_check_row_integers(&p, &w->context, "watermark.context", 0, GUMBEL_CONTEXT_MAX,
                                     error);
}

/* ------------------------------------------------------------------------------ detection ---- */

gumbel_status gumbel_read_detector(gumbel_detector *d, const gumbel_detector *detector,
                                   const int32_t *tokens, int64_t count, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!detector, error, "detector", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(d, sizeof *d, detector, "detector", error));
    GUMBEL_REFUSE_IF(count < 0 || count > GUMBEL_DETECT_MAX, error, "count",
                     "is %" PRId64 "; it must be in 0..2^30", count);
    GUMBEL_REFUSE_IF(d->context < 0 || d->context > GUMBEL_CONTEXT_MAX, error, "detector.context",
                     "is %d; it must be in 1..%d, or 0 for %d", (int)d->context, GUMBEL_CONTEXT_MAX,
                     GUMBEL_CONTEXT_DEFAULT);
    GUMBEL_REFUSE_IF(d->domain >= 0x80000000u, error, "detector.domain",
                     "is %u; it must be below 2^31", (unsigned)d->domain);
    GUMBEL_REFUSE_IF(d->reserved, error, "detector.reserved", "is not 0");
    GUMBEL_REFUSE_IF(d->first < 0 || d->first > count, error, "detector.first",
                     "is %" PRId64 "; it must be in 0..%" PRId64, d->first, count);
    GUMBEL_REFUSE_IF(!tokens && count > 0, error, "tokens", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(tokens, sizeof *tokens, "tokens", error));
    for (int64_t i = 0; i < count; i++)
        GUMBEL_REFUSE_IF(tokens[i] < 0, error, gumbel_format_field("tokens[%" PRId64 "]", i).text,
                         "is %d; it must be in [0, 2^31)", (int)tokens[i]);
    if (d->context == 0)
        d->context = GUMBEL_CONTEXT_DEFAULT;
    return GUMBEL_OK;
}

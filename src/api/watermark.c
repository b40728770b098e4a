/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeds and positions of watermarked draws: of rows, and of the nodes of drafts.
 */
#include "gumbel/watermark.h"

#include "core/fail.h"
#include "drafts/watermark_rows.h"
#include "validate/validate_draft.h"
#include "validate/validate_recent.h"
#include "validate/validate_watermark.h"

#include <inttypes.h>

/* Reads the arguments that both calls have. `batch` is the number of rows or requests. */
static gumbel_status read_call(gumbel_watermark_call *call, const gumbel_device *device,
                               const void *stream, const gumbel_watermark *watermark,
                               const gumbel_recent *recent, int64_t batch,
                               const gumbel_watermark_draws *draws, gumbel_error *error)
{
    gumbel_watermark *w = &call->watermark;
    const int host = device->backend->host_memory;
    if (!host && !device->backend->watermark)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "the device does not support watermarks");
    GUMBEL_FORWARD(gumbel_read_watermark(w, watermark, batch, error));
    GUMBEL_REFUSE_IF(!recent, error, "recent", "is NULL");
    GUMBEL_FORWARD(
        gumbel_read_ring(&call->recent, recent, gumbel_slot_count(&w->slots, batch), error));
    call->recent.history = NULL;
    GUMBEL_FORWARD(gumbel_read_watermark_draws(&call->to, draws, w, &call->recent, batch,
                                               call->rows, call->with_nodes, error));
    if (!host)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    return gumbel_check_host_watermark(w, batch, error);
}

static gumbel_status run_call(gumbel_device *device, void *stream,
                              const gumbel_watermark_call *call, gumbel_error *error)
{
    if (call->rows == 0)
        return GUMBEL_OK;
    if (!device->backend->host_memory)
        return device->backend->watermark(device, stream, call, error);
    gumbel_watermark_draw_all(call);
    return GUMBEL_OK;
}

gumbel_status gumbel_watermark_rows(gumbel_device *device, void *stream,
                                    const gumbel_watermark *watermark, const gumbel_recent *recent,
                                    int64_t batch, const gumbel_watermark_draws *draws,
                                    gumbel_error *error)
{
    gumbel_watermark_call call = {.rows = batch};
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_FORWARD(read_call(&call, device, stream, watermark, recent, batch, draws, error));
    return run_call(device, stream, &call, error);
}

gumbel_status gumbel_watermark_nodes(gumbel_device *device, void *stream,
                                     const gumbel_watermark *watermark, const gumbel_recent *recent,
                                     const gumbel_draft *draft, int64_t rows,
                                     const gumbel_watermark_draws *draws, gumbel_error *error)
{
    gumbel_watermark_call call = {.rows = rows, .with_nodes = 1};
    gumbel_verification *v = &call.drafts;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(rows < 0, error, "rows", "is %" PRId64 "; it must be in 0..2^31 - 1", rows);
    GUMBEL_FORWARD(gumbel_read_draft(&v->draft, draft, rows, error));
    GUMBEL_REFUSE_IF(v->draft.rule != GUMBEL_RULE_COUPLED, error, "draft.rule",
                     "is %d; only GUMBEL_RULE_COUPLED draws by positions of nodes",
                     (int)v->draft.rule);
    v->rows = rows;
    GUMBEL_FORWARD(
        read_call(&call, device, stream, watermark, recent, v->draft.requests, draws, error));
    GUMBEL_REFUSE_IF(call.watermark.num_drafts, error, "watermark.num_drafts",
                     "is %d; it must be 0, as the drafts are those of `draft`",
                     (int)call.watermark.num_drafts);
    v->slots = call.watermark.slots;
    v->live_rows = call.watermark.live_rows;
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_draft(&v->draft, v->live_rows, rows, error));
    return run_call(device, stream, &call, error);
}

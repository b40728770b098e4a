/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of recent tokens, and the lists that follow from them.
 */
#include "validate/validate_recent.h"
#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

/* Checks the arguments that all calls have, and reads the slots. */
static gumbel_status read_rows(gumbel_slots *into, const gumbel_device *device, const void *stream,
                               int64_t batch, const gumbel_slots *slots, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    if (!device->backend->recent_start || !device->backend->make_lists)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "the device does not support rings of recent tokens");
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "is %" PRId64 "; it must be in 0..2^40", batch);
    *into = slots ? *slots : (gumbel_slots){0};
    GUMBEL_FORWARD(gumbel_check_slots(into, "slots", error));
    if (!device->backend->host_memory)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_slots(into, batch, "slots", error));
    return gumbel_check_host_stream(stream, error);
}

/* Reads the arguments of the calls that fill rings. */
static gumbel_status read_call(gumbel_recent_call *call, const gumbel_device *device,
                               const void *stream, const gumbel_recent *recent, int64_t batch,
                               const gumbel_slots *slots, gumbel_error *error)
{
    *call = (gumbel_recent_call){.batch = batch};
    GUMBEL_FORWARD(read_rows(&call->slots, device, stream, batch, slots, error));
    GUMBEL_FORWARD(gumbel_read_recent(call, recent, error));
    return device->backend->host_memory ? gumbel_check_host_recent(call, error) : GUMBEL_OK;
}

gumbel_status gumbel_recent_start(gumbel_device *device, void *stream, const gumbel_recent *recent,
                                  int64_t batch, const gumbel_slots *slots,
                                  const gumbel_token_lists *prompts,
                                  const gumbel_token_lists *outputs, gumbel_error *error)
{
    static const gumbel_token_lists none = {0};
    gumbel_recent_call call;
    GUMBEL_FORWARD(read_call(&call, device, stream, recent, batch, slots, error));
    call.prompts = prompts ? *prompts : none;
    call.outputs = outputs ? *outputs : none;
    GUMBEL_FORWARD(gumbel_check_lists(&call.prompts, 0, "prompts", error));
    GUMBEL_FORWARD(gumbel_check_lists(&call.outputs, 0, "outputs", error));
    if (device->backend->host_memory) {
        GUMBEL_FORWARD(gumbel_check_host_lists(&call.prompts, batch, "prompts", error));
        GUMBEL_FORWARD(gumbel_check_host_lists(&call.outputs, batch, "outputs", error));
    }
    return batch == 0 ? GUMBEL_OK : device->backend->recent_start(device, stream, &call, error);
}

gumbel_status gumbel_recent_append(gumbel_device *device, void *stream, const gumbel_recent *recent,
                                   int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                   int64_t token_stride, const int32_t *counts, gumbel_error *error)
{
    gumbel_recent_call call;
    GUMBEL_FORWARD(read_call(&call, device, stream, recent, batch, slots, error));
    GUMBEL_FORWARD(gumbel_read_tokens(tokens, &token_stride, counts, batch,
                                      device->backend->host_memory, error));
    call.tokens = tokens;
    call.token_stride = token_stride;
    call.counts = counts;
    return batch == 0 ? GUMBEL_OK : device->backend->recent_append(device, stream, &call, error);
}

gumbel_status gumbel_make_lists(gumbel_device *device, void *stream, const gumbel_list_rules *rules,
                                const gumbel_recent *recent, int64_t batch,
                                const gumbel_slots *slots, const gumbel_row_lists *lists,
                                gumbel_error *error)
{
    gumbel_lists_call call = {.batch = batch};
    GUMBEL_FORWARD(read_rows(&call.slots, device, stream, batch, slots, error));
    GUMBEL_FORWARD(gumbel_read_lists_call(&call, rules, recent, lists, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_rules(&call, error));
    return batch == 0 ? GUMBEL_OK : device->backend->make_lists(device, stream, &call, error);
}

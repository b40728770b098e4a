/* SPDX-License-Identifier: Apache-2.0
 *
 * Histories: the token counts of penalties, kept from one decode step to the next.
 */
#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

static const gumbel_slots no_slots = {0};

/* Validates the arguments that both calls have. */
static gumbel_status read_history(gumbel_history *into, const gumbel_device *device,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const void *stream,
                                  gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    if (!device->backend->history_start || !device->backend->history_update)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "the device does not support histories");
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_FORWARD(gumbel_check_slots(slots, "slots", error));
    GUMBEL_FORWARD(
        gumbel_read_history(into, history, gumbel_slot_count(slots, batch), "history", error));
    if (!device->backend->host_memory)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_slots(slots, batch, "slots", error));
    return gumbel_check_host_stream(stream, error);
}

static gumbel_status check_lists(const gumbel_device *device, const gumbel_token_lists *lists,
                                 int64_t batch, const char *name, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_check_lists(lists, 0, name, error));
    return device->backend->host_memory ? gumbel_check_host_lists(lists, batch, name, error)
                                        : GUMBEL_OK;
}

gumbel_status gumbel_history_start(gumbel_device *device, void *stream,
                                   const gumbel_history *history, int64_t batch,
                                   const gumbel_slots *slots, const gumbel_token_lists *prompts,
                                   const gumbel_token_lists *outputs, gumbel_error *error)
{
    static const gumbel_token_lists none = {0};
    gumbel_history full;
    prompts = prompts ? prompts : &none;
    outputs = outputs ? outputs : &none;
    slots = slots ? slots : &no_slots;
    GUMBEL_FORWARD(read_history(&full, device, history, batch, slots, stream, error));
    GUMBEL_FORWARD(check_lists(device, prompts, batch, "prompts", error));
    GUMBEL_FORWARD(check_lists(device, outputs, batch, "outputs", error));
    if (batch == 0)
        return GUMBEL_OK;
    return device->backend->history_start(device, stream, &full, batch, slots, prompts, outputs,
                                          error);
}

gumbel_status gumbel_history_update(gumbel_device *device, void *stream,
                                    const gumbel_history *history, int64_t batch,
                                    const gumbel_slots *slots, const int32_t *tokens,
                                    int64_t token_stride, const int32_t *counts,
                                    gumbel_error *error)
{
    gumbel_history full;
    slots = slots ? slots : &no_slots;
    GUMBEL_FORWARD(read_history(&full, device, history, batch, slots, stream, error));
    GUMBEL_FORWARD(gumbel_read_tokens(tokens, &token_stride, counts, batch,
                                      device->backend->host_memory, error));
    if (batch == 0)
        return GUMBEL_OK;
    return device->backend->history_update(device, stream, &full, batch, slots, tokens,
                                           token_stride, counts, error);
}

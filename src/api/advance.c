/* SPDX-License-Identifier: Apache-2.0 */
#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

/* Checks values in host memory. */
static gumbel_status check_host_step(gumbel_step *step, const void *stream, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    GUMBEL_REFUSE_IF(step->live_rows && (*step->live_rows < 0 || *step->live_rows > step->batch),
                     error, "step.live_rows", "is %d; it must be in 0..%" PRId64,
                     (int)*step->live_rows, step->batch);
    return gumbel_check_host_slots(&step->slots, step->live_rows ? *step->live_rows : step->batch,
                                   "step.slots", error);
}

gumbel_status gumbel_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                             gumbel_error *error)
{
    gumbel_step full;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(gumbel_read_step(&full, step, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(check_host_step(&full, stream, error));
    return full.batch == 0 ? GUMBEL_OK : device->backend->advance(device, stream, &full, error);
}

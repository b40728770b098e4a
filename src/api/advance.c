/* SPDX-License-Identifier: Apache-2.0 */
#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

gumbel_status gumbel_advance(gumbel_device *device, const gumbel_step *step, gumbel_error *error)
{
    gumbel_step full;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_step(&full, step, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_stream(full.stream, "step.stream", error));
    return full.batch == 0 ? GUMBEL_OK : device->backend->advance(device, &full, error);
}

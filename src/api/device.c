/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fail.h"
#include "validate/validate.h"
#include "cpu/rows/cpu_backend.h"
#include "cuda/open/cuda_open.h"

gumbel_status gumbel_open(const gumbel_device_options *options, gumbel_device **device,
                          gumbel_error *error)
{
    gumbel_device_options o = {0};
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    *device = NULL;
    if (options)
        GUMBEL_FORWARD(gumbel_read_options(&o, sizeof o, options, "options", error));
    if (o.device && strncmp(o.device, "cuda", 4) == 0)
        return cuda_open(&o, device, error);
    if (o.device && strcmp(o.device, "cpu") != 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "is '%.64s'; it must be cpu, cuda:0, cuda:1, ...", o.device);
    return cpu_open(&o, device, error);
}

void gumbel_close(gumbel_device *device)
{
    if (device)
        device->backend->close(device);
}

const char *gumbel_cuda_architectures(void) { return cuda_architectures(); }

const char *gumbel_cuda_architecture(const char *kernels, int32_t capability)
{
    return kernels ? cuda_find_architecture(kernels, capability) : "";
}

int32_t gumbel_device_capability(const gumbel_device *device)
{
    return device ? device->capability : 0;
}

gumbel_status gumbel_describe(const gumbel_device *device, gumbel_device_info *info)
{
    gumbel_device_info full = {0};
    if (!device || !info || info->struct_size < sizeof info->struct_size)
        return GUMBEL_ERROR_ARGUMENT;
    device->backend->describe(device, &full);
    size_t known = info->struct_size < sizeof full ? info->struct_size : sizeof full;
    full.struct_size = info->struct_size;
    memcpy(info, &full, known);
    return GUMBEL_OK;
}

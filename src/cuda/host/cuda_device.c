/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/host/cuda_device.h"

#include "core/fail.h"
#include "cuda/open/cuda_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Whether this process is a child of fork(), in which the driver does not work. */
static int is_forked_child(const cuda_device *cuda) { return getpid() != cuda->process; }

gumbel_status cuda_push_context(const cuda_device *cuda, gumbel_error *error)
{
    if (is_forked_child(cuda))
        return gumbel_fail(
            error, GUMBEL_ERROR_DEVICE, "device",
            "the device was opened before fork(): CUDA does not support its use in the child");
    CUDA_TRY(&cuda->driver, error, cuCtxPushCurrent, cuda->context);
    return GUMBEL_OK;
}

void cuda_pop_context(const cuda_device *cuda)
{
    CUcontext popped;
    cuda->driver.cuCtxPopCurrent(&popped);
}

void cuda_close_device(gumbel_device *device)
{
    cuda_device *cuda = (cuda_device *)device;
    const cuda_driver *driver = &cuda->driver;
    int is_open = cuda->context && !is_forked_child(cuda);
    if (is_open && cuda_push_context(cuda, NULL) == GUMBEL_OK) {
        for (int i = 0; i < CUDA_MODULES; i++)
            if (cuda->modules[i])
                driver->cuModuleUnload(cuda->modules[i]);
        cuda_pop_context(cuda);
    }
    if (is_open)
        driver->cuDevicePrimaryCtxRelease(cuda->device);
    free(cuda);
}

void cuda_describe_device(const gumbel_device *device, gumbel_device_info *info)
{
    const cuda_device *cuda = (const cuda_device *)device;
    info->isa = GUMBEL_ISA_AUTO;
    info->threads = cuda->multiprocessors;
    info->tile = CUDA_SM90_TILE;
    snprintf(info->name, sizeof info->name, "cuda:%d", cuda->ordinal);
    if (!is_forked_child(cuda))
        cuda->driver.cuDeviceGetName(info->description, sizeof info->description, cuda->device);
}

/* "cuda:N" to N; -1 for any other name. */
static int read_ordinal(const char *name)
{
    const char *digits = name + strlen("cuda:");
    size_t length = strncmp(name, "cuda:", strlen("cuda:")) == 0 ? strlen(digits) : 0;
    if (length < 1 || length > 4 || strspn(digits, "0123456789") != length)
        return -1;
    return atoi(digits);
}

gumbel_status cuda_check_options(const gumbel_device_options *o, int *ordinal, gumbel_error *error)
{
    *ordinal = read_ordinal(o->device);
    if (*ordinal < 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "is '%.64s'; it must be cpu, cuda:0, cuda:1, ...", o->device);
    GUMBEL_REFUSE_IF(o->isa != GUMBEL_ISA_AUTO, error, "options.isa",
                     "only a CPU device has this option");
    GUMBEL_REFUSE_IF(o->threads != 0, error, "options.threads",
                     "only a CPU device has this option");
    GUMBEL_REFUSE_IF(o->tile != 0, error, "options.tile", "only a CPU device has this option");
    GUMBEL_REFUSE_IF(o->parallel_for != NULL, error, "options.parallel_for",
                     "only a CPU device has this option");
    return GUMBEL_OK;
}

/* Find the GPU and read its attributes. */
static gumbel_status find_device(cuda_device *cuda, gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    int count = 0, major = 0, minor = 0;
    CUDA_TRY(driver, error, cuDeviceGetCount, &count);
    if (cuda->ordinal >= count)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "there is no cuda:%d: this machine has %d CUDA devices", cuda->ordinal,
                           count);
    CUDA_TRY(driver, error, cuDeviceGet, &cuda->device, cuda->ordinal);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &major,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &minor,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &cuda->multiprocessors,
             CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &cuda->shared_bytes,
             CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &cuda->has_cooperative_launch,
             CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, cuda->device);
    cuda->base.capability = 10 * major + minor;
    if (cuda->base.capability < CUDA_CAPABILITY_MIN)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "cuda:%d has compute capability %d.%d; the kernels require %d.%d or "
                           "later: open the device 'cpu', or use a newer GPU",
                           cuda->ordinal, major, minor, CUDA_CAPABILITY_MIN / 10,
                           CUDA_CAPABILITY_MIN % 10);
    if (!*cuda_find_architecture("portable", cuda->base.capability))
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "cuda:%d has compute capability %d.%d, and this build has kernels for "
                           "%s alone: build it with GUMBEL_CUDA_TARGETS=ALL",
                           cuda->ordinal, major, minor, cuda_architectures());
    return GUMBEL_OK;
}

static gumbel_status start_device(cuda_device *cuda, gumbel_error *error)
{
    GUMBEL_FORWARD(cuda_load_driver(&cuda->driver, error));
    GUMBEL_FORWARD(find_device(cuda, error));
    CUDA_TRY(&cuda->driver, error, cuDevicePrimaryCtxRetain, &cuda->context, cuda->device);
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    gumbel_status status = cuda_load_kernels(cuda, error);
    cuda_pop_context(cuda);
    return status;
}

gumbel_status cuda_open_device(int ordinal, cuda_device **device, gumbel_error *error)
{
    cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "device", "out of memory");
    cuda->process = getpid();
    cuda->ordinal = ordinal;
    gumbel_status status = start_device(cuda, error);
    if (status != GUMBEL_OK) {
        cuda_close_device(&cuda->base);
        return status;
    }
    *device = cuda;
    return GUMBEL_OK;
}

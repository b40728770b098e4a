/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/host/cuda_device.h"

#include "core/fail.h"
#include "cuda/host/cuda_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Whether this is a child of fork(): what it has of the driver is of no use. */
static int is_orphaned(const cuda_device *cuda) { return getpid() != cuda->process; }

gumbel_status cuda_enter(const cuda_device *cuda, gumbel_error *error)
{
    if (is_orphaned(cuda))
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "device",
                           "it was opened before fork(), which CUDA does not survive");
    CUDA_TRY(&cuda->driver, error, cuCtxPushCurrent, cuda->context);
    return GUMBEL_OK;
}

static void close_device(gumbel_device *device)
{
    cuda_device *cuda = (cuda_device *)device;
    const cuda_driver *driver = &cuda->driver;
    CUcontext popped;
    int mine = cuda->context && !is_orphaned(cuda);
    if (mine && cuda_enter(cuda, NULL) == GUMBEL_OK) {
        for (int i = 0; i < CUDA_MODULES; i++)
            if (cuda->modules[i])
                driver->cuModuleUnload(cuda->modules[i]);
        driver->cuCtxPopCurrent(&popped);
    }
    if (mine)
        driver->cuDevicePrimaryCtxRelease(cuda->device);
    free(cuda);
}

static void describe(const gumbel_device *device, gumbel_device_info *info)
{
    const cuda_device *cuda = (const cuda_device *)device;
    info->isa = GUMBEL_ISA_AUTO;
    info->threads = cuda->multiprocessors;
    info->tile = CUDA_SM90_TILE;
    snprintf(info->name, sizeof info->name, "cuda:%d", cuda->ordinal);
    if (!is_orphaned(cuda))
        cuda->driver.cuDeviceGetName(info->description, sizeof info->description, cuda->device);
}

static const gumbel_backend backend = {
    .close = close_device,
    .describe = describe,
    .serves = GUMBEL_REQUEST_END - 1,
    .most = cuda_most,
    .call_size = cuda_call_size,
    .explain = cuda_explain,
    .partial = cuda_partial,
    .sample = cuda_sample,
    .process = cuda_process,
    .softmax = cuda_softmax,
    .history_start = cuda_history_start,
    .history_update = cuda_history_update,
    .noise = cuda_noise,
    .advance = cuda_advance,
    .expand_drafts = cuda_expand_drafts,
    .accept_drafts = cuda_accept_drafts,
    .weighing_size = cuda_weighing_size,
    .store = cuda_store,
    .ranks = &cuda_rank_calls,
    .finish = cuda_finish_parts,
    .screen_layout = GUMBEL_SCREEN_LAYOUT_TILES,
    .screen_prepare = cuda_screen_prepare,
    .screen_verify = cuda_screen_verify,
    .multiply = cuda_multiply,
};

/* "cuda:N" to N; -1 for anything else. */
static int ordinal_of(const char *name)
{
    const char *digits = name + strlen("cuda:");
    size_t length = strncmp(name, "cuda:", strlen("cuda:")) == 0 ? strlen(digits) : 0;
    if (length < 1 || length > 4 || strspn(digits, "0123456789") != length)
        return -1;
    return atoi(digits);
}

static gumbel_status check_options(const gumbel_device_options *o, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(o->isa != GUMBEL_ISA_AUTO, error, "options.isa",
                     "only the CPU has instruction sets to choose from");
    GUMBEL_REFUSE_IF(o->threads != 0, error, "options.threads", "only the CPU has threads");
    GUMBEL_REFUSE_IF(o->tile != 0, error, "options.tile", "only the CPU lets it be chosen");
    GUMBEL_REFUSE_IF(o->parallel_for != NULL, error, "options.parallel_for",
                     "only the CPU has threads");
    return GUMBEL_OK;
}

/* Find the GPU and what it is. */
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
    cuda->capability = 10 * major + minor;
    if (cuda->capability < CUDA_CAPABILITY_MIN)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "cuda:%d has compute capability %d.%d; the kernels need %d.%d",
                           cuda->ordinal, major, minor, CUDA_CAPABILITY_MIN / 10,
                           CUDA_CAPABILITY_MIN % 10);
    return GUMBEL_OK;
}

static gumbel_status start(cuda_device *cuda, gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_driver_load(&cuda->driver, error));
    GUMBEL_FORWARD(find_device(cuda, error));
    CUDA_TRY(driver, error, cuDevicePrimaryCtxRetain, &cuda->context, cuda->device);
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = cuda_load_kernels(cuda, error);
    driver->cuCtxPopCurrent(&popped);
    return status;
}

gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error)
{
    int ordinal = ordinal_of(options->device);
    if (ordinal < 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "device '%.64s' is none of cpu, cuda:0, cuda:1, ...", options->device);
    cuda_rung_choice rungs;
    GUMBEL_FORWARD(check_options(options, error));
    GUMBEL_FORWARD(options->rungs
                       ? cuda_read_rungs(&rungs, options->rungs, "options.rungs", error)
                       : cuda_read_rungs(&rungs, getenv("GUMBEL_RUNGS"), "GUMBEL_RUNGS", error));
    cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "device", "out of memory");
    cuda->base.backend = &backend;
    cuda->process = getpid();
    cuda->ordinal = ordinal;
    cuda->rungs = rungs;
    gumbel_status status = start(cuda, error);
    if (status != GUMBEL_OK) {
        close_device(&cuda->base);
        return status;
    }
    *device = &cuda->base;
    return GUMBEL_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Mailboxes of ranks on one host: made, told to others, and reached: in another process by CUDA's
 * handles for memory, in the same one by address.
 */
#include "core/fail.h"
#include "cuda/host/cuda_device.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((gumbel_peer_handle *)0)->handle),
               "a card has room for a handle");

/* The machine by its boot, so that two of one name differ; 0 where that is not told. */
static uint64_t this_host(void)
{
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    char id[64];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t length = file ? fread(id, 1, sizeof id, file) : 0;
    if (file)
        fclose(file);
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ (unsigned char)id[i]) * UINT64_C(0x100000001b3);
    return length ? digest : 0;
}

/* The process by its number and the namespace that this is of: in two containers both may be 1. */
static uint64_t this_process(void)
{
    struct stat space = {0};
    if (stat("/proc/self/ns/pid", &space) != 0)
        space.st_ino = 0;
    return (uint64_t)space.st_ino << 32 ^ (uint64_t)getpid();
}

/* With the context current. */
static gumbel_status make(const cuda_device *cuda, gumbel_peers *peers, gumbel_peer_handle *card,
                          gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    size_t bytes = gumbel_peer_buffer_bytes(peers->ranks, peers->words);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)peers->buffers[peers->rank];
    void *report;
    if (!at) {
        CUDA_TRY(driver, error, cuMemAlloc, &at, bytes);
        peers->buffers[peers->rank] = (void *)(uintptr_t)at;
        peers->owned = 1;
        CUDA_TRY(driver, error, cuMemsetD8, at, 0, bytes);
        CUDA_TRY(driver, error, cuCtxSynchronize);
        CUDA_TRY(driver, error, cuIpcGetMemHandle, (CUipcMemHandle *)card->handle, at);
    }
    CUDA_TRY(driver, error, cuMemHostAlloc, &report, sizeof *peers->report,
             CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    peers->report = report;
    *peers->report = (gumbel_peer_report){0};
    CUDA_TRY(driver, error, cuMemHostGetDevicePointer, &at, report, 0);
    peers->device_report = (gumbel_peer_report *)(uintptr_t)at;
    return GUMBEL_OK;
}

gumbel_status cuda_peers_make(gumbel_device *device, gumbel_peers *peers, gumbel_peer_handle *card,
                              gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = make(cuda, peers, card, error);
    cuda->driver.cuCtxPopCurrent(&popped);
    card->host = this_host();
    card->process = this_process();
    card->memory = (uint64_t)(uintptr_t)peers->buffers[peers->rank];
    card->ordinal = cuda->ordinal;
    return status;
}

/* The mailbox of a rank of this process: on another GPU, this one must be let at it. */
static gumbel_status reach_here(const cuda_device *cuda, const gumbel_peer_handle *card, void **at,
                                gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    CUdevice other;
    CUcontext context;
    *at = (void *)(uintptr_t)card->memory;
    if (card->ordinal == cuda->ordinal)
        return GUMBEL_OK;
    CUDA_TRY(driver, error, cuDeviceGet, &other, card->ordinal);
    CUDA_TRY(driver, error, cuDevicePrimaryCtxRetain, &context, other);
    CUresult result = driver->cuCtxEnablePeerAccess(context, 0);
    driver->cuDevicePrimaryCtxRelease(other); /* its own rank holds it */
    return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? GUMBEL_OK
               : cuda_driver_fail(driver, result, "cuCtxEnablePeerAccess", error);
}

/* That of a rank of another process on this machine. */
static gumbel_status reach_there(const cuda_device *cuda, const gumbel_peer_handle *card, void **at,
                                 gumbel_error *error)
{
    CUipcMemHandle handle;
    CUdeviceptr mapped;
    memcpy(&handle, card->handle, sizeof handle);
    CUDA_TRY(&cuda->driver, error, cuIpcOpenMemHandle, &mapped, handle,
             CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    *at = (void *)(uintptr_t)mapped;
    return GUMBEL_OK;
}

gumbel_status cuda_peers_join(gumbel_device *device, gumbel_peers *peers,
                              const gumbel_peer_handle *cards, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_peer_handle *own = &cards[peers->rank];
    gumbel_status status = GUMBEL_OK;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    for (int32_t r = 0; r < peers->ranks && status == GUMBEL_OK; r++) {
        if (r == peers->rank)
            continue;
        if (cards[r].host != own->host || !own->host)
            status = gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.peer_memory",
                                 "rank %d is on another host", (int)r);
        else if (cards[r].process == own->process)
            status = reach_here(cuda, &cards[r], &peers->buffers[r], error);
        else if ((status = reach_there(cuda, &cards[r], &peers->buffers[r], error)) == GUMBEL_OK)
            peers->mapped |= 1u << r;
    }
    cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

void cuda_peers_part(gumbel_device *device, gumbel_peers *peers)
{
    cuda_device *cuda = (cuda_device *)device;
    const cuda_driver *driver = &cuda->driver;
    CUcontext popped;
    if (cuda_enter(cuda, NULL) != GUMBEL_OK)
        return;
    for (int32_t r = 0; r < peers->ranks; r++)
        if (peers->mapped >> r & 1)
            driver->cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)peers->buffers[r]);
    if (peers->owned)
        driver->cuMemFree((CUdeviceptr)(uintptr_t)peers->buffers[peers->rank]);
    if (peers->report)
        driver->cuMemFreeHost(peers->report);
    driver->cuCtxPopCurrent(&popped);
}

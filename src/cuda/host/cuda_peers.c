/* SPDX-License-Identifier: Apache-2.0
 *
 * Peer buffers of ranks on one host: creates them, describes them by handles, and maps those of
 * other ranks: by CUDA IPC from another process, by address within the same process.
 */
#include "core/fail.h"
#include "cuda/host/cuda_device.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((gumbel_peer_handle *)0)->handle),
               "a peer handle holds a CUDA IPC handle");

/* Identifies the host by its boot id, as two hosts may have the same name; 0 if unknown. */
static uint64_t hash_host(void)
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

/* Identifies the process by its id and PID namespace, as processes of two containers may have the
 * same id. */
static uint64_t hash_process(void)
{
    struct stat space = {0};
    if (stat("/proc/self/ns/pid", &space) != 0)
        space.st_ino = 0;
    return (uint64_t)space.st_ino << 32 ^ (uint64_t)getpid();
}

/* Create the peer buffer and the report, with the context current. */
static gumbel_status create_buffer(const cuda_device *cuda, gumbel_peers *peers,
                                   gumbel_peer_handle *handle, gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    size_t bytes = gumbel_peer_buffer_size(peers->ranks, peers->words);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)peers->buffers[peers->rank];
    void *report;
    if (!at) {
        CUDA_TRY(driver, error, cuMemAlloc, &at, bytes);
        peers->buffers[peers->rank] = (void *)(uintptr_t)at;
        peers->owned = 1;
        CUDA_TRY(driver, error, cuMemsetD8, at, 0, bytes);
        CUDA_TRY(driver, error, cuCtxSynchronize);
        CUDA_TRY(driver, error, cuIpcGetMemHandle, (CUipcMemHandle *)handle->handle, at);
    }
    CUDA_TRY(driver, error, cuMemHostAlloc, &report, sizeof *peers->report,
             CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    peers->report = report;
    *peers->report = (gumbel_peer_report){0};
    CUDA_TRY(driver, error, cuMemHostGetDevicePointer, &at, report, 0);
    peers->device_report = (gumbel_peer_report *)(uintptr_t)at;
    return GUMBEL_OK;
}

gumbel_status cuda_create_peers(gumbel_device *device, gumbel_peers *peers,
                                gumbel_peer_handle *handle, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    gumbel_status status = create_buffer(cuda, peers, handle, error);
    cuda_pop_context(cuda);
    handle->host = hash_host();
    handle->process = hash_process();
    handle->memory = (uint64_t)(uintptr_t)peers->buffers[peers->rank];
    handle->ordinal = cuda->ordinal;
    return status;
}

/* Map the buffer of a rank of this process: if on another GPU, peer access must be enabled. */
static gumbel_status map_from_same_process(const cuda_device *cuda,
                                           const gumbel_peer_handle *handle, void **at,
                                           gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    CUdevice other;
    CUcontext context;
    *at = (void *)(uintptr_t)handle->memory;
    if (handle->ordinal == cuda->ordinal)
        return GUMBEL_OK;
    CUDA_TRY(driver, error, cuDeviceGet, &other, handle->ordinal);
    CUDA_TRY(driver, error, cuDevicePrimaryCtxRetain, &context, other);
    CUresult result = driver->cuCtxEnablePeerAccess(context, 0);
    driver->cuDevicePrimaryCtxRelease(other); /* its rank retains it */
    return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? GUMBEL_OK
               : cuda_driver_fail(driver, result, "cuCtxEnablePeerAccess", error);
}

/* Map the buffer of a rank of another process on this host. */
static gumbel_status map_from_other_process(const cuda_device *cuda,
                                            const gumbel_peer_handle *handle, void **at,
                                            gumbel_error *error)
{
    CUipcMemHandle ipc;
    CUdeviceptr mapped;
    memcpy(&ipc, handle->handle, sizeof ipc);
    CUDA_TRY(&cuda->driver, error, cuIpcOpenMemHandle, &mapped, ipc,
             CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    *at = (void *)(uintptr_t)mapped;
    return GUMBEL_OK;
}

gumbel_status cuda_connect_peers(gumbel_device *device, gumbel_peers *peers,
                                 const gumbel_peer_handle *handles, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_peer_handle *own = &handles[peers->rank];
    gumbel_status status = GUMBEL_OK;
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    for (int32_t r = 0; r < peers->ranks && status == GUMBEL_OK; r++) {
        if (r == peers->rank)
            continue;
        if (handles[r].host != own->host || !own->host)
            status = gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.peer_memory",
                                 "rank %d is on another host", (int)r);
        else if (handles[r].process == own->process)
            status = map_from_same_process(cuda, &handles[r], &peers->buffers[r], error);
        else if ((status = map_from_other_process(cuda, &handles[r], &peers->buffers[r], error)) ==
                 GUMBEL_OK)
            peers->mapped |= 1u << r;
    }
    cuda_pop_context(cuda);
    return status;
}

void cuda_release_peers(gumbel_device *device, gumbel_peers *peers)
{
    cuda_device *cuda = (cuda_device *)device;
    const cuda_driver *driver = &cuda->driver;
    if (cuda_push_context(cuda, NULL) != GUMBEL_OK)
        return;
    for (int32_t r = 0; r < peers->ranks; r++)
        if (peers->mapped >> r & 1)
            driver->cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)peers->buffers[r]);
    if (peers->owned)
        driver->cuMemFree((CUdeviceptr)(uintptr_t)peers->buffers[peers->rank]);
    if (peers->report)
        driver->cuMemFreeHost(peers->report);
    cuda_pop_context(cuda);
}

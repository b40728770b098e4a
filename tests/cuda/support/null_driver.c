/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for machines without a GPU: every call succeeds, no kernel runs, and memory of the
 * device is such that the host faults where it reads or writes it. So a test of the GPU shows, by
 * dying, where the library takes a pointer of the device's for its own. What comes back is noise.
 *
 * Functions are called by other types than these, with arguments that they ignore.
 */
#define _DEFAULT_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* In the driver's terms: success, and no more memory. */
enum { SUCCESS = 0, OUT_OF_MEMORY = 2 };

/* By cuda.h's numbers: of a Hopper with the shared memory that an H200 has. */
enum {
    MULTIPROCESSORS = 16,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    SHARED_BYTES_OF_MULTIPROCESSOR = 81,
    SHARED_BYTES_OF_CTA = 97
};

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
int cuMemFree_v2(uint64_t pointer);
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDeviceGetCount(int *count);
int cuDeviceGetAttribute(int *value, int attribute, int device);

/* Address space, which nobody may touch; it stays taken, so that no later mapping makes it good. */
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    void *made = mmap(NULL, bytes + !bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *pointer = (uint64_t)(uintptr_t)made;
    return made == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemFree_v2(uint64_t pointer)
{
    (void)pointer;
    return SUCCESS;
}

/* Pinned memory is the host's. */
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    *pointer =
        mmap(NULL, bytes + !bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *pointer == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

/* Handles that are not NULL. */
int cuModuleLoadData(void **module, const void *image)
{
    *module = (void *)(uintptr_t)image;
    return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    *function = (void *)(uintptr_t)name;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(device + 1);
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == CAPABILITY_MAJOR                 ? 9
             : attribute == CAPABILITY_MINOR               ? 0
             : attribute == MULTIPROCESSORS                ? 132
             : attribute == SHARED_BYTES_OF_MULTIPROCESSOR ? 228 << 10
             : attribute == SHARED_BYTES_OF_CTA            ? 227 << 10
                                                           : 1024;
    return SUCCESS;
}

#define DO_NOTHING(name)                                                                           \
    int name(void);                                                                                \
    int name(void) { return SUCCESS; }

DO_NOTHING(cuInit)
DO_NOTHING(cuGetErrorString)
DO_NOTHING(cuDeviceGet)
DO_NOTHING(cuDeviceGetName)
DO_NOTHING(cuDevicePrimaryCtxRelease_v2)
DO_NOTHING(cuCtxPushCurrent_v2)
DO_NOTHING(cuCtxPopCurrent_v2)
DO_NOTHING(cuCtxSetCurrent)
DO_NOTHING(cuCtxSynchronize)
DO_NOTHING(cuModuleUnload)
DO_NOTHING(cuFuncGetAttribute)
DO_NOTHING(cuFuncSetAttribute)
DO_NOTHING(cuLaunchKernel)
DO_NOTHING(cuLaunchKernelEx)
DO_NOTHING(cuTensorMapEncodeTiled)
DO_NOTHING(cuMemFreeHost)
DO_NOTHING(cuMemcpyHtoD_v2)
DO_NOTHING(cuMemcpyDtoH_v2)
DO_NOTHING(cuMemcpyDtoDAsync_v2)
DO_NOTHING(cuMemsetD8_v2)
DO_NOTHING(cuMemsetD32Async)
DO_NOTHING(cuStreamCreate)
DO_NOTHING(cuStreamDestroy_v2)
DO_NOTHING(cuStreamSynchronize)
DO_NOTHING(cuStreamQuery)
DO_NOTHING(cuStreamWaitEvent)
DO_NOTHING(cuStreamBeginCapture_v2)
DO_NOTHING(cuStreamEndCapture)
DO_NOTHING(cuEventCreate)
DO_NOTHING(cuEventRecord)
DO_NOTHING(cuEventDestroy_v2)
DO_NOTHING(cuGraphInstantiateWithFlags)
DO_NOTHING(cuGraphLaunch)
DO_NOTHING(cuGraphDestroy)
DO_NOTHING(cuGraphExecDestroy)

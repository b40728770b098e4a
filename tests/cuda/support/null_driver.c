/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for machines without a GPU. Every call succeeds, no kernel runs, and device memory
 * faults if the host reads or writes it. A GPU test ends with a signal if the library dereferences
 * a device pointer, launches outside the captured stream, or exceeds a kernel's shared memory.
 * Results are arbitrary. The functions that the command calls are included.
 */
#define _DEFAULT_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORTED __attribute__((visibility("default")))

/* Ignores its arguments. Macros of cuda.h map a name to its current version. */
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)
#define DO_NOTHING(name)                                                                           \
    EXPORTED CUresult nothing_##name(void) __asm__(TEXT(name));                                    \
    CUresult nothing_##name(void) { return CUDA_SUCCESS; }

static _Thread_local CUstream captured;

static CUresult map(void **pointer, size_t bytes, int access)
{
    *pointer = mmap(NULL, bytes + !bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *pointer == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Inaccessible address space. Never unmapped, so that no later mapping makes it accessible. */
EXPORTED CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
    void *generated;
    CUresult result = map(&generated, bytes, PROT_NONE);
    *pointer = (CUdeviceptr)generated;
    return result;
}

/* Variables of a module are inaccessible, too. */
EXPORTED CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                    const char *name)
{
    (void)module, (void)name;
    *bytes = 1;
    return cuMemAlloc(pointer, *bytes);
}

EXPORTED CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    return map(pointer, bytes, PROT_READ | PROT_WRITE);
}

/* Handles other than NULL. */
EXPORTED CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)(uintptr_t)image;
    return CUDA_SUCCESS;
}

/* A kernel, identified by its name: modules are loaded once a device. */
typedef struct kernel {
    char name[64];
    int shared_bytes; /* maximum dynamic shared memory */
    int carveout;     /* percentage of a multiprocessor's memory used as shared memory */
} kernel;

/* Exported for test_images.py. */
EXPORTED kernel null_kernels[1024];

EXPORTED CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    kernel *k = null_kernels;
    (void)module;
    pthread_mutex_lock(&mutex);
    while (k->name[0] && strcmp(k->name, name) != 0)
        k++;
    if (!k->name[0])
        *k = (kernel){.shared_bytes = 48 << 10};
    strncpy(k->name, name, sizeof k->name - 1);
    pthread_mutex_unlock(&mutex);
    *function = (CUfunction)(void *)k;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        ((kernel *)(void *)function)->shared_bytes = value;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        ((kernel *)(void *)function)->carveout = value;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)(device + 1);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    *stream = (CUstream)(uintptr_t)(0x1000 + flags);
    return CUDA_SUCCESS;
}

enum { MULTIPROCESSORS = 132 };

/* Shared memory of a multiprocessor: the table of the CUDA C++ Programming Guide. */
static int shared_bytes_of(int capability)
{
    switch (capability) {
    case 75:
        return 64 << 10;
    case 80:
        return 164 << 10;
    case 86:
    case 89:
    case 120:
        return 100 << 10;
    default:
        return 228 << 10;
    }
}

EXPORTED CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

/* The attributes that the library reads: of an H200, or of a GPU of the capability that
 * NULL_CAPABILITY names, 10 * major + minor. */
EXPORTED CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const char *named = getenv("NULL_CAPABILITY");
    const int capability = named ? atoi(named) : 90;
    const int shared = shared_bytes_of(capability);
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? capability / 10
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? capability % 10
             : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? MULTIPROCESSORS
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR ? shared
             : attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN    ? shared - 1024
                                                                                     : 1024;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    captured = stream;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream, (void)graph;
    captured = NULL;
    return CUDA_SUCCESS;
}

/* The driver returns error 906; here the program ends, as failing comparisons are ignored. */
static CUresult launch_on(CUstream stream, const char *what)
{
    if (captured && stream != captured) {
        fprintf(stderr, "%s is not on the stream that is captured\n", what);
        abort();
    }
    return CUDA_SUCCESS;
}

/* A kernel that waits for another launch must set the maximum shared-memory carveout: otherwise a
 * launch that requires more could not start on the same multiprocessor. */
static void check_wait(const kernel *k)
{
    static const char *const waiting[] = {"gumbel_exchange_", "gumbel_request_rows",
                                          "gumbel_select_exchange_"};
    for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
        if (strncmp(k->name, waiting[i], strlen(waiting[i])) == 0 &&
            k->carveout != CU_SHAREDMEM_CARVEOUT_MAX_SHARED) {
            fprintf(stderr, "%s waits for other launches and keeps out their shared memory\n",
                    k->name);
            abort();
        }
}

/* Two CTAs a multiprocessor, or one whose shared memory leaves no room for another. */
EXPORTED CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *ctas, CUfunction function,
                                                              int threads, size_t shared_bytes)
{
    const char *named = getenv("NULL_CAPABILITY");
    const int fit = shared_bytes_of(named ? atoi(named) : 90) / ((int)shared_bytes + 1024);
    (void)function, (void)threads;
    *ctas = fit < 2 ? fit : 2;
    return CUDA_SUCCESS;
}

/* A kernel whose CTAs wait for each other must be launched cooperatively, by CTAs that all run at
 * the same time: otherwise it could wait forever. */
static void check_cooperation(const CUlaunchConfig *config, const kernel *k)
{
    const char *end = strrchr(k->name, '_');
    const int waits = end && strcmp(end, "_grid") == 0;
    int cooperates = 0, ctas = 0;
    for (unsigned i = 0; i < config->numAttrs; i++)
        cooperates |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
                      config->attrs[i].value.cooperative == 1;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, NULL, 0, config->sharedMemBytes);
    if (waits == cooperates && (!waits || config->gridDimX <= (unsigned)(MULTIPROCESSORS * ctas)))
        return;
    fprintf(stderr, "%s: %u CTAs are launched%s\n", k->name, config->gridDimX,
            cooperates ? " cooperatively" : "");
    abort();
}

EXPORTED CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                   void **arguments, void **extra)
{
    const kernel *k = (const kernel *)(void *)function;
    (void)arguments, (void)extra;
    if (config->sharedMemBytes > (unsigned)k->shared_bytes) {
        fprintf(stderr, "%s is launched with %u bytes and may have %d\n", k->name,
                config->sharedMemBytes, k->shared_bytes);
        abort();
    }
    check_wait(k);
    check_cooperation(config, k);
    return launch_on(config->hStream, k->name);
}

EXPORTED CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream)
{
    (void)at, (void)value, (void)count;
    return launch_on(stream, "a memset");
}

DO_NOTHING(cuInit)
DO_NOTHING(cuDriverGetVersion)
DO_NOTHING(cuGetErrorString)
DO_NOTHING(cuDeviceGet)
DO_NOTHING(cuDeviceGetName)
DO_NOTHING(cuDevicePrimaryCtxRelease)
DO_NOTHING(cuCtxPushCurrent)
DO_NOTHING(cuCtxPopCurrent)
DO_NOTHING(cuCtxSetCurrent)
DO_NOTHING(cuCtxSynchronize)
DO_NOTHING(cuModuleUnload)
DO_NOTHING(cuFuncGetAttribute)
DO_NOTHING(cuLaunchKernel)
DO_NOTHING(cuTensorMapEncodeTiled)
DO_NOTHING(cuMemFree)
DO_NOTHING(cuMemFreeHost)
DO_NOTHING(cuMemHostGetDevicePointer)
DO_NOTHING(cuMemcpyDtoHAsync)
DO_NOTHING(cuMemcpyHtoDAsync)
DO_NOTHING(cuIpcGetMemHandle)
DO_NOTHING(cuIpcOpenMemHandle)
DO_NOTHING(cuIpcCloseMemHandle)
DO_NOTHING(cuCtxEnablePeerAccess)
DO_NOTHING(cuMemcpyHtoD)
DO_NOTHING(cuMemcpyDtoH)
DO_NOTHING(cuMemcpyDtoD)
DO_NOTHING(cuMemcpyDtoDAsync)
DO_NOTHING(cuMemsetD8)
DO_NOTHING(cuStreamCreateWithPriority)
DO_NOTHING(cuCtxGetStreamPriorityRange)
DO_NOTHING(cuStreamDestroy)
DO_NOTHING(cuStreamSynchronize)
DO_NOTHING(cuStreamQuery)
DO_NOTHING(cuStreamWaitEvent)
DO_NOTHING(cuEventCreate)
DO_NOTHING(cuEventRecord)
DO_NOTHING(cuEventDestroy)
DO_NOTHING(cuEventSynchronize)
DO_NOTHING(cuGraphInstantiate)
DO_NOTHING(cuGraphLaunch)
DO_NOTHING(cuGraphDestroy)
DO_NOTHING(cuGraphExecDestroy)
/* Names that macros of cuda.h map to later versions. */
#undef cuEventElapsedTime
DO_NOTHING(cuEventElapsedTime)

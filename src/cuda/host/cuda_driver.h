/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver, loaded at run time, so that one build serves machines with and without it.
 */
#ifndef GUMBEL_CUDA_DRIVER_H
#define GUMBEL_CUDA_DRIVER_H

#include "gumbel/gumbel.h"

#include <cuda.h>

/* Every driver function that the library calls. Macros of cuda.h map a name to its current version.
 */
#define CUDA_DRIVER_FUNCTIONS(F)                                                                   \
    F(cuInit)                                                                                      \
    F(cuGetErrorString)                                                                            \
    F(cuDeviceGet)                                                                                 \
    F(cuDeviceGetCount)                                                                            \
    F(cuDeviceGetName)                                                                             \
    F(cuDeviceGetAttribute)                                                                        \
    F(cuDevicePrimaryCtxRetain)                                                                    \
    F(cuDevicePrimaryCtxRelease)                                                                   \
    F(cuCtxPushCurrent)                                                                            \
    F(cuCtxPopCurrent)                                                                             \
    F(cuModuleLoadData)                                                                            \
    F(cuModuleUnload)                                                                              \
    F(cuModuleGetFunction)                                                                         \
    F(cuModuleGetGlobal)                                                                           \
    F(cuFuncGetAttribute)                                                                          \
    F(cuFuncSetAttribute)                                                                          \
    F(cuLaunchKernelEx)                                                                            \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                 \
    F(cuMemAlloc)                                                                                  \
    F(cuMemFree)                                                                                   \
    F(cuMemHostAlloc)                                                                              \
    F(cuMemHostGetDevicePointer)                                                                   \
    F(cuMemFreeHost)                                                                               \
    F(cuMemsetD8)                                                                                  \
    F(cuMemsetD32Async)                                                                            \
    F(cuMemcpyDtoHAsync)                                                                           \
    F(cuMemcpyHtoDAsync)                                                                           \
    F(cuIpcGetMemHandle)                                                                           \
    F(cuIpcOpenMemHandle)                                                                          \
    F(cuIpcCloseMemHandle)                                                                         \
    F(cuCtxEnablePeerAccess)                                                                       \
    F(cuCtxSynchronize)                                                                            \
    F(cuStreamQuery)                                                                               \
    F(cuTensorMapEncodeTiled)

#define CUDA_DRIVER_MEMBER(name) __typeof__(name) *name;
typedef struct cuda_driver {
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
} cuda_driver;
#undef CUDA_DRIVER_MEMBER

/* Load libcuda and start the driver. The library stays loaded until the process ends.
 *  returns    GUMBEL_OK, or GUMBEL_ERROR_UNSUPPORTED with the reason. */
gumbel_status cuda_load_driver(cuda_driver *driver, gumbel_error *error);

/* Report GUMBEL_ERROR_DEVICE with the driver's message for `result`, returned by `call`. */
gumbel_status cuda_driver_fail(const cuda_driver *driver, CUresult result, const char *call,
                               gumbel_error *error);

/* Return from the calling function with an error unless driver->function(arguments) succeeds. */
#define CUDA_TRY(driver, error, function, ...)                                                     \
    do {                                                                                           \
        CUresult tried_result = (driver)->function(__VA_ARGS__);                                   \
        if (tried_result != CUDA_SUCCESS)                                                          \
            return cuda_driver_fail(driver, tried_result, #function, error);                       \
    } while (0)

#endif

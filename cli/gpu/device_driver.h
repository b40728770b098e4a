/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the CUDA driver that the command calls, loaded at run time, so that a build
 * needs no CUDA. Types are those of cuda.h: a result of 0 is success, a device is an int, a handle
 * a pointer, an address 64 bits. An error of the driver ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_DRIVER_H
#define GUMBEL_CLI_DEVICE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t device_address;

/* F(name here, name in the driver, parameters) */
#define DEVICE_DRIVER_FUNCTIONS(F)                                                                 \
    F(init, cuInit, (unsigned flags))                                                              \
    F(version, cuDriverGetVersion, (int *version))                                                 \
    F(error_string, cuGetErrorString, (int result, const char **words))                            \
    F(device_get, cuDeviceGet, (int *device, int ordinal))                                         \
    F(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))             \
    F(retain, cuDevicePrimaryCtxRetain, (void **context, int device))                              \
    F(set_current, cuCtxSetCurrent, (void *context))                                               \
    F(allocate, cuMemAlloc_v2, (device_address * address, size_t bytes))                           \
    F(release, cuMemFree_v2, (device_address address))                                             \
    F(upload, cuMemcpyHtoD_v2, (device_address to, const void *from, size_t bytes))                \
    F(download, cuMemcpyDtoH_v2, (void *to, device_address from, size_t bytes))                    \
    F(copy, cuMemcpyDtoD_v2, (device_address to, device_address from, size_t bytes))               \
    F(module_load, cuModuleLoadData, (void **module, const void *image))                           \
    F(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))     \
    F(launch, cuLaunchKernel,                                                                      \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments,  \
       void **extra))                                                                              \
    F(stream_new, cuStreamCreate, (void **stream, unsigned flags))                                 \
    F(stream_free, cuStreamDestroy_v2, (void *stream))                                             \
    F(stream_wait, cuStreamSynchronize, (void *stream))                                            \
    F(capture_begin, cuStreamBeginCapture_v2, (void *stream, int mode))                            \
    F(capture_end, cuStreamEndCapture, (void *stream, void **graph))                               \
    F(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (void **executable, void *graph, unsigned long long flags))                                  \
    F(graph_launch, cuGraphLaunch, (void *executable, void *stream))                               \
    F(graph_free, cuGraphDestroy, (void *graph))                                                   \
    F(executable_free, cuGraphExecDestroy, (void *executable))                                     \
    F(event_new, cuEventCreate, (void **event, unsigned flags))                                    \
    F(event_free, cuEventDestroy_v2, (void *event))                                                \
    F(event_record, cuEventRecord, (void *event, void *stream))                                    \
    F(event_wait, cuEventSynchronize, (void *event))                                               \
    F(event_elapsed, cuEventElapsedTime, (float *milliseconds, void *begin, void *end))

#define DEVICE_DRIVER_MEMBER(name, symbol, parameters) int(*name) parameters;
struct device_driver {
    DEVICE_DRIVER_FUNCTIONS(DEVICE_DRIVER_MEMBER)
};
#undef DEVICE_DRIVER_MEMBER

/* Set by device_driver_use(). */
extern struct device_driver device_driver;

/* Loads libcuda and makes the primary context of "cuda:N" current in the calling thread. Returns
 * the driver's handle of the GPU. */
int device_driver_use(const char *device);

/* fail() with the driver's message unless `result` is 0; `what` names the operation. */
void require_driver(int result, const char *what);

/* Sets functions[0..count) to the symbols of `library`, a handle of dlopen(), by name. Returns
 * NULL, or the first name that is missing. */
const char *load_functions(void *library, const char *const *names, void *const *functions,
                           int count);

#endif

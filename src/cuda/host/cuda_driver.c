/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/host/cuda_driver.h"

#include "core/fail.h"

#include <dlfcn.h>
#include <string.h>

#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

static const char *get_message(const cuda_driver *driver, CUresult result)
{
    const char *message = NULL;
    driver->cuGetErrorString(result, &message);
    return message ? message : "an unknown error";
}

gumbel_status cuda_driver_fail(const cuda_driver *driver, CUresult result, const char *call,
                               gumbel_error *error)
{
    return gumbel_fail(error, GUMBEL_ERROR_DEVICE, call, "the CUDA driver reports: %s (error %d)",
                       get_message(driver, result), (int)result);
}

gumbel_status cuda_load_driver(cuda_driver *driver, gumbel_error *error)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found;
    if (!library)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "no NVIDIA driver: %.160s", dlerror());
#define LOAD(name)                                                                                 \
    found = dlsym(library, TEXT(name));                                                            \
    if (!found)                                                                                    \
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",                      \
                           "the NVIDIA driver is too old: it lacks %s", TEXT(name));               \
    memcpy(&driver->name, &found, sizeof found);
    CUDA_DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    CUresult result = driver->cuInit(0);
    if (result != CUDA_SUCCESS)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "the CUDA driver reports: %s (error %d)", get_message(driver, result),
                           (int)result);
    return GUMBEL_OK;
}

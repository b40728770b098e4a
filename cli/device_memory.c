/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

/* The few functions of the driver that are used, as cuda.h declares them: a result of 0 is success,
 * a device an int, a context a pointer, an address 64 bits. So a build needs nothing of CUDA. */
static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*allocate)(unsigned long long *address, size_t bytes);
    int (*release)(unsigned long long address);
    int (*upload)(unsigned long long to, const void *from, size_t bytes);
    int (*download)(void *to, unsigned long long from, size_t bytes);
    int (*error_string)(int result, const char **words);
} driver;

static void require_success(int result, const char *what)
{
    const char *words = NULL;

    if (result == 0) {
        return;
    }
    driver.error_string(result, &words);
    fail("--device", "%s: the CUDA driver says: %s", what, words ? words : "an unknown error");
}

static void load(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);

    if (!found) {
        fail("--device", "the NVIDIA driver is too old: it lacks %s", name);
    }
    memcpy(function, &found, sizeof found);
}

void device_memory_use(const char *device)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *context = NULL;
    int handle = 0;

    if (!library) {
        fail("--device", "no NVIDIA driver: %s", dlerror());
    }
    load(library, "cuInit", &driver.init);
    load(library, "cuDeviceGet", &driver.device_get);
    load(library, "cuDevicePrimaryCtxRetain", &driver.retain);
    load(library, "cuCtxSetCurrent", &driver.set_current);
    load(library, "cuMemAlloc_v2", &driver.allocate);
    load(library, "cuMemFree_v2", &driver.release);
    load(library, "cuMemcpyHtoD_v2", &driver.upload);
    load(library, "cuMemcpyDtoH_v2", &driver.download);
    load(library, "cuGetErrorString", &driver.error_string);
    require_success(driver.init(0), device);
    require_success(driver.device_get(&handle, atoi(device + strlen("cuda:"))), device);
    require_success(driver.retain(&context, handle), device);
    require_success(driver.set_current(context), device);
}

void *device_memory_make(size_t bytes)
{
    unsigned long long made = 0;

    require_success(driver.allocate(&made, bytes ? bytes : 1), "memory");
    return (void *)(uintptr_t)made;
}

void device_memory_free(void *memory)
{
    if (memory) {
        driver.release((uintptr_t)memory);
    }
}

void *device_memory_copy(const void *from, size_t bytes)
{
    void *made = NULL;

    if (from) {
        made = device_memory_make(bytes);
        require_success(driver.upload((uintptr_t)made, from, bytes), "copy to the GPU");
    }
    return made;
}

void device_memory_fetch(void *to, const void *from, size_t bytes)
{
    require_success(driver.download(to, (uintptr_t)from, bytes), "copy from the GPU");
}

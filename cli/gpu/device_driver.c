/* SPDX-License-Identifier: Apache-2.0 */
#include "device_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

struct device_driver device_driver;

void require_driver(int result, const char *what)
{
    const char *words = NULL;

    if (result == 0) {
        return;
    }
    device_driver.error_string(result, &words);
    fail("--device", "%s: the CUDA driver reports: %s", what, words ? words : "an unknown error");
}

const char *load_functions(void *library, const char *const *names, void *const *functions,
                           int count)
{
    for (int i = 0; i < count; i++) {
        void *found = dlsym(library, names[i]);

        if (!found) {
            return names[i];
        }
        memcpy(functions[i], &found, sizeof found);
    }
    return NULL;
}

#define NAME(name, symbol, parameters)  #symbol,
#define PLACE(name, symbol, parameters) &device_driver.name,

int device_driver_use(const char *device)
{
    static const char *const names[] = {DEVICE_DRIVER_FUNCTIONS(NAME)};
    static void *const functions[] = {DEVICE_DRIVER_FUNCTIONS(PLACE)};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;
    void *context = NULL;
    int handle = 0;

    if (!library) {
        fail("--device", "no NVIDIA driver: %s", dlerror());
    }
    missing = load_functions(library, names, functions, sizeof names / sizeof names[0]);
    if (missing) {
        fail("--device", "the NVIDIA driver is too old: it lacks %s", missing);
    }
    require_driver(device_driver.init(0), device);
    require_driver(device_driver.device_get(&handle, atoi(device + strlen("cuda:"))), device);
    require_driver(device_driver.retain(&context, handle), device);
    require_driver(device_driver.set_current(context), device);
    return handle;
}

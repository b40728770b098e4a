/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include <stdint.h>

#include "device_driver.h"
#include "source.h"

void *device_memory_new(size_t bytes)
{
    device_address memory = 0;

    require_driver(device_driver.allocate(&memory, bytes ? bytes : 1), "memory");
    return (void *)(uintptr_t)memory;
}

void device_memory_free(const void *memory)
{
    if (memory) {
        device_driver.release((uintptr_t)memory);
    }
}

void device_memory_upload(void *to, const void *from, size_t bytes)
{
    require_driver(device_driver.upload((uintptr_t)to, from, bytes), "copy to the GPU");
}

void *device_memory_copy(const void *from, size_t bytes)
{
    void *memory = NULL;

    if (from) {
        memory = device_memory_new(bytes);
        device_memory_upload(memory, from, bytes);
    }
    return memory;
}

void device_memory_download(void *to, const void *from, size_t bytes)
{
    require_driver(device_driver.download(to, (uintptr_t)from, bytes), "copy from the GPU");
}

gumbel_tensor device_memory_copy_tensor(gumbel_tensor tensor)
{
    const int64_t stride = tensor.stride ? tensor.stride : tensor.cols;
    const int64_t elements = tensor.rows ? (tensor.rows - 1) * stride + tensor.cols : 0;

    tensor.data = device_memory_copy(tensor.data, (size_t)elements * dtype_size(tensor.dtype));
    return tensor;
}

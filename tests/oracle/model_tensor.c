/* SPDX-License-Identifier: Apache-2.0 */
#include "model_tensor.h"

#include "inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static gumbel_dtype dtype_of(const char *name)
{
    if (strcmp(name, "F32") == 0)
        return GUMBEL_FLOAT32;
    if (strcmp(name, "F16") == 0)
        return GUMBEL_FLOAT16;
    if (strcmp(name, "BF16") == 0)
        return GUMBEL_BFLOAT16;
    die("a tensor has dtype %s", name);
}

static void *read_at(FILE *file, uint64_t offset, size_t bytes)
{
    char *memory = make_zeroed(bytes + 1, 1);
    if (fseek(file, (long)offset, SEEK_SET) != 0 || fread(memory, 1, bytes, file) != bytes)
        die("a model file is too short");
    return memory;
}

gumbel_tensor model_tensor(const char *file, const char *name)
{
    char path[512];
    uint64_t header = 0, from, to, rows, cols;
    const char *dtype;
    snprintf(path, sizeof path, "%s/%s", TEST_MODELS, file);
    FILE *opened = fopen(path, "rb");
    if (!opened || fread(&header, 1, sizeof header, opened) != sizeof header)
        die("%s cannot be read", path);
    char *text = read_at(opened, sizeof header, header);
    json_t *json = json_loads(text, 0, NULL);
    json_int_t shape[2], span[2];
    if (json_unpack(json_object_get(json, name), "{s:s, s:[I,I], s:[I,I]}", "dtype", &dtype,
                    "shape", &shape[0], &shape[1], "data_offsets", &span[0], &span[1]) != 0)
        die("%s has no matrix %s", path, name);
    from = (uint64_t)span[0];
    to = (uint64_t)span[1];
    rows = (uint64_t)shape[0];
    cols = (uint64_t)shape[1];
    gumbel_tensor tensor = {.dtype = dtype_of(dtype), .rows = (int64_t)rows, .cols = (int64_t)cols};
    if (rows * cols * dtype_size(tensor.dtype) != to - from)
        die("%s of %s has the wrong size", name, path);
    tensor.data = read_at(opened, sizeof header + header + from, to - from);
    json_decref(json);
    free(text);
    fclose(opened);
    return tensor;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "decoder/files/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "decoder/files/folder_hints.h"
#include "decoder/files/json_file.h"
#include "decoder/files/mapping.h"
#include "decoder/files/safetensors.h"

#define SUFFIX ".safetensors"
/* Each shard takes a file mapping; the largest public checkpoints have fewer than 200. */
#define SHARDS_MAX 1024

struct checkpoint {
    char *path;            /* model.safetensors or the index */
    json_t *index;         /* the index document; NULL for a single file */
    json_t *shard_numbers; /* file name -> number of its shard */
    safetensors **shards;
    size_t count;
};

static bool plain_shard_name(const char *name)
{
    size_t length = strlen(name);
    size_t suffix = strlen(SUFFIX);
    return length > suffix && strcmp(name + length - suffix, SUFFIX) == 0 && name[0] != '.' &&
           !strchr(name, '/') && !strchr(name, '\\');
}

/* The number of shard `name`, which is opened at its first use; -1 with the error filled. */
static int64_t shard_number(checkpoint *weights, const char *folder, const char *name,
                            const json_place *place, const char *tensor)
{
    const json_t *known = json_object_get(weights->shard_numbers, name);
    if (known) {
        return json_integer_value(known);
    }
    if (!plain_shard_name(name)) {
        return json_fail(place, tensor, "\"%.100s\" is not a plain name ending in " SUFFIX, name);
    }
    if (weights->count == SHARDS_MAX) {
        return json_fail(place, NULL, "names more than %d files", SHARDS_MAX);
    }
    char *path = path_join(folder, name);
    if (path && !file_exists(path)) {
        free(path);
        return json_fail(place, tensor,
                         "%.100s is not in the folder; download all files of the model", name);
    }
    safetensors **shards = realloc(weights->shards, (weights->count + 1) * sizeof *shards);
    if (shards) {
        weights->shards = shards;
    }
    int result = shards && path ? safetensors_open(path, &shards[weights->count], place->error)
                                : json_fail(place, tensor, "out of memory");
    free(path);
    if (result != 0) {
        return -1;
    }
    int64_t number = (int64_t)weights->count++;
    json_object_set_new(weights->shard_numbers, name, json_integer(number));
    return number;
}

static int open_shards(checkpoint *weights, const char *folder, decoder_error *error)
{
    json_place place = {weights->path, "weight_map", NULL, error};
    place.object = json_object_get(weights->index, "weight_map");
    if (!json_is_object(place.object)) {
        return json_fail(&place, NULL, "is missing or not a JSON object");
    }
    const char *tensor;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)place.object, tensor, value) {
        if (!json_is_string(value)) {
            return json_fail(&place, tensor, "is not a string");
        }
        const char *name = json_string_value(value);
        int64_t number = shard_number(weights, folder, name, &place, tensor);
        if (number < 0) {
            return -1;
        }
        if (!safetensors_find(weights->shards[number], tensor)) {
            return json_fail(&place, tensor, "%.100s has no such tensor", name);
        }
    }
    return 0;
}

static int open_index(checkpoint *weights, const char *folder, decoder_error *error)
{
    file_mapping mapping;
    if (file_map(weights->path, &mapping, error) != 0) {
        return -1;
    }
    weights->index =
        json_document(mapping.data, mapping.size, JSON_NUMBERS_EXACT, weights->path, error);
    file_unmap(&mapping);
    return weights->index ? open_shards(weights, folder, error) : -1;
}

static int open_single(checkpoint *weights, decoder_error *error)
{
    weights->shards = calloc(1, sizeof *weights->shards);
    if (!weights->shards) {
        return decoder_fail(error, weights->path, NULL, "out of memory");
    }
    if (safetensors_open(weights->path, &weights->shards[0], error) != 0) {
        return -1;
    }
    weights->count = 1;
    return 0;
}

int checkpoint_open(const char *folder, checkpoint **weights, decoder_error *error)
{
    *weights = NULL;
    checkpoint *result = calloc(1, sizeof *result);
    char *single = path_join(folder, "model" SUFFIX);
    char *index = path_join(folder, "model" SUFFIX ".index.json");
    int status = -1;
    if (result && single && index && (result->shard_numbers = json_object())) {
        bool whole = file_exists(single), sharded = !whole && file_exists(index);
        result->path = sharded ? index : single;
        *(sharded ? &index : &single) = NULL;
        status = sharded ? open_index(result, folder, error)
                 : whole ? open_single(result, error)
                         : hint_missing_weights(folder, error);
    } else {
        decoder_fail(error, folder, NULL, "out of memory");
    }
    free(single);
    free(index);
    if (status != 0) {
        checkpoint_close(result);
        return -1;
    }
    *weights = result;
    return 0;
}

void checkpoint_close(checkpoint *weights)
{
    if (!weights) {
        return;
    }
    for (size_t i = 0; i < weights->count; i++) {
        safetensors_close(weights->shards[i]);
    }
    free(weights->shards);
    json_decref(weights->shard_numbers);
    json_decref(weights->index);
    free(weights->path);
    free(weights);
}

const tensor_view *checkpoint_find(const checkpoint *weights, const char *name, const char **path)
{
    size_t shard = 0;
    if (path) {
        *path = weights->path;
    }
    if (weights->index) {
        const json_t *map = json_object_get(weights->index, "weight_map");
        const char *file = json_string_value(json_object_get(map, name));
        if (!file) {
            return NULL;
        }
        shard = (size_t)json_integer_value(json_object_get(weights->shard_numbers, file));
    }
    if (path) {
        *path = safetensors_path(weights->shards[shard]);
    }
    return safetensors_find(weights->shards[shard], name);
}

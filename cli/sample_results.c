/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "sample_results.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder/npy.h"
#include "options.h"
#include "report.h"

bool results_have_path(const struct result_paths *paths)
{
    return paths->tokens || paths->logprobs || paths->scores || paths->lse || paths->status;
}

/* npy_write() makes a new file beside `path`, so it is the folder that must be writable. */
static void check_path(const char *field, const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char *folder = NULL;

    if (!path) {
        return;
    }
    folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder || access(folder, W_OK | X_OK) != 0) {
        fail(field, "%s: %s", path, strerror(errno));
    }
    free(folder);
}

void results_check_paths(const struct result_paths *paths)
{
    check_path("--out-tokens", paths->tokens);
    check_path("--out-logprobs", paths->logprobs);
    check_path("--out-scores", paths->scores);
    check_path("--out-lse", paths->lse);
    check_path("--out-status", paths->status);
}

struct results results_new(int64_t batch, int64_t samples)
{
    const int64_t draws = batch * samples;

    return (struct results){
        .batch = batch,
        .samples = samples,
        .output =
            {
                .struct_size = sizeof(gumbel_output),
                .tokens = require_memory("tokens", draws, sizeof(int32_t)),
                .logprobs = require_memory("logprobs", draws, sizeof(float)),
                .scores = require_memory("scores", draws, sizeof(float)),
                .lse = require_memory("lse", batch, sizeof(float)),
                .status = require_memory("status", batch, sizeof(int32_t)),
            },
    };
}

void results_free(struct results *results)
{
    free(results->output.tokens);
    free(results->output.logprobs);
    free(results->output.scores);
    free(results->output.lse);
    free(results->output.status);
}

static void write_array(const char *field, const char *path, tensor_dtype dtype, int rank,
                        const struct results *results, const void *data)
{
    const int64_t shape[2] = {results->batch, results->samples};
    decoder_error error = {""};
    tensor_view view = {.dtype = dtype, .data = data};

    if (path && (!tensor_set_shape(&view, rank, shape) || npy_write(path, &view, &error) != 0)) {
        fail(field, "%s", error.message);
    }
}

void results_write(const struct results *results, const struct result_paths *paths)
{
    const gumbel_output *output = &results->output;

    write_array("--out-tokens", paths->tokens, TENSOR_I32, 2, results, output->tokens);
    write_array("--out-logprobs", paths->logprobs, TENSOR_F32, 2, results, output->logprobs);
    write_array("--out-scores", paths->scores, TENSOR_F32, 2, results, output->scores);
    write_array("--out-lse", paths->lse, TENSOR_F32, 1, results, output->lse);
    write_array("--out-status", paths->status, TENSOR_I32, 1, results, output->status);
}

static json_t *float_rows(const struct results *results, const float *values)
{
    json_t *rows = json_array();

    for (int64_t b = 0; b < results->batch; b++) {
        json_t *row = json_array();

        for (int64_t j = 0; j < results->samples; j++) {
            json_array_append_new(row, json_number((double)values[b * results->samples + j]));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

json_t *results_to_json(const struct results *results)
{
    const gumbel_output *output = &results->output;
    json_t *root = json_object();
    json_t *tokens = json_array();
    json_t *lse = json_array();
    json_t *status = json_array();

    for (int64_t b = 0; b < results->batch; b++) {
        json_t *row = json_array();

        for (int64_t j = 0; j < results->samples; j++) {
            json_array_append_new(row, json_integer(output->tokens[b * results->samples + j]));
        }
        json_array_append_new(tokens, row);
        json_array_append_new(lse, json_number((double)output->lse[b]));
        json_array_append_new(status, json_integer(output->status[b]));
    }
    json_put(root, "tokens", tokens);
    json_put(root, "logprobs", float_rows(results, output->logprobs));
    json_put(root, "scores", float_rows(results, output->scores));
    json_put(root, "lse", lse);
    json_put(root, "status", status);
    return root;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "sample_results.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "decoder/arrays/npy.h"
#include "decoder/arrays/output_file.h"
#include "options.h"
#include "report.h"
#include "tensor_file.h"

/* For each array: its name in the JSON, the option with its file, its dtype and its shape. */
static const struct {
    const char *name, *option;
    tensor_dtype dtype;
    enum { PER_ROW, PER_DRAW, PER_TOP, PER_BEST } shape;
} kinds[RESULT_COUNT] = {
    [RESULT_TOKENS] = {"tokens", "--out-tokens", TENSOR_I32, PER_DRAW},
    [RESULT_LOGPROBS] = {"logprobs", "--out-logprobs", TENSOR_F32, PER_DRAW},
    [RESULT_SCORES] = {"scores", "--out-scores", TENSOR_F32, PER_DRAW},
    [RESULT_LSE] = {"lse", "--out-lse", TENSOR_F32, PER_ROW},
    [RESULT_STATUS] = {"status", "--out-status", TENSOR_I32, PER_ROW},
    [RESULT_RANKS] = {"ranks", "--out-ranks", TENSOR_I32, PER_DRAW},
    [RESULT_KEPT] = {"kept", "--out-kept", TENSOR_I32, PER_ROW},
    [RESULT_TOP_IDS] = {"top_ids", "--out-top-ids", TENSOR_I32, PER_TOP},
    [RESULT_TOP_LOGPROBS] = {"top_logprobs", "--out-top-logprobs", TENSOR_F32, PER_TOP},
    [RESULT_BEST_IDS] = {"best_ids", "--out-best-ids", TENSOR_I32, PER_BEST},
    [RESULT_BEST_SCORES] = {"best_scores", "--out-best-scores", TENSOR_F32, PER_BEST},
};

bool results_have_path(const struct result_paths *paths)
{
    for (int i = 0; i < RESULT_COUNT; i++) {
        if (paths->of[i]) {
            return true;
        }
    }
    return false;
}

void results_check_paths(const struct result_paths *paths, bool json)
{
    output_place places[RESULT_COUNT] = {{0}};
    const output_place standard = output_place_of_stdout();
    decoder_error error = {""};

    for (int i = 0; i < RESULT_COUNT; i++) {
        if (!paths->of[i]) {
            continue;
        }
        if (output_place_find(paths->of[i], &places[i], &error) != 0) {
            fail(kinds[i].option, "%s", error.message);
        }
        if (json && output_places_conflict(&standard, &places[i])) {
            fail(kinds[i].option, "%s: is stdout, which receives the JSON", paths->of[i]);
        }
        for (int j = 0; j < i; j++) {
            if (paths->of[j] && output_places_conflict(&places[j], &places[i])) {
                fail(kinds[i].option, "%s: is the same file as %s %s", paths->of[i],
                     kinds[j].option, paths->of[j]);
            }
        }
    }
    for (int i = 0; i < RESULT_COUNT; i++) {
        output_place_clear(&places[i]);
    }
}

void results_check_input(const struct result_paths *paths, const char *option, const char *name)
{
    struct stat input;
    struct stat output;

    if (!tensor_file_stat(name, &input) || S_ISCHR(input.st_mode)) {
        return;
    }
    for (int i = 0; i < RESULT_COUNT; i++) {
        if (paths->of[i] && stat(paths->of[i], &output) == 0 && output.st_dev == input.st_dev &&
            output.st_ino == input.st_ino) {
            fail(kinds[i].option, "%s: is the input file %s %s; choose another name", paths->of[i],
                 option, name);
        }
    }
}

/* Number of columns of array `i`. */
static int64_t count_columns(const struct results *results, int i)
{
    switch (kinds[i].shape) {
    case PER_DRAW:
        return results->samples;
    case PER_TOP:
        return results->output.num_top;
    case PER_BEST:
        return results->output.num_best;
    default:
        return 1;
    }
}

struct results results_new(int64_t batch, int64_t samples, const struct result_choice *wanted)
{
    struct results results = {.batch = batch, .samples = samples};
    void **arrays = results.arrays;

    results.output.num_top = wanted->num_top;
    results.output.num_best = wanted->num_best;
    for (int i = 0; i < RESULT_COUNT; i++) {
        if ((i == RESULT_RANKS && !wanted->ranks) || (i == RESULT_KEPT && !wanted->kept) ||
            (kinds[i].shape == PER_TOP && wanted->num_top == 0) ||
            (kinds[i].shape == PER_BEST && wanted->num_best == 0)) {
            continue;
        }
        arrays[i] = require_memory(kinds[i].name, batch * count_columns(&results, i),
                                   tensor_element_size(kinds[i].dtype));
    }
    results.output = (gumbel_output){
        .struct_size = sizeof(gumbel_output),
        .tokens = arrays[RESULT_TOKENS],
        .logprobs = arrays[RESULT_LOGPROBS],
        .scores = arrays[RESULT_SCORES],
        .lse = arrays[RESULT_LSE],
        .status = arrays[RESULT_STATUS],
        .ranks = arrays[RESULT_RANKS],
        .kept = arrays[RESULT_KEPT],
        .top_ids = arrays[RESULT_TOP_IDS],
        .top_logprobs = arrays[RESULT_TOP_LOGPROBS],
        .num_top = wanted->num_top,
        .best_ids = arrays[RESULT_BEST_IDS],
        .best_scores = arrays[RESULT_BEST_SCORES],
        .num_best = wanted->num_best,
        .logprobs_of = wanted->raw ? GUMBEL_RAW : GUMBEL_PROCESSED,
    };
    return results;
}

void results_free(struct results *results)
{
    for (int i = 0; i < RESULT_COUNT; i++) {
        free(results->arrays[i]);
    }
}

void results_write(const struct results *results, const struct result_paths *paths)
{
    for (int i = 0; i < RESULT_COUNT; i++) {
        const int64_t shape[2] = {results->batch, count_columns(results, i)};
        tensor_view view = {.dtype = kinds[i].dtype, .data = results->arrays[i]};
        decoder_error error = {""};

        if (paths->of[i] && (!tensor_set_shape(&view, kinds[i].shape == PER_ROW ? 1 : 2, shape) ||
                             npy_write(paths->of[i], &view, &error) != 0)) {
            fail_late(kinds[i].option, "%s", error.message);
        }
    }
}

static json_t *element_to_json(const struct results *results, int i, int64_t at)
{
    return kinds[i].dtype == TENSOR_I32
               ? json_integer(((const int32_t *)results->arrays[i])[at])
               : json_number((double)((const float *)results->arrays[i])[at]);
}

static json_t *array_to_json(const struct results *results, int i)
{
    const int64_t columns = count_columns(results, i);
    json_t *rows = json_array();

    for (int64_t b = 0; b < results->batch; b++) {
        json_t *row = NULL;

        if (kinds[i].shape == PER_ROW) {
            json_array_append_new(rows, element_to_json(results, i, b));
            continue;
        }
        row = json_array();
        for (int64_t j = 0; j < columns; j++) {
            json_array_append_new(row, element_to_json(results, i, b * columns + j));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

json_t *results_to_json(const struct results *results)
{
    json_t *root = json_object();

    for (int i = 0; i < RESULT_COUNT; i++) {
        if (results->arrays[i]) {
            json_put(root, kinds[i].name, array_to_json(results, i));
        }
    }
    return root;
}
